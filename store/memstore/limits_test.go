package memstore_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/store/memstore"
)

func limitHarness(fake bool, steps int) drivertest.LimitHarness {
	return drivertest.LimitHarness{
		FakeTime: fake,
		Steps:    steps,
		Open: func(_ drivertest.T, n int) []limits.Store {
			s := memstore.New()
			all := make([]limits.Store, n)
			for i := range all {
				all[i] = s
			}
			return all
		},
		Kept: func(_ drivertest.T, l limits.Store) int { return l.(*memstore.Store).Limits() },
	}
}

func TestLimits(t *testing.T) { drivertest.Limits(t, limitHarness(true, 3000)) }

func TestLimitsInRealTime(t *testing.T) { drivertest.Limits(t, limitHarness(false, 100)) }

// The keys of callers that stop asking are forgotten, even if all later requests are
// refused, or ask a bucket.
func TestForgetsWhileNothingChanges(t *testing.T) {
	const keys = 5000
	window := limits.Limit{Algorithm: limits.FixedWindow, N: 5, Period: time.Second}
	bucket := limits.Limit{Algorithm: limits.TokenBucket, N: 5, Period: time.Second, Burst: 5}
	hour := limits.Limit{Algorithm: limits.FixedWindow, N: 1, Period: 1000 * time.Hour}
	for name, ask := range map[string]func(t *testing.T, s *memstore.Store){
		"refusals": func(t *testing.T, s *memstore.Store) {
			if d, err := s.Take(t.Context(), one("busy", hour, 1)); err != nil || d.OK {
				t.Errorf("%+v, %v", d, err)
			}
		},
		"buckets": func(t *testing.T, s *memstore.Store) {
			if _, _, err := s.Prepare(bucket).Take("busy", 1); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				b := s.Prepare(bucket)
				for i := range keys {
					r := one(fmt.Sprint("window ", i), window, 1)
					r.ID, r.Keep = "id", time.Second
					if _, err := s.Take(t.Context(), r); err != nil {
						t.Fatal(err)
					}
					if _, _, err := b.Take(fmt.Sprint("bucket ", i), 1); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := s.Take(t.Context(), one("busy", hour, 1)); err != nil {
					t.Fatal(err)
				}
				if s.Limits() <= keys || s.Buckets() <= keys/2 {
					t.Fatalf("%d states and IDs, %d buckets", s.Limits(), s.Buckets())
				}
				for range 100 { // ten seconds: each of 64 shards has its turn
					time.Sleep(100 * time.Millisecond)
					ask(t, s)
				}
				if s.Limits() > 2 || s.Buckets() > 2 {
					t.Errorf("ten seconds later there are %d states and IDs, and %d buckets", s.Limits(), s.Buckets())
				}
			})
		})
	}
}

func one(key string, l limits.Limit, cost int64) limits.Request {
	return limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}}
}
