package ratelimit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// However many callers cannot wait for long, a queue serves at its rate.
func TestImpatientCallersAreServed(t *testing.T) {
	for name, deadline := range map[string]bool{"a deadline": true, "a longest wait": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, memstore.New(), ratelimit.LeakyBucket(10, time.Second, time.Minute))
				ask := func() bool {
					if deadline {
						ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
						defer cancel()
						_, err := l.Wait(ctx, "k")
						return err == nil
					}
					res, err := l.ReserveWithin(t.Context(), "k", 1, 250*time.Millisecond)
					if err == nil && res.Result.OK {
						time.Sleep(res.Result.Wait)
					}
					return err == nil && res.Result.OK
				}
				var served atomic.Int64
				var wg sync.WaitGroup
				end := time.Now().Add(10 * time.Second)
				for i := range 10 {
					wg.Go(func() {
						for time.Now().Before(end) {
							if ask() {
								served.Add(1)
							} else {
								time.Sleep(time.Duration(5+i) * time.Millisecond)
							}
						}
					})
				}
				wg.Wait()
				if n := served.Load(); n < 100 || n > 104 { // one each tenth of a second, and those with turns after the end
					t.Errorf("%d were served in 10 s at 10/s", n)
				}
			})
		})
	}
}

// A limit that counts ForAll has a name that no caller's key can be.
func TestForAllIsNobodysKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		all := limiter(t, store, ratelimit.FixedWindow(10, time.Hour).Named("everybody").ForAll(), ratelimit.FixedWindow(100, time.Hour).Named("each"))
		if r := allow(t, all, "alice", 10); !r.OK {
			t.Fatalf("%+v", r)
		}
		one := limiter(t, store, ratelimit.TokenBucket(10, time.Hour, 10))
		for _, key := range []string{"everybody", "*/everybody", "*//everybody", "*/", "*"} {
			if r := allow(t, one, key, 3); !r.OK || r.Remaining != 7 {
				t.Errorf("%q is not a fresh key: %+v", key, r)
			}
			if ok, err := one.Allowed(t.Context(), key); err != nil || !ok {
				t.Errorf("%q: %v, %v", key, ok, err)
			}
			if r, err := one.Peek(t.Context(), key); err != nil || r.Remaining != 6 {
				t.Errorf("%q is two keys: %+v, %v", key, r, err)
			}
			if err := one.Forget(t.Context(), key); err != nil {
				t.Errorf("%q: %v", key, err)
			}
			if r := allow(t, one, key, 3); r.Remaining != 7 {
				t.Errorf("%q was not forgotten: %+v", key, r)
			}
		}
		if r := allow(t, all, "bob", 1); r.OK {
			t.Errorf("a caller has opened the limit of all: %+v", r)
		}
	})
}

// Lowering a limit while callers wait affects only later ones.
func TestSetLimitsKeepsPromisedTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.LeakyBucket(10, time.Second, time.Minute))
		for range 100 {
			allow(t, l, "k", 1)
		}
		if err := l.SetLimits(ratelimit.LeakyBucket(9, time.Second, time.Minute)); err != nil {
			t.Fatal(err)
		}
		if r := allow(t, l, "k", 1); !r.OK || r.Wait < 10*time.Second {
			t.Errorf("100 turns were promised, the last in 9.9 s, and the next is in %v", r.Wait)
		}
	})
}

// Two programs that disagree about a limit, as in a rolling deployment, and a
// program that looks with a lower one, make no room.
func TestLowerLimitsMakeNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := limiter(t, store, ratelimit.SlidingWindow(100, time.Hour))
		lower := limiter(t, store, ratelimit.SlidingWindow(20, time.Hour))
		allowed := 0
		for i := range 500 {
			if allow(t, l, "k", 1).OK {
				allowed++
			}
			if i%50 == 0 {
				if _, err := lower.Peek(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
			}
			if r := allow(t, lower, "k", 1); r.OK && i > 20 {
				t.Errorf("the lower limit allows request %d: %+v", i, r)
			} else if r.OK {
				allowed++
			}
		}
		if allowed != 100 {
			t.Errorf("%d of 100 were allowed", allowed)
		}
	})
}
