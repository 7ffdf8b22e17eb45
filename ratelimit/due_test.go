package ratelimit_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// slow is a store that needs a while for each answer.
type slow struct {
	limits.Store
	needs atomic.Int64 // a time.Duration
	asked atomic.Int64
	left  atomic.Int64 // requests whose context ended before the answer
}

func (s *slow) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	s.asked.Add(1)
	select {
	case <-time.After(time.Duration(s.needs.Load())):
		return s.Store.Take(context.WithoutCancel(ctx), r)
	case <-ctx.Done():
		s.left.Add(1)
		return limits.Taken{}, errors.Join(driver.ErrUnknown, ctx.Err())
	}
}

func newSlow(needs time.Duration) *slow {
	s := &slow{Store: memstore.New()}
	s.needs.Store(int64(needs))
	return s
}

func decider(t *testing.T, store limits.Store, opts ...ratelimit.Option) *ratelimit.Decider {
	t.Helper()
	d, err := ratelimit.NewDecider(store, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// asking is a question about one key, to be answered within d.
func asking(key string, cost int64, within time.Duration, all ...ratelimit.Limit) ratelimit.Question {
	q := ratelimit.Question{Key: key, Cost: cost, AnswerBy: time.Now().Add(within)}
	for _, l := range all {
		q.Asks = append(q.Asks, ratelimit.Ask{Limit: l, Key: l.StoreKey(key), Cost: cost})
	}
	return q
}

// A store that is too slow for the caller still counts, and never fails.
func TestAnswerByOfASlowStore(t *testing.T) {
	const due, after = 25 * time.Millisecond, 500 * time.Millisecond
	for _, c := range []struct {
		name string
		fail ratelimit.Option
		by   ratelimit.Source
		ok   int // of 50 under a limit of 40
	}{
		{"open", ratelimit.FailOpen(after), ratelimit.ByOpen, 50},
		{"closed", ratelimit.FailClosed(after), ratelimit.ByClosed, 0},
		{"local", ratelimit.FailLocal(4, after), ratelimit.ByLocal, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newSlow(40 * time.Millisecond)
				d := decider(t, store, c.fail)
				limit := ratelimit.FixedWindow(40, time.Hour)
				ok := 0
				for range 50 {
					start := time.Now()
					r, err := d.Decide(t.Context(), asking("k", 1, due, limit))
					if err != nil || r.By != c.by || time.Since(start) != due {
						t.Fatalf("%+v, %v after %v", r, err, time.Since(start))
					}
					if r.OK {
						ok++
					}
				}
				time.Sleep(time.Second) // fake time: until the store has answered all
				if n := store.asked.Load(); ok != c.ok || n != 50 || store.left.Load() != 0 {
					t.Errorf("%d were allowed, want %d; of %d requests to the store %d were left", ok, c.ok, n, store.left.Load())
				}
				store.needs.Store(0)
				if r, err := d.Decide(t.Context(), asking("k", 0, due, limit)); err != nil || r.By != ratelimit.ByStore || r.Remaining != 0 {
					t.Errorf("the store has counted something else: %+v, %v", r, err)
				}
			})
		})
	}
}

// A store that is silent costs each caller no more than it has, and soon nothing.
func TestAnswerByOfASilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const due, after = 25 * time.Millisecond, 500 * time.Millisecond
		store := newSlow(time.Hour)
		d := decider(t, store, ratelimit.FailLocal(1, after))
		begin := time.Now()
		for i := range 1000 {
			start := time.Now()
			r, err := d.Decide(t.Context(), asking("k", 1, due, ratelimit.FixedWindow(100, time.Hour)))
			took := time.Since(start)
			if err != nil || r.By != ratelimit.ByLocal || r.OK != (i < 100) || took > due {
				t.Fatalf("number %d: %+v, %v after %v", i, r, err, took)
			}
			if known := start.Sub(begin) > after+4*due; known && took != 0 {
				t.Fatalf("number %d waits %v for a store that is known to be silent", i, took)
			}
		}
		if n := store.asked.Load(); n > 30 {
			t.Errorf("the store was asked %d times", n)
		}
		// A probe waits no longer than its caller does, and the store has longer.
		time.Sleep(3 * after) // fake time: until the store may be asked again
		store.needs.Store(int64(400 * time.Millisecond))
		start := time.Now()
		if r, err := d.Decide(t.Context(), asking("k", 1, due, ratelimit.FixedWindow(100, time.Hour))); err != nil || r.By != ratelimit.ByLocal || time.Since(start) != due {
			t.Errorf("%+v, %v after %v", r, err, time.Since(start))
		}
		time.Sleep(after) // fake time: until it has answered
		store.needs.Store(0)
		if r, err := d.Decide(t.Context(), asking("k", 0, due, ratelimit.FixedWindow(100, time.Hour))); err != nil || r.By != ratelimit.ByStore || r.Remaining != 99 {
			t.Errorf("the store is back, and has counted the probe: %+v, %v", r, err)
		}
	})
}

// Several requests to the store for one decision have that time together, a look at the
// overrides included.
func TestAnswerByIsForTheWholeDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlow(0)
		d := decider(t, store, ratelimit.FailOpen(time.Second))
		tried, limit := ratelimit.FixedWindow(1, time.Hour).Named("tried").Shadow(), ratelimit.FixedWindow(10, time.Hour).Named("limit")
		ask := func() (ratelimit.Result, time.Duration) {
			t.Helper()
			start := time.Now()
			r, err := d.Decide(t.Context(), asking("k", 1, 25*time.Millisecond, tried, limit))
			if err != nil {
				t.Fatal(err)
			}
			return r, time.Since(start)
		}
		if r, _ := ask(); !r.OK || r.WouldRefuse {
			t.Fatalf("%+v", r)
		}
		store.needs.Store(int64(20 * time.Millisecond))
		r, took := ask() // the shadow refuses, so the limit is asked once more
		if !r.OK || r.By != ratelimit.ByOpen || took != 25*time.Millisecond || store.asked.Load() != 3 {
			t.Errorf("%+v after %v, and %d requests", r, took, store.asked.Load())
		}
		time.Sleep(time.Second) // fake time: until the store has answered
		store.needs.Store(0)
		if r, _ := ask(); r.Remaining != 7 {
			t.Errorf("the second request has not counted: %+v", r)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		store := newSlow(time.Hour)
		d := decider(t, overriding{store, store.Store.(limits.Overrider)}, ratelimit.FailOpen(time.Second), ratelimit.Overridable())
		start := time.Now()
		r, err := d.Decide(t.Context(), asking("k", 1, 25*time.Millisecond, ratelimit.FixedWindow(1, time.Hour)))
		if err != nil || r.By != ratelimit.ByOpen || time.Since(start) != 25*time.Millisecond {
			t.Errorf("%+v, %v after %v", r, err, time.Since(start))
		}
		time.Sleep(time.Minute) // fake time: until the look has ended
	})
}

// What is only tried is decided as everything else while the store fails: also if that
// shows at once.
func TestAnswerByOfShadows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		store.fail(driver.ErrUnavailable)
		d := decider(t, store, ratelimit.FailLocal(1, time.Second))
		for i := range 20 {
			r, err := d.Decide(t.Context(), asking("k", 1, 25*time.Millisecond, ratelimit.FixedWindow(10, time.Hour).Shadow()))
			if err != nil || !r.OK || r.By != ratelimit.ByLocal || r.WouldRefuse != (i >= 10) {
				t.Errorf("number %d: %+v, %v", i, r, err)
			}
		}
	})
}

// overriding is a slow store whose overrides are as slow.
type overriding struct {
	*slow
	limits.Overrider
}

func (o overriding) Overrides(ctx context.Context) ([]limits.Override, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A caller that leaves gets no decision, and without a policy a late answer is an error.
func TestAnswerByErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlow(time.Hour)
		limit := ratelimit.FixedWindow(1, time.Hour)
		start := time.Now()
		if _, err := decider(t, store).Decide(t.Context(), asking("k", 1, 25*time.Millisecond, limit)); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 25*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		// Also if only shadows are asked, a late answer allows.
		if r, err := decider(t, store).Decide(t.Context(), asking("k", 1, 25*time.Millisecond, limit.Shadow())); err != nil || !r.OK || r.By != ratelimit.ByOpen {
			t.Errorf("%+v, %v", r, err)
		}
		d := decider(t, store, ratelimit.FailOpen(time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := d.Decide(ctx, asking("k", 1, 25*time.Millisecond, limit)); !errors.Is(err, context.Canceled) {
				t.Errorf("the caller has left: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := d.Decide(ctx, asking("k", 1, 25*time.Millisecond, limit)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller has no more time: %v", err)
		}
		time.Sleep(time.Minute) // fake time: until the requests that were left behind have ended
	})
}
