package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// counting counts the requests to a store, by mode and answer.
type counting struct {
	limits.Store
	asked, refused, back atomic.Int64
}

func (c *counting) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	t, err := c.Store.Take(ctx, r)
	switch {
	case r.Mode == limits.GiveBack:
		c.back.Add(1)
	case err == nil && t.OK:
		c.asked.Add(1)
	default:
		c.refused.Add(1)
	}
	return t, err
}

// patience is a context that ends after d, like that of a client that hangs up, or
// one with a known deadline.
func patience(ctx context.Context, d time.Duration, deadline bool) (context.Context, context.CancelFunc) {
	if deadline {
		return context.WithTimeout(ctx, d)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := time.AfterFunc(d, cancel)
	return ctx, func() { stop.Stop(); cancel() }
}

// crowd lets callers wait again and again for the time length, each for at most d
// at a time, and returns how many were let in.
func crowd(t *testing.T, l *ratelimit.Limiter, length time.Duration, callers int, d time.Duration, deadline bool, key func(i int) string) int {
	t.Helper()
	var served atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for i := range callers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for time.Now().Before(end) {
				ctx, cancel := patience(t.Context(), d, deadline)
				_, err := l.Wait(ctx, key(i))
				cancel()
				switch {
				case err == nil:
					served.Add(1)
				case !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ratelimit.ErrRefused):
					t.Errorf("%v", err)
					return
				}
				time.Sleep(time.Duration(1+random.IntN(10)) * time.Millisecond) // fake time: until it comes again
			}
		})
	}
	wg.Wait()
	return int(served.Load())
}

func one(int) string { return "k" }

func each(i int) string { return fmt.Sprint("k", i) }

// A waiter that hangs up before its turn keeps a limit from others for hardly
// longer than a turn.
func TestHangingUpLocksNobodyOut(t *testing.T) {
	all := ratelimit.TokenBucket(10, time.Second, 1).Named("all").ForAll()
	for name, opts := range map[string][]ratelimit.Option{
		"for all":     {all},
		"and for one": {all, ratelimit.FixedWindow(1000, time.Second).Named("one")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, memstore.New(), opts...)
				crowd(t, l, 4*time.Second, 200, 50*time.Millisecond, false, each)
				if r := allow(t, l, "another", 1); !r.OK {
					if r.RetryAfter > 200*time.Millisecond {
						t.Errorf("after everybody has gone: %+v", r)
					}
					time.Sleep(r.RetryAfter) // fake time
					if r := allow(t, l, "another", 1); !r.OK {
						t.Errorf("when it was told: %+v", r)
					}
				}
				if n := l.LocalQueues(); n != 0 {
					t.Errorf("%d local queues are left", n)
				}
			})
		})
	}
}

// Many waiters that wait for less time than the queue is long are served at the
// full rate all the same.
func TestImpatientWaitersAreServed(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(10, time.Second, 1), ratelimit.TokenBucket(10, time.Second, 1).Named("all").ForAll(),
		ratelimit.LeakyBucket(10, time.Second, time.Minute), ratelimit.FixedWindow(1, 100*time.Millisecond),
	} {
		for _, deadline := range []bool{false, true} {
			key := one
			if limit.String() == "all: token-bucket 10 per 1s, burst 1" {
				key = each
			}
			t.Run(fmt.Sprint(limit, deadline), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := &counting{Store: memstore.New()}
					l := limiter(t, store, limit)
					if n := crowd(t, l, time.Minute, 40, 500*time.Millisecond, deadline, key); n < 590 || n > 605 {
						t.Errorf("%d were served in a minute at 10/s", n)
					}
					if yes, no := store.asked.Load(), store.refused.Load(); yes+no > 800 {
						t.Errorf("the store was asked %d times for 600 turns: %d yes, %d no", yes+no, yes, no)
					}
				})
			})
		}
	}
}

// The same if each has a limit of its own beside the one for all, and a local queue
// of its own.
func TestImpatientWaitersOfManyKeysAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.TokenBucket(10, time.Second, 1).Named("all").ForAll(), ratelimit.FixedWindow(1000, time.Second).Named("one"))
		if n := crowd(t, l, 20*time.Second, 40, 500*time.Millisecond, false, each); n < 190 || n > 205 {
			t.Errorf("%d were served in 20 s at 10/s", n)
		}
	})
}

// Two processes share a limit: each gets a part of it, and together they get all.
func TestTwoProcessesWait(t *testing.T) {
	for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(10, time.Second, 1), ratelimit.LeakyBucket(10, time.Second, time.Minute), ratelimit.SlidingLog(10, time.Second)} {
		t.Run(limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &counting{Store: memstore.New()}
				var n [2]int
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() { n[i] = crowd(t, limiter(t, store, limit), time.Minute, 20, 500*time.Millisecond, false, one) })
				}
				wg.Wait()
				if sum := n[0] + n[1]; sum < 580 || sum > 612 || n[0] < 100 || n[1] < 100 {
					t.Errorf("%v were served in a minute at 10/s", n)
				}
				if yes, no := store.asked.Load(), store.refused.Load(); yes+no > 2400 {
					t.Errorf("the store was asked %d times for 600 turns: %d yes, %d no", yes+no, yes, no)
				}
			})
		})
	}
}

// A distant store, whose requests take longer than a turn, serves at the full rate.
func TestWaitingForAStoreThatIsFar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &far{memstore.New(), 300 * time.Millisecond}
		l := limiter(t, store, ratelimit.TokenBucket(10, time.Second, 1))
		if n := crowd(t, l, time.Minute, 40, 20*time.Second, false, one); n < 560 || n > 650 {
			t.Errorf("%d were served in a minute at 10/s", n)
		}
		time.Sleep(time.Minute) // fake time: what was taken comes back
	})
}

// A process far from the store gets its part beside one that is near, of a limit
// that gives turns much faster than it can ask for one.
func TestFarBesideNear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var n [2]int
		var wg sync.WaitGroup
		for i, way := range []time.Duration{500 * time.Microsecond, 300 * time.Millisecond} {
			wg.Go(func() {
				n[i] = crowd(t, limiter(t, &far{store, way}, ratelimit.TokenBucket(100, time.Second, 1)), 10*time.Second, 20, 500*time.Millisecond, false, one)
			})
		}
		wg.Wait()
		if sum := n[0] + n[1]; sum < 950 || sum > 1060 || n[1] < 50 {
			t.Errorf("%v were served in 10 s at 100/s", n)
		}
		time.Sleep(time.Minute) // fake time: what was taken comes back
	})
}

// far is a store at a distance: each way takes the time way.
type far struct {
	limits.Store
	way time.Duration
}

func (f *far) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	time.Sleep(f.way) // fake time
	t, err := f.Store.Take(ctx, r)
	time.Sleep(f.way) // fake time
	return t, err
}

// A fast limit is served at its rate.
func TestManyTurnsPerMillisecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, &far{memstore.New(), time.Millisecond}, ratelimit.TokenBucket(10_000, time.Second, 1))
		start := time.Now()
		var wg sync.WaitGroup
		for range 5000 {
			wg.Go(func() {
				if _, err := l.Wait(t.Context(), "k"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took < 499*time.Millisecond || took > 600*time.Millisecond {
			t.Errorf("5000 were let in within %v at 10000/s", took)
		}
	})
}

// The turn of a waiter that leaves goes to the next one, at once; only the last
// turn is given back.
func TestATurnIsPassedOn(t *testing.T) {
	for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(1, time.Minute, 1), ratelimit.LeakyBucket(1, time.Minute, time.Hour)} {
		t.Run(limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &counting{Store: memstore.New()}
				l := limiter(t, store, limit)
				start := time.Now()
				allow(t, l, "k", 1)
				var leave []context.CancelFunc
				served := make(chan string, 3)
				for i := range 3 {
					ctx, cancel := context.WithCancel(t.Context())
					leave = append(leave, cancel)
					go func() {
						_, err := l.Wait(ctx, "k")
						served <- fmt.Sprint(i, " ", err == nil, " ", time.Since(start))
					}()
					synctest.Wait()
				}
				time.Sleep(59960 * time.Millisecond) // fake time: the turn of the first is taken
				if n := store.asked.Load(); n != 2 {
					t.Errorf("%d turns are taken, want that of Allow and one that comes soon", n)
				}
				leave[0]()
				if got := <-served; got != "0 false 59.96s" {
					t.Error(got)
				}
				if got := <-served; got != "1 true 1m0s" {
					t.Errorf("the turn of who has gone: %s", got)
				}
				if n := store.back.Load(); n != 0 {
					t.Errorf("%d were given back although there is somebody who waits", n)
				}
				time.Sleep(59960 * time.Millisecond) // fake time
				leave[2]()
				<-served
				synctest.Wait()
				if store.asked.Load() != 3 || store.back.Load() != 1 || l.LocalQueues() != 0 {
					t.Errorf("%d taken, %d given back, %d queues", store.asked.Load(), store.back.Load(), l.LocalQueues())
				}
				time.Sleep(50 * time.Millisecond) // fake time: when that turn comes
				if r := allow(t, l, "k", 1); !r.OK || r.Wait != 0 {
					t.Errorf("the last turn was given back, and: %+v", r)
				}
			})
		})
	}
}

// A waiter that comes while the last turn is given back gets that one: nothing is
// promised before it has come back.
func TestComingWhileATurnGoesBack(t *testing.T) {
	for _, every := range []time.Duration{50 * time.Millisecond, time.Minute} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, &slowBack{Store: memstore.New(), takes: 30 * time.Millisecond}, ratelimit.TokenBucket(1, every, 1))
				start := time.Now()
				allow(t, l, "k", 1)
				ctx, leave := context.WithCancel(t.Context())
				gone := make(chan error, 1)
				go func() {
					_, err := l.Wait(ctx, "k")
					gone <- err
				}()
				time.Sleep(every - 40*time.Millisecond) // fake time: the turn is taken
				leave()
				if err := <-gone; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if _, err := l.Wait(t.Context(), "k"); err != nil || time.Since(start) != every {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		})
	}
}

// Each turn has a cost: the turn of a waiter that wanted five goes to no waiter
// that wants one.
func TestTurnsOfDifferentCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.TokenBucket(100, time.Second, 10).Named("bucket"), ratelimit.FixedWindow(1000, time.Hour).Named("hour").PerCall())
		start := time.Now()
		allow(t, l, "k", 10)
		var mu sync.Mutex
		var served []string
		var wg sync.WaitGroup
		var leave context.CancelFunc
		for i, n := range []int64{5, 1, 5, 10, 1} {
			ctx := t.Context()
			if i == 0 {
				ctx, leave = context.WithCancel(ctx)
			}
			wg.Go(func() {
				_, err := l.WaitN(ctx, "k", n)
				mu.Lock()
				defer mu.Unlock()
				served = append(served, fmt.Sprint(i, " ", err == nil, " ", time.Since(start)))
			})
			synctest.Wait()
		}
		time.Sleep(5 * time.Millisecond) // fake time
		leave()
		wg.Wait()
		// The turn at 50 ms goes to the other waiter of five, and those behind come
		// sooner.
		if want := []string{"0 false 5ms", "2 true 50ms", "1 true 60ms", "3 true 160ms", "4 true 170ms"}; !slices.Equal(served, want) {
			t.Errorf("%q, want %q", served, want)
		}
		if r, err := l.Peek(t.Context(), "k"); err != nil || r.Limits()[1].Remaining != 995 || l.LocalQueues() != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// Raising a limit lets waiters in.
func TestLimitsChangeWhileOneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.FixedWindow(1, 24*time.Hour))
		allow(t, l, "k", 1)
		start := time.Now()
		served := make(chan error, 1)
		go func() {
			_, err := l.Wait(t.Context(), "k")
			served <- err
		}()
		synctest.Wait()
		if err := l.SetLimits(ratelimit.FixedWindow(2, 24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// What would wait for longer than is acceptable, including the waiters before it,
// is refused at once; and what another limit refuses does not wait.
func TestWaitWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), ratelimit.LeakyBucket(1, time.Second, 5*time.Second).Named("queue"), ratelimit.FixedWindow(7, time.Hour).Named("hour"))
		start := time.Now()
		ask := func(longest time.Duration) string {
			r, err := l.WaitWithin(t.Context(), "k", 1, longest)
			if (err == nil) != r.OK || err != nil && !errors.Is(err, ratelimit.ErrRefused) || r.Wait != 0 || r.Key != "k" || r.Cost != 1 {
				t.Errorf("%+v, %v", r, err)
			}
			return fmt.Sprint(r.OK, " ", time.Since(start), " ", r.RetryAfter, " ", r.Limits()[0].OK, r.Limits()[1].OK)
		}
		var wg sync.WaitGroup
		for i := range 5 { // they fill the queue
			wg.Go(func() {
				if got, want := ask(-1), fmt.Sprint("true ", time.Duration(i)*time.Second, " 0s true true"); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			})
			synctest.Wait()
		}
		if got := ask(-1); got != "false 0s 1s false true" {
			t.Errorf("the queue is full: %s", got)
		}
		if got := ask(3 * time.Second); got != "false 0s 2s false true" {
			t.Errorf("it comes too late: %s", got)
		}
		time.Sleep(1500 * time.Millisecond) // fake time
		if got := ask(3 * time.Second); got != "false 1.5s 500ms false true" {
			t.Errorf("it comes too late: %s", got)
		}
		wg.Go(func() {
			if got := ask(3500 * time.Millisecond); got != "true 5s 0s true true" {
				t.Errorf("just soon enough: %s", got)
			}
		})
		wg.Wait()
		time.Sleep(5 * time.Second) // fake time
		if got := ask(-1); got != "true 10s 0s true true" {
			t.Errorf("the last of the hour: %s", got)
		}
		if got := ask(time.Hour); got[:9] != "false 10s" || got[len(got)-10:] != "true false" && got[len(got)-11:] != "false false" {
			t.Errorf("what the other limit refuses: %s", got)
		}
		if l.LocalQueues() != 0 {
			t.Error("the queue is left")
		}
	})
}

// Whatever the costs, however long waiters wait and whichever leave: the limit is
// never exceeded, all that stay are served, in the order in which they came among
// those that want as much, and when all have gone nothing is missing.
func TestQueuesAtRandom(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			opts := [][]ratelimit.Option{
				{ratelimit.TokenBucket(20, time.Second, 5)},
				{ratelimit.LeakyBucket(20, time.Second, 5*time.Second)},
				{ratelimit.LeakyBucket(20, time.Second, 5*time.Second).Ahead(5)},
				{ratelimit.TokenBucket(20, time.Second, 5).Named("a"), ratelimit.SlidingLog(15, time.Second).Named("b")},
				{ratelimit.SlidingLog(20, time.Second)},
			}[seed%5]
			store := limits.Store(memstore.New())
			if seed%2 == 1 {
				store = &far{store, time.Duration(random.IntN(60)) * time.Millisecond}
			}
			l := limiter(t, store, opts...)
			type let struct {
				number int
				n      int64
				at     time.Time
			}
			var mu sync.Mutex
			var in []let
			stay, served := 0, 0
			var wg sync.WaitGroup
			for number := range 150 {
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond) // fake time
				if s := l.Unbalanced(); s != "" {
					t.Fatalf("seed %d: %s", seed, s)
				}
				n, stays, d := int64(1+random.IntN(3)), random.IntN(3) > 0, time.Duration(random.IntN(2000))*time.Millisecond
				if stays {
					stay++
				}
				wg.Go(func() {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if !stays {
						ctx, cancel = patience(ctx, d, d%2 == 0)
					}
					defer cancel()
					_, err := l.WaitN(ctx, "k", n)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil:
						in = append(in, let{number, n, time.Now()})
						if stays {
							served++
						}
					case stays:
						t.Errorf("seed %d, number %d: %v", seed, number, err)
					}
				})
			}
			wg.Wait()
			if stay != served {
				t.Errorf("seed %d: %d of %d who stayed were served", seed, served, stay)
			}
			for i, x := range in {
				sum := int64(0)
				for _, y := range in[i:] {
					if y.at.Sub(x.at) >= time.Second {
						break
					}
					sum += y.n
				}
				if sum > 25+5 { // a second, what may come at once, and what the distance adds
					t.Errorf("seed %d: %d within a second", seed, sum)
				}
			}
			synctest.Wait()
			time.Sleep(2 * time.Second) // fake time: promised turns are over
			if r, err := l.Peek(t.Context(), "k"); err != nil || r.ResetAfter != 0 || l.LocalQueues() != 0 {
				t.Errorf("seed %d: after all %+v, %v, %d queues", seed, r, err, l.LocalQueues())
			}
		})
	}
}
