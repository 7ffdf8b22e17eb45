package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
)

// lateKeeper answers takes late, after it has decided.
type lateKeeper struct {
	*keeper
	late atomic.Int64 // time.Duration
}

func (k *lateKeeper) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	t, err := k.keeper.Take(ctx, r)
	time.Sleep(time.Duration(k.late.Load())) // of a bubble
	return t, err
}

// What a look finds while a request is under way reaches the waiter for which the request
// asked: the answer is by the limit of before.
func TestOverrideBeginsBesideARequest(t *testing.T) {
	for name, waiters := range map[string]int{"the first waiter": 1, "a queue": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &lateKeeper{keeper: newKeeper()}
				l := limiter(t, store, ratelimit.SlidingLog(1, 24*time.Hour), ratelimit.Overridable())
				allow(t, l, "k", 1)
				time.Sleep(time.Minute)
				store.set(t, limits.Override{Key: "k", N: 1000, Period: time.Second}, time.Hour)
				store.late.Store(int64(100 * time.Millisecond)) // the look that the request begins is answered before it
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				var wg sync.WaitGroup
				for range waiters {
					wg.Go(func() {
						if _, err := l.Wait(ctx, "k"); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// An override disturbs only those who wait for what it changes.
func TestOverrideOfOneKeyAsksNothingOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others = 50
		store := newKeeper()
		l := limiter(t, store, ratelimit.SlidingLog(1, 24*time.Hour), ratelimit.Overridable())
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range others {
			key := fmt.Sprint("other/", i)
			allow(t, l, key, 1)
			wg.Go(func() { _, _ = l.Wait(ctx, key) })
		}
		time.Sleep(time.Minute)
		before := store.takes.Load()
		store.set(t, limits.Override{Key: "k", N: 7}, 10*time.Second)
		if got := settled(t, l, "k"); got != 7 {
			t.Errorf("%d are allowed", got)
		}
		time.Sleep(time.Minute)
		if n := store.takes.Load() - before; n > 5 {
			t.Errorf("one override of one key led to %d requests", n)
		}
		cancel()
		wg.Wait()
	})
}

// What was taken by one window is given back to it, whatever window is in force then.
func TestOverrideEndsBeforeACancel(t *testing.T) {
	for name, make := range map[string]func(int64, time.Duration) ratelimit.Limit{
		"fixed window": ratelimit.FixedWindow, "sliding window": ratelimit.SlidingWindow, "log": ratelimit.SlidingLog,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				until(24 * time.Hour)
				store := newKeeper()
				l := limiter(t, store, make(100, time.Minute), ratelimit.Overridable())
				remaining := func() int64 {
					t.Helper()
					r, err := l.Peek(t.Context(), "k")
					if err != nil {
						t.Error(err)
					}
					return r.Remaining
				}
				reserve := func() *ratelimit.Reservation {
					t.Helper()
					res, err := l.Reserve(t.Context(), "k", 50)
					if err != nil || !res.Result.OK {
						t.Fatal(res, err)
					}
					return res
				}
				store.set(t, limits.Override{Key: "k", N: 100, Period: time.Hour}, 10*time.Second)
				res := reserve() // by the hour
				time.Sleep(20 * time.Second)
				settled(t, l, "k")
				if err := res.Cancel(t.Context()); err != nil || remaining() != 100 {
					t.Errorf("after the override has ended: %v, %d remain, want 100", err, remaining())
				}

				res = reserve() // by the minute
				store.set(t, limits.Override{Key: "k", N: 100, Period: time.Hour}, time.Hour)
				settled(t, l, "k")
				allow(t, l, "k", 40) // by the hour
				if err := res.Cancel(t.Context()); err != nil || remaining() != 60 {
					t.Errorf("after the override has begun: %v, %d remain, want 60", err, remaining())
				}
				time.Sleep(3 * time.Minute)
				if n := remaining(); n != 60 {
					t.Errorf("%d remain later, want 60", n)
				}
			})
		})
	}
}

// What is left of a batch comes back at the rate of now.
func TestOverrideBeforeABatchIsSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeeper()
		l := limiter(t, store, ratelimit.TokenBucket(100, time.Second, 6), ratelimit.InBatches(6, time.Minute, 1, 6), ratelimit.Overridable())
		allow(t, l, "k", 1) // of a batch of several
		low := limiter(t, store, ratelimit.TokenBucket(1, 10*time.Second, 6))
		time.Sleep(30 * time.Second)
		store.set(t, limits.Override{Key: "k", N: 1, Period: 10 * time.Second, Burst: 6}, time.Hour)
		time.Sleep(29 * time.Second)
		for range 2 { // a decision late
			allow(t, l, "other", 1)
			synctest.Wait()
		}
		if r := allow(t, low, "k", 6); !r.OK {
			t.Fatalf("%+v", r)
		}
		time.Sleep(3 * time.Second) // it has been swept
		if r, err := low.Peek(t.Context(), "k"); err != nil || r.Remaining != 5 {
			t.Errorf("%+v, %v, want the 5 that were left, and the next in some seconds", r, err)
		}
	})
}

// A limit that is wrong is refused as without an override.
func TestOverrideOfAWrongLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeeper()
		store.set(t, limits.Override{Key: "k", N: 5}, time.Hour)
		d, err := ratelimit.NewDecider(store, ratelimit.Overridable())
		if err != nil {
			t.Fatal(err)
		}
		for _, limit := range []ratelimit.Limit{
			ratelimit.TokenBucket(0, time.Second, 5), ratelimit.LeakyBucket(0, time.Second, time.Second).Ahead(1), ratelimit.FixedWindow(0, time.Second),
		} {
			var bad *ratelimit.LimitError
			if r, err := d.Decide(t.Context(), ratelimit.Question{Asks: []ratelimit.Ask{{Key: "k", Limit: limit, Cost: 1}}}); !errors.As(err, &bad) {
				t.Errorf("%v: %+v, %v", limit, r, err)
			}
		}
	})
}
