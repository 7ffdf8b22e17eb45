package joblimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/memstore"
)

func locker(t *testing.T, s driver.Locks) *baton.Locker {
	t.Helper()
	locks, err := baton.New(s, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

func limiter(t *testing.T, s *batontest.Store, l ratelimit.Limit) *ratelimit.Limiter {
	t.Helper()
	rate, err := ratelimit.New(s, l)
	if err != nil {
		t.Fatal(err)
	}
	return rate
}

func limit(t *testing.T, cfg joblimit.Config) *joblimit.Limit {
	t.Helper()
	l, err := joblimit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func nothing(context.Context) error { return nil }

// hold runs a job of the key until the test calls what hold returns.
func hold(t *testing.T, l *joblimit.Limit, key string) (end func()) {
	t.Helper()
	begun, stop, ended := make(chan bool), make(chan bool), make(chan error)
	go func() {
		ended <- l.Run(context.Background(), key, func(context.Context) error { close(begun); <-stop; return nil })
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatalf("the job that holds the permit: %v", err)
	}
	return func() {
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// wantBack returns the *BackError that err has to be.
func wantBack(t *testing.T, err error) *joblimit.BackError {
	t.Helper()
	var back *joblimit.BackError
	if !errors.As(err, &back) {
		t.Fatalf("got %v, want a BackError", err)
	}
	if back.After < 0 || back.Key == "" || back.Err == nil {
		t.Errorf("an incomplete BackError: %+v", back)
	}
	return back
}

func TestNewRefuses(t *testing.T) {
	s := batontest.New(t)
	locks := locker(t, s)
	var field *baton.ConfigError
	for _, cfg := range []joblimit.Config{
		{}, {Locks: locks}, {Running: 1}, {Locks: locks, Running: -1}, {Locks: locks, Running: baton.MaxPermits + 1}, {Locks: locks, Running: 1, Longest: -1},
	} {
		if _, err := joblimit.New(cfg); !errors.As(err, &field) {
			t.Errorf("New(%+v): %v", cfg, err)
		}
	}
	if _, err := joblimit.New(joblimit.Config{Locks: locker(t, noPermits{s}), Running: 1}); !errors.Is(err, baton.ErrUnsupported) {
		t.Errorf("a store without permits: %v", err)
	}
}

type noPermits struct{ driver.Locks }

func (n noPermits) Traits() driver.Traits {
	t := n.Locks.Traits()
	t.Permits = false
	return t
}

// A job without a permit waits for Wait in its worker; the ones beside it go back at once.
func TestWaitsInTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limit(t, joblimit.Config{Locks: locker(t, batontest.New(t)), Running: 1, Wait: time.Second})
		end := hold(t, l, "k")
		began := time.Now()
		errs := make(chan error, 10)
		for range cap(errs) {
			go func() { errs <- l.Run(t.Context(), "k", nothing) }()
		}
		for range cap(errs) - 1 {
			back := wantBack(t, <-errs)
			if waited := time.Since(began); waited != 0 || !errors.Is(back, baton.ErrHeld) {
				t.Errorf("a job beside the one that waits came back after %s: %v", waited, back)
			}
		}
		wantBack(t, <-errs)
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("the job that waits came back after %s", waited)
		}

		go func() { errs <- l.Run(t.Context(), "k", nothing) }()
		time.Sleep(time.Second / 2)
		end()
		if err := <-errs; err != nil {
			t.Errorf("a permit became free while a job waited: %v", err)
		}
	})
}

func TestUnlimitedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limit(t, joblimit.Config{Locks: locker(t, batontest.New(t)), Running: 1, Wait: -1})
		end := hold(t, l, "")
		defer end()
		if err := l.Run(t.Context(), "", nothing); err != nil {
			t.Error(err)
		}
	})
}

// The context of a job ends with its permit, and says why.
func TestPermitLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		l := limit(t, joblimit.Config{Locks: locker(t, s), Running: 2, Prefix: "jobs/"})
		failed := errors.New("stopped")
		for _, result := range []error{failed, nil} {
			err := l.Run(t.Context(), "k", func(ctx context.Context) error {
				if lease := joblimit.Lease(ctx); lease == nil || lease.Key() != "jobs/k" || lease.Token() <= 0 {
					t.Errorf("the lease of the job: %v", lease)
				}
				s.Lose("jobs/k")
				<-ctx.Done()
				var lost *baton.LostError
				if cause := context.Cause(ctx); !errors.As(cause, &lost) || lost.Key != "jobs/k" {
					t.Errorf("the cause is %v", cause)
				}
				return result
			})
			if !errors.Is(err, result) || (result != nil) != errors.Is(err, baton.ErrLost) {
				t.Errorf("a job that returned %v after the loss: %v", result, err)
			}
		}
		if joblimit.Lease(t.Context()) != nil {
			t.Error("a lease outside of a job")
		}
	})
}

func TestPanicReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limit(t, joblimit.Config{Locks: locker(t, batontest.New(t)), Running: 1, Wait: -1})
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = l.Run(t.Context(), "k", func(context.Context) error { panic("x") })
		}()
		if err := l.Run(t.Context(), "k", nothing); err != nil {
			t.Errorf("after a panic: %v", err)
		}
	})
}

// A store that fails sends jobs back, and RunWaiting waits for it.
func TestStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		for name, l := range map[string]*joblimit.Limit{
			"permits": limit(t, joblimit.Config{Locks: locker(t, s), Running: 1}),
			"rate":    limit(t, joblimit.Config{Rate: limiter(t, s, ratelimit.TokenBucket(10, time.Second, 10))}),
		} {
			op := map[string]batontest.Op{"permits": batontest.Acquire, "rate": batontest.Take}[name]
			fault := s.Fail(op, driver.ErrUnavailable)
			back := wantBack(t, l.Run(t.Context(), "k", nothing))
			if !errors.Is(back, baton.ErrUnavailable) || back.After < time.Second {
				t.Errorf("%s: %v", name, back)
			}
			done := make(chan error)
			go func() { done <- l.RunWaiting(t.Context(), "k", nothing) }()
			time.Sleep(time.Minute)
			fault.Stop()
			if err := <-done; err != nil {
				t.Errorf("%s: a job that waits, after the outage: %v", name, err)
			}
		}
	})
}

func TestRunWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		l := limit(t, joblimit.Config{Locks: locker(t, s), Running: 1, Rate: limiter(t, s, ratelimit.TokenBucket(1, time.Minute, 1))})
		end := hold(t, l, "k")
		began := time.Now()
		done := make(chan error)
		go func() { done <- l.RunWaiting(t.Context(), "k", nothing) }()
		time.Sleep(10 * time.Second)
		end()
		if err := <-done; err != nil || time.Since(began) < time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}

		reason := errors.New("shutdown")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { done <- l.RunWaiting(ctx, "k", nothing) }()
		time.Sleep(10 * time.Second)
		cancel(reason)
		if err := <-done; !errors.Is(err, reason) {
			t.Errorf("a wait whose context ended: %v", err)
		}
	})
}

// A job whose key an override blocks goes back: the override ends.
func TestBlockedByAnOverride(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate, err := ratelimit.New(memstore.New(), ratelimit.TokenBucket(5, time.Minute, 5), ratelimit.Overridable())
		if err != nil {
			t.Fatal(err)
		}
		l := limit(t, joblimit.Config{Rate: rate})
		if err := rate.SetOverride(t.Context(), "k", ratelimit.Override{}, time.Hour); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for err := error(&joblimit.BackError{}); err != nil; {
			if err = l.Run(t.Context(), "k", nothing); err != nil {
				time.Sleep(wantBack(t, err).After)
			}
		}
		if took := time.Since(began); took < time.Hour || took > time.Hour+5*joblimit.DefaultLongest {
			t.Errorf("the job ran after %v", took)
		}
	})
}

// What no repetition helps is an error of the job.
func TestErrorsThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		l := limit(t, joblimit.Config{Locks: locker(t, s), Running: 1})
		var back *joblimit.BackError
		var key *baton.KeyError
		if err := l.Run(t.Context(), "a\nb", nothing); !errors.As(err, &key) || errors.As(err, &back) {
			t.Errorf("a bad key: %v", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("shutdown")
		cancel(reason)
		if err := l.Run(ctx, "k", nothing); !errors.Is(err, reason) || !errors.Is(err, context.Canceled) || errors.As(err, &back) {
			t.Errorf("a context that has ended: %v", err)
		}
		wrong := limit(t, joblimit.Config{Locks: locker(t, s), Running: 2})
		end := hold(t, l, "k")
		defer end()
		var capacity *baton.CapacityError
		if back := wantBack(t, wrong.Run(t.Context(), "k", nothing)); !errors.As(back, &capacity) {
			t.Errorf("another number of permits: %v", back)
		}
	})
}

// A job that an inner limit sends back consumes nothing of the outer rate.
func TestLimitsNest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		locks := locker(t, s)
		rate := limiter(t, s, ratelimit.TokenBucket(1, time.Hour, 3))
		outer := limit(t, joblimit.Config{Locks: locks, Running: 5, Rate: rate, Prefix: "outer/"})
		inner := limit(t, joblimit.Config{Locks: locks, Running: 1, Prefix: "inner/", Wait: -1})
		both := func(ctx context.Context) error {
			return outer.Run(ctx, "k", func(ctx context.Context) error { return inner.Run(ctx, "k", nothing) })
		}
		end := hold(t, inner, "k")
		for range 10 {
			wantBack(t, both(t.Context()))
		}
		end()
		for range 3 {
			if err := both(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if back := wantBack(t, both(t.Context())); !errors.Is(back, ratelimit.ErrRefused) || back.After < 20*time.Minute {
			t.Errorf("above the rate: %v", back)
		}
	})
}

func TestLeakyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		l := limit(t, joblimit.Config{Rate: limiter(t, s, ratelimit.LeakyBucket(1, time.Second, time.Hour)), Wait: 1500 * time.Millisecond})
		began := time.Now()
		for i := range 3 {
			if err := l.Run(t.Context(), "k", nothing); err != nil || time.Since(began) != time.Duration(i)*time.Second {
				t.Fatalf("job %d after %s: %v", i, time.Since(began), err)
			}
		}
		s.Exhaust("k", time.Hour)
		wantBack(t, l.Run(t.Context(), "k", nothing))
	})
}

// simulate runs a queue of jobs with workers of several processes until all have run, and
// returns how long that took, how often jobs went back, and how many ran at a time.
func simulate(t *testing.T, processes, workers, jobs int, cfg func() joblimit.Config, work func()) (took time.Duration, backs, most int) {
	t.Helper()
	queue := make(chan int, jobs)
	for i := range jobs {
		queue <- i
	}
	var mu sync.Mutex
	running, left := 0, jobs
	begun := time.Now()
	for range processes {
		l := limit(t, cfg())
		for range workers {
			go func() {
				for i := range queue {
					err := l.Run(context.Background(), "k", func(context.Context) error {
						mu.Lock()
						running++
						most = max(most, running)
						mu.Unlock()
						work()
						mu.Lock()
						running--
						mu.Unlock()
						return nil
					})
					mu.Lock()
					var back *joblimit.BackError
					switch {
					case errors.As(err, &back):
						backs++
						time.AfterFunc(back.After, func() { queue <- i })
					case err != nil:
						t.Errorf("job %d: %v", i, err)
						fallthrough
					default:
						if left--; left == 0 {
							took = time.Since(begun)
							close(queue)
						}
					}
					mu.Unlock()
				}
			}()
		}
	}
	time.Sleep(24 * time.Hour) // of the bubble
	synctest.Wait()
	if left > 0 {
		t.Errorf("%d jobs never ran", left)
	}
	return took, backs, most
}

// Jobs that went back by the thousand come again spread over the time in which they can
// run: few go back again and again, and the permits, or the rate, are used.
func TestSpread(t *testing.T) {
	const processes, workers = 10, 10
	for _, c := range []struct {
		name string
		jobs int
		cfg  func(*batontest.Store) joblimit.Config
		work time.Duration
		best time.Duration // what the limit allows
		most int
	}{
		{"permits, short jobs", 1500, func(s *batontest.Store) joblimit.Config {
			return joblimit.Config{Locks: locker(t, s), Running: 5}
		}, 50 * time.Millisecond, 15 * time.Second, 5},
		{"permits, long jobs", 200, func(s *batontest.Store) joblimit.Config {
			return joblimit.Config{Locks: locker(t, s), Running: 5, Longest: 10 * time.Minute}
		}, 10 * time.Second, 400 * time.Second, 5},
		{"rate", 1500, func(s *batontest.Store) joblimit.Config {
			return joblimit.Config{Rate: limiter(t, s, ratelimit.TokenBucket(50, time.Second, 50))}
		}, time.Millisecond, 29 * time.Second, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := batontest.New(t)
				took, backs, most := simulate(t, processes, workers, c.jobs, func() joblimit.Config { return c.cfg(s) }, func() { time.Sleep(c.work) })
				figures := fmt.Sprintf("%d jobs in %s, the limit allows %s; %.1f times back for each job; at most %d at a time",
					c.jobs, took.Round(time.Second), c.best, float64(backs)/float64(c.jobs), most)
				t.Log(figures)
				if most > c.most || took > 2*c.best || backs > 15*c.jobs {
					t.Error(figures)
				}
			})
		})
	}
}
