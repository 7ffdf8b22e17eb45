package batontest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/ratelimit"
)

func TestExhaust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		for _, limit := range []ratelimit.Limit{
			ratelimit.SlidingWindow(100, time.Minute), ratelimit.FixedWindow(100, time.Minute), ratelimit.SlidingLog(100, time.Minute),
			ratelimit.TokenBucket(100, time.Minute, 10), ratelimit.LeakyBucket(100, time.Minute, 10),
		} {
			limiter, err := ratelimit.New(s, limit)
			if err != nil {
				t.Fatal(err)
			}
			key := limit.String()
			s.Exhaust(key, 3*time.Second)
			r, err := limiter.Allow(t.Context(), key)
			if err != nil || r.OK || r.Remaining != 0 || r.RetryAfter != 3*time.Second || r.NextAfter != 3*time.Second {
				t.Errorf("%s: %+v, %v", key, r, err)
			}
			began := time.Now()
			if r, err := limiter.Wait(t.Context(), key); err != nil || !r.OK || time.Since(began) < 3*time.Second || time.Since(began) > 4*time.Second {
				t.Errorf("%s: after %v: %+v, %v", key, time.Since(began), r, err)
			}
			if r, err := limiter.Allow(t.Context(), "another "+key); err != nil || !r.OK {
				t.Errorf("%s: another key: %+v, %v", key, r, err)
			}
			s.Exhaust(key, time.Hour)
			if r, err := limiter.Peek(t.Context(), key); err != nil || !r.OK || r.Remaining != 0 {
				t.Errorf("%s: a look: %+v, %v", key, r, err)
			}
			if err := limiter.Forget(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if r, err := limiter.Allow(t.Context(), key); err != nil || !r.OK {
				t.Errorf("%s: after Forget: %+v, %v", key, r, err)
			}
		}
	})
}

// One of several limits, by the caller's key and by the store's.
func TestExhaustOneOfSeveral(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		limiter, err := ratelimit.New(s,
			ratelimit.SlidingWindow(60, time.Minute).Named("requests").PerCall(),
			ratelimit.TokenBucket(1000, time.Minute, 100).Named("tokens"),
			ratelimit.FixedWindow(5000, time.Hour).Named("everybody").ForAll())
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]string{"tokens/{tenant/7}": "tokens", "*/everybody": "everybody", "tenant/7": ""} {
			f := s.Exhaust(key, time.Minute)
			r, err := limiter.AllowN(t.Context(), "tenant/7", 50)
			if err != nil || r.OK || r.RetryAfter != time.Minute || want != "" && r.Name != want {
				t.Errorf("%s: %+v, %v", key, r, err)
			}
			for _, l := range r.Limits() {
				if want != "" && (l.Name == want) == l.OK {
					t.Errorf("%s: %+v", key, l)
				}
			}
			f.Stop()
		}
		s.Exhaust("*/everybody", time.Minute)
		if r, err := limiter.AllowN(t.Context(), "tenant/7", 101); err != nil || r.OK || r.RetryAfter != ratelimit.Never {
			t.Errorf("more than is ever allowed: %+v, %v", r, err)
		}
		if r, _ := limiter.Peek(t.Context(), "tenant/7"); r.Limits()[0].Remaining != 60 || r.Limits()[1].Remaining != 100 {
			t.Errorf("what was refused consumed something: %+v", r.Limits())
		}
	})
}
