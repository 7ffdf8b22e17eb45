package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// Limits of all algorithms, small enough that random requests come to their end.
var kinds = []ratelimit.Limit{
	ratelimit.FixedWindow(7, time.Second),
	ratelimit.SlidingWindow(9, time.Second),
	ratelimit.SlidingWindow(8, time.Second).Parts(4).Classic(),
	ratelimit.SlidingLog(6, time.Second),
	ratelimit.EstimatedWindow(8, time.Second),
	ratelimit.TokenBucket(5, time.Second, 7),
	ratelimit.LeakyBucket(6, time.Second, time.Second),
	ratelimit.LeakyBucket(6, time.Second, time.Second).Ahead(2),
	ratelimit.PerDay(5000, nil),
}

// A shadow says to each request what the limit itself would say, figure by figure,
// and refuses none.
func TestShadowIsTheLimit(t *testing.T) {
	const requests = 6000 // for each limit, twice
	for _, limit := range kinds {
		t.Run(limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				real, shadow := limiter(t, memstore.New(), limit), limiter(t, memstore.New(), limit.Shadow())
				refused := 0
				for i := range requests {
					time.Sleep(time.Duration(rand.Int64N(int64(400 * time.Millisecond)))) // fake time
					key, n := fmt.Sprint(rand.IntN(2)), 1+rand.Int64N(10)
					var want, got ratelimit.Result
					if i%3 == 0 {
						a, err := real.Reserve(t.Context(), key, n)
						b, err2 := shadow.Reserve(t.Context(), key, n)
						if err != nil || err2 != nil {
							t.Fatal(err, err2)
						}
						want, got = a.Result, b.Result
						time.Sleep(time.Duration(rand.Int64N(int64(100 * time.Millisecond)))) // fake time
						used := rand.Int64N(12)
						if err := a.Commit(t.Context(), used); err != nil && !errors.Is(err, ratelimit.ErrSettled) {
							t.Fatal(err)
						}
						if err := b.Commit(t.Context(), used); err != nil {
							t.Fatal(err)
						}
					} else {
						want, got = allow(t, real, key, n), allow(t, shadow, key, n)
					}
					w, g := want.Limits()[0], got.Limits()[0]
					if !want.OK {
						refused++
					}
					if w.Shadow = true; g != w || !got.OK || got.WouldRefuse == want.OK || got.Wait != 0 || got.RetryAfter != 0 || got.Limit != 0 {
						t.Fatalf("%d for %q: the limit says %+v, its shadow %+v", n, key, want, got)
					}
				}
				if limit.String() != kinds[8].String() && (refused < requests/20 || refused > requests*19/20) {
					t.Errorf("%d of %d were refused: that tests little", refused, requests)
				}
			})
		})
	}
}

// Beside shadows a limit decides as it does alone, and each shadow says what the
// limit itself would say if it were asked what the real one lets through.
func TestShadowsBesideALimit(t *testing.T) {
	const requests = 16_000
	for seed := range 3 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				left := requests
				for round := 0; left > 0; round++ {
					a, b, c := kinds[rand.IntN(6)].Named("a"), kinds[rand.IntN(len(kinds))].Named("b"), kinds[rand.IntN(len(kinds))].Named("c").ForAll()
					if round%2 == 1 {
						b = b.PerCall()
					}
					alone := []*ratelimit.Limiter{limiter(t, memstore.New(), a), limiter(t, memstore.New(), b), limiter(t, memstore.New(), c)}
					order := []ratelimit.Option{a, b.Shadow(), c.Shadow()}
					if round%3 == 1 { // the first key is that of a shadow
						order = []ratelimit.Option{b.Shadow(), a, c.Shadow()}
					}
					all := limiter(t, memstore.New(), order...)
					of := func(r ratelimit.Result, name string) ratelimit.LimitResult {
						i := slices.IndexFunc(r.Limits(), func(l ratelimit.LimitResult) bool { return l.Name == name })
						return r.Limits()[i]
					}
					for range 1000 {
						left--
						time.Sleep(time.Duration(rand.Int64N(int64(400 * time.Millisecond)))) // fake time
						key, n := fmt.Sprint(rand.IntN(2)), 1+rand.Int64N(10)
						got, want := allow(t, all, key, n), allow(t, alone[0], key, n)
						if got.OK != want.OK || of(got, "a") != of(want, "a") || got.Name != "a" || got.Remaining != want.Remaining ||
							got.RetryAfter != want.RetryAfter || got.ResetAfter != want.ResetAfter || got.Wait != want.Wait {
							t.Fatalf("%d of %q under %v:\nthe limit says %+v\nwith shadows  %+v", n, key, order, want, got)
						}
						refuse := false
						for i, name := range []string{"b", "c"} {
							l := alone[i+1]
							shadow := of(got, name)
							var said ratelimit.LimitResult
							if want.OK {
								said = allow(t, l, key, n).Limits()[0]
							} else { // nothing is taken
								r, err := l.Peek(t.Context(), key)
								if err != nil {
									t.Fatal(err)
								}
								cost := n
								if name == "b" && round%2 == 1 {
									cost = 1
								}
								said = r.Limits()[0]
								said.OK, said.RetryAfter, said.Wait = said.Remaining >= cost, shadow.RetryAfter, shadow.Wait
							}
							if said.Shadow = true; said != shadow {
								t.Fatalf("%d of %q under %v, where the limit says %v:\nthe other says %+v\nits shadow     %+v", n, key, order, want.OK, said, shadow)
							}
							refuse = refuse || !said.OK
						}
						if got.WouldRefuse != refuse {
							t.Fatalf("would refuse: %v: %+v", refuse, got)
						}
					}
				}
			})
		})
	}
}

func TestShadowCostsNoMoreThanItMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.SlidingLog(4, time.Minute).Named("a"), ratelimit.SlidingLog(2, time.Minute).Named("b").Shadow())
		for i, want := range []struct {
			ok, refuse bool
			asked      int64
		}{
			{true, false, 1},
			{true, false, 1},
			{true, true, 2},  // the shadow refuses what the limit allows
			{true, true, 2},  //
			{false, true, 1}, // and so does the limit
		} {
			before := store.asked.Load()
			r := allow(t, l, "k", 1)
			if asked := store.asked.Load() - before; r.OK != want.ok || r.WouldRefuse != want.refuse || asked != want.asked {
				t.Errorf("%d: %+v after %d requests to the store, want %+v", i, r, asked, want)
			}
		}
		alone := limiter(t, store, ratelimit.SlidingLog(1, time.Minute).Shadow())
		before := store.asked.Load()
		allow(t, alone, "other", 1)
		if r := allow(t, alone, "other", 1); !r.OK || !r.WouldRefuse || store.asked.Load()-before != 2 {
			t.Errorf("a shadow alone: %+v after %d requests", r, store.asked.Load()-before)
		}
	})
}

// A reservation is settled with the limits from which it took.
func TestReservationBesideShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.SlidingLog(10, time.Minute).Named("b").Shadow(), ratelimit.SlidingLog(100, time.Minute).Named("a"))
		left := func(want ...int64) {
			t.Helper()
			r, err := l.Peek(t.Context(), "k")
			if err != nil || r.Limits()[0].Remaining != want[0] || r.Limits()[1].Remaining != want[1] {
				t.Errorf("%+v, %v, want %d", r, err, want)
			}
		}
		reserve := func(n int64) *ratelimit.Reservation {
			t.Helper()
			r, err := l.Reserve(t.Context(), "k", n)
			if err != nil || !r.Result.OK {
				t.Fatal(r, err)
			}
			return r
		}
		first := reserve(8)
		left(2, 92)
		second := reserve(5)
		left(2, 87)
		if err := second.Commit(t.Context(), 7); err != nil {
			t.Error(err)
		}
		left(2, 85)
		third := reserve(3)
		left(2, 82)
		if err := third.Cancel(t.Context()); err != nil {
			t.Error(err)
		}
		left(2, 85)
		if err := first.Commit(t.Context(), 1); err != nil {
			t.Error(err)
		}
		left(9, 92)
	})
}

// Nobody waits for a shadow: not for its turn, not until it has room.
func TestNobodyWaitsForAShadow(t *testing.T) {
	for _, shadow := range kinds {
		t.Run(shadow.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shadow := shadow.Named("shadow").Shadow()
				only, beside := limiter(t, memstore.New(), shadow), limiter(t, memstore.New(), ratelimit.TokenBucket(1, time.Second, 10).Named("real"), shadow)
				start := time.Now()
				for range 30 {
					if r, err := only.Wait(t.Context(), "k"); err != nil || !r.OK || r.Wait != 0 {
						t.Fatalf("%+v, %v", r, err)
					}
					if r, err := only.WaitWithin(t.Context(), "k", 1000, 0); err != nil || !r.OK || r.Wait != 0 {
						t.Fatalf("above what it ever allows: %+v, %v", r, err)
					}
				}
				if took := time.Since(start); took != 0 || only.Queues() {
					t.Errorf("took %v", took)
				}
				for range 30 {
					r, err := beside.WaitN(t.Context(), "k", 2)
					if err != nil || !r.OK || r.Wait != 0 || r.Name != "real" {
						t.Fatalf("%+v, %v", r, err)
					}
				}
				if took := time.Since(start); took < 50*time.Second || took > 50*time.Second+100*time.Millisecond {
					t.Errorf("60 of 10 and 1 per second took %v", took)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if r, err := beside.WaitN(ctx, "k", 11); !errors.Is(err, ratelimit.ErrRefused) || r.Name != "real" {
					t.Errorf("more than the real one ever allows: %+v, %v", r, err)
				}
			})
		})
	}
}

// A Limiter that has only shadows refuses nobody, whatever the store does.
func TestOnlyShadowsWithoutTheStore(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []ratelimit.Option
		by     ratelimit.Source
		refuse bool
	}{
		"nothing": {nil, ratelimit.ByOpen, false},
		"open":    {[]ratelimit.Option{ratelimit.FailOpen(time.Second)}, ratelimit.ByOpen, false},
		"closed":  {[]ratelimit.Option{ratelimit.FailClosed(time.Second)}, ratelimit.ByClosed, true},
		"local":   {[]ratelimit.Option{ratelimit.FailLocal(2, time.Second)}, ratelimit.ByLocal, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &moody{Store: memstore.New()}
				opts := append([]ratelimit.Option{
					ratelimit.SlidingLog(10, time.Minute).Named("a").Shadow().Warn(0.5),
					ratelimit.SlidingLog(12, time.Minute).Named("b").Shadow(),
				}, c.opts...)
				l := limiter(t, store, opts...)
				store.fail(driver.ErrUnavailable)
				for _, call := range []func() (ratelimit.Result, error){
					func() (ratelimit.Result, error) { return l.Allow(t.Context(), "k") },
					func() (ratelimit.Result, error) { return l.Wait(t.Context(), "k") },
					func() (ratelimit.Result, error) {
						r, err := l.Reserve(t.Context(), "k", 1)
						if err != nil {
							return ratelimit.Result{}, err
						}
						return r.Result, r.Commit(t.Context(), 2)
					},
				} {
					if r, err := call(); err != nil || !r.OK || r.By != c.by || r.WouldRefuse != c.refuse || r.Near || r.Limits()[0].Near {
						t.Errorf("%+v, %v", r, err)
					}
				}
				if r, err := l.AllowN(t.Context(), "k", 1000); err != nil || !r.OK || r.By != c.by || r.WouldRefuse != (name == "closed" || name == "local") {
					t.Errorf("%+v, %v", r, err)
				}
				store.fail(errors.New("broken"))
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if r, err := l.Allow(ctx, "k"); err == nil {
					t.Errorf("the context has ended: %+v", r)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.SlidingLog(1, time.Minute).Named("a"), ratelimit.SlidingLog(1, time.Minute).Named("b").Shadow())
		store.fail(driver.ErrUnavailable)
		if r, err := l.Allow(t.Context(), "k"); !errors.Is(err, ratelimit.ErrUnavailable) {
			t.Errorf("beside a real limit: %+v, %v", r, err)
		}
	})
}

// A reservation whose answer was lost is counted once, also when a shadow refuses.
func TestShadowAndALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &losing{Store: memstore.New()}
		l := limiter(t, store, ratelimit.SlidingLog(2, time.Minute).Named("b").Shadow(), ratelimit.SlidingLog(9, time.Minute).Named("a"))
		for i, want := range []bool{false, false, true, true} {
			store.lose.Store(int64(1 + i%2)) // the first answer, or the one after the shadow has refused
			r, err := l.Reserve(t.Context(), "k", 1)
			if err != nil || !r.Result.OK || r.Result.WouldRefuse != want {
				t.Fatalf("%d: %+v, %v", i, r, err)
			}
		}
		if r, err := l.Peek(t.Context(), "k"); err != nil || r.Remaining != 5 || r.Limits()[0].Remaining != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// losing loses one answer.
type losing struct {
	limits.Store
	lose atomic.Int64
}

func (s *losing) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	t, err := s.Store.Take(ctx, r)
	if s.lose.Add(-1) == 0 {
		return limits.Taken{}, driver.ErrUnknown
	}
	return t, err
}

func TestWarn(t *testing.T) {
	for _, limit := range kinds[:8] {
		t.Run(limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				until(time.Minute)
				share := 0.8
				l, quick := limiter(t, memstore.New(), limit.Warn(share).Named("n")), limiter(t, memstore.New(), limit.Warn(share))
				silent := limiter(t, memstore.New(), limit)
				near := false
				for range 12 {
					r := allow(t, l, "k", 1)
					x := r.Limits()[0]
					if want := float64(x.Limit-x.Remaining) >= share*float64(x.Limit); r.Near != want || x.Near != want {
						t.Errorf("%+v", r)
					}
					if q := allow(t, quick, "k", 1); q.Near != r.Near || q.Limits()[0].Near != r.Near {
						t.Errorf("without a name %+v, with one %+v", q, r)
					}
					if s := allow(t, silent, "k", 1); s.Near || s.OK != r.OK || s.Remaining != r.Remaining {
						t.Errorf("without Warn %+v, with %+v", s, r)
					}
					near = near || r.Near
				}
				if p, err := l.Peek(t.Context(), "other"); !near || err != nil || p.Near {
					t.Errorf("%v, %+v, %v", near, p, err)
				}
			})
		})
	}
}

func TestWarnBegins(t *testing.T) {
	for _, c := range []struct {
		share float64
		n     int64
		at    int64 // the first that is near
	}{
		{0.8, 100, 80}, {0.07, 100, 7}, {0.29, 100, 29}, {0.57, 100, 57}, {1.0 / 3, 9, 3}, {1, 5, 5}, {0.5, 5, 3}, {0.001, 5, 1}, {0.9, 1, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, l := range []*ratelimit.Limiter{
				limiter(t, memstore.New(), ratelimit.TokenBucket(1, time.Hour, c.n).Warn(c.share)),
				limiter(t, memstore.New(), ratelimit.FixedWindow(c.n, time.Hour).Warn(c.share)),
			} {
				for i := int64(1); i <= c.n; i++ {
					if r := allow(t, l, "k", 1); r.Near != (i >= c.at) {
						t.Errorf("%v of %d: number %d: %+v", c.share, c.n, i, r)
					}
				}
			}
		})
	}
}

func TestWarnBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.SlidingLog(3, time.Minute).Named("a"), ratelimit.SlidingLog(10, time.Minute).Named("b").Warn(0.2),
			ratelimit.SlidingLog(2, time.Minute).Named("c").Warn(0.5).Shadow(), ratelimit.FailLocal(1, time.Second))
		if r := allow(t, l, "k", 1); r.Near || r.Limits()[1].Near || !r.Limits()[2].Near {
			t.Errorf("only the shadow is near: %+v", r)
		}
		if r := allow(t, l, "k", 1); !r.Near || r.Name != "a" || r.Limits()[0].Near || !r.Limits()[1].Near {
			t.Errorf("not the tightest is near: %+v", r)
		}
		store.fail(driver.ErrUnavailable)
		if r := allow(t, l, "k", 3); !r.OK || r.By != ratelimit.ByLocal || r.Near || r.Limits()[1].Near {
			t.Errorf("without the store: %+v", r)
		}
	})
	queue := limiter(t, memstore.New(), ratelimit.LeakyBucket(1, time.Hour, 4*time.Hour).Warn(0.75))
	for i := range 4 {
		if r := allow(t, queue, "k", 1); r.Near != (i >= 2) {
			t.Errorf("number %d in a queue of 4: %+v", i, r)
		}
	}
	for _, share := range []float64{0, -1, 1.01, math.NaN(), math.Inf(1), math.Inf(-1)} {
		var bad *ratelimit.LimitError
		if _, err := ratelimit.New(memstore.New(), ratelimit.FixedWindow(1, time.Minute).Warn(share)); !errors.As(err, &bad) {
			t.Errorf("Warn(%v): %v", share, err)
		}
	}
}

// What is given back to a limit does not depend on the turn of another one, a shadow or
// not: a promise that the limit has made behind it stays the only one for its time.
func TestCancelBesideAQueue(t *testing.T) {
	bucket, queue := ratelimit.TokenBucket(1, time.Second, 2).Named("real"), ratelimit.LeakyBucket(1, time.Second, time.Minute).Named("queue")
	for name, beside := range map[string][]ratelimit.Option{"alone": {}, "beside a shadow": {queue.Shadow()}, "beside a queue": {queue}} {
		for lost := range 2 {
			t.Run(fmt.Sprintf("%s, %d answers lost", name, lost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := &losing{Store: memstore.New()}
					l, waiters := limiter(t, store, append([]ratelimit.Option{bucket}, beside...)...), limiter(t, store, bucket)
					allow(t, l, "k", 1)
					store.lose.Store(int64(lost))
					res, err := l.Reserve(t.Context(), "k", 1) // the queue's turn for it comes in a second
					if want := name == "beside a queue"; err != nil || !res.Result.OK || (res.Result.Wait > 0) != want {
						t.Fatal(res, err)
					}
					served := make(chan time.Time, 1)
					go func() {
						waiters.Wait(t.Context(), "k")
						served <- time.Now()
					}()
					begin := time.Now()
					time.Sleep(980 * time.Millisecond) // fake time: the waiter has been promised the next turn
					if err := res.Cancel(t.Context()); err != nil {
						t.Error(err)
					}
					if at := (<-served).Sub(begin); at < time.Second || at > 1100*time.Millisecond {
						t.Errorf("the waiter was served after %v", at)
					}
					if r := allow(t, waiters, "k", 1); r.OK {
						t.Errorf("another has the turn of the waiter: %+v", r)
					}
					time.Sleep(time.Until(begin.Add(10 * time.Second))) // fake time
					if r, err := l.Peek(t.Context(), "k"); err != nil || r.Remaining == 0 || r.ResetAfter != 0 {
						t.Errorf("%+v, %v", r, err)
					}
				})
			})
		}
	}
}
