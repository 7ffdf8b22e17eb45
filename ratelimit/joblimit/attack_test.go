package joblimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/joblimit"
)

// A permit that is lost while the job waits for its rate: the job has not begun, goes
// back, and consumes nothing.
func TestPermitLostBeforeTheJob(t *testing.T) {
	for _, stay := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := batontest.New(t)
			rate := limiter(t, s, ratelimit.LeakyBucket(1, 10*time.Second, time.Hour))
			l := limit(t, joblimit.Config{Locks: locker(t, s), Running: 1, Rate: rate, Wait: time.Minute})
			if err := l.Run(t.Context(), "k", nothing); err != nil {
				t.Fatal(err)
			}
			run := l.Run
			if stay {
				run = l.RunWaiting
			}
			done, ran, began := make(chan error), false, time.Now()
			go func() {
				done <- run(t.Context(), "k", func(ctx context.Context) error {
					ran = true
					return ctx.Err()
				})
			}()
			time.Sleep(5 * time.Second) // the job has its permit, and waits for its turn
			s.Lose("k")
			err := <-done
			if stay {
				if err != nil || !ran {
					t.Errorf("a job that stays, after %s: %v", time.Since(began), err)
				}
				return
			}
			if ran {
				t.Error("a job ran without a permit")
			}
			if back := wantBack(t, err); !errors.Is(back, baton.ErrLost) {
				t.Errorf("it went back because: %v", back)
			}
			if err := l.Run(t.Context(), "k", nothing); err != nil || time.Since(began) > 10*time.Second {
				t.Errorf("the turn of the job that went back was consumed: after %s: %v", time.Since(began), err)
			}
		})
	}
}

// A queue ends the context of a job at its timeout, and counts an attempt. A job that has
// not begun goes back before.
func TestBackBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		l := limit(t, joblimit.Config{Locks: locker(t, s), Running: 1, Wait: time.Minute})
		slow := limit(t, joblimit.Config{Rate: limiter(t, s, ratelimit.TokenBucket(1, time.Minute, 1)), Prefix: "rate/", Wait: time.Hour})
		turns := limit(t, joblimit.Config{Rate: limiter(t, s, ratelimit.LeakyBucket(1, time.Minute, time.Hour)), Prefix: "turn/", Wait: time.Hour})
		for _, l := range []*joblimit.Limit{slow, turns} {
			if err := l.Run(t.Context(), "k", nothing); err != nil {
				t.Fatal(err)
			}
		}
		end := hold(t, l, "k")
		defer end()
		attempt := func(name string, l *joblimit.Limit) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			err := l.Run(ctx, "k", nothing)
			if ctx.Err() != nil {
				t.Errorf("%s: the job's context has ended: %v", name, err)
				return
			}
			wantBack(t, err)
		}
		attempt("permit", l)
		attempt("rate", slow)
		attempt("turn", turns)
		for _, op := range []batontest.Op{batontest.Acquire, batontest.Take} {
			fault := s.Delay(op, time.Hour) // the store hangs
			attempt(string(op)+" hangs", map[batontest.Op]*joblimit.Limit{batontest.Acquire: l, batontest.Take: slow}[op])
			fault.Stop()
		}
		fault := s.Fail(batontest.Acquire, driver.ErrUnavailable)
		attempt("store down", l)
		fault.Stop()
	})
}

// A key that another program uses with another number holds up no worker: jobs of other keys
// have it.
func TestOtherNumberGoesBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		l := limit(t, joblimit.Config{Locks: locker(t, s), Running: 1, Wait: time.Minute})
		wrong := limit(t, joblimit.Config{Locks: locker(t, s), Running: 2, Wait: time.Minute})
		end := hold(t, l, "k")
		defer end()
		began := time.Now()
		back := wantBack(t, wrong.Run(t.Context(), "k", nothing))
		if waited := time.Since(began); waited != 0 || back.After < time.Second {
			t.Errorf("the worker was held up for %s; the job comes again in %s", waited, back.After)
		}
	})
}

// A store that refuses everything, as one whose rights were changed, is no failure of jobs.
func TestStoreRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		l := limit(t, joblimit.Config{Locks: locker(t, s), Running: 1, Rate: limiter(t, s, ratelimit.TokenBucket(10, time.Second, 10))})
		for _, op := range []batontest.Op{batontest.Acquire, batontest.Take} {
			denied := errors.New("permission denied")
			fault := s.Fail(op, denied)
			if back := wantBack(t, l.Run(t.Context(), "k", nothing)); !errors.Is(back, denied) {
				t.Error(back)
			}
			fault.Stop()
		}
	})
}

// The error of a key that is much too long does not repeat it: queues keep errors.
func TestLongKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		long := strings.Repeat("x", 1<<20)
		for name, l := range map[string]*joblimit.Limit{
			"permits": limit(t, joblimit.Config{Locks: locker(t, s), Running: 1}),
			"rate":    limit(t, joblimit.Config{Rate: limiter(t, s, ratelimit.TokenBucket(10, time.Second, 10))}),
		} {
			err := l.Run(t.Context(), long, nothing)
			var key *baton.KeyError
			if !errors.As(err, &key) || len(err.Error()) > 1000 {
				t.Errorf("%s: %d bytes: %.200s", name, len(err.Error()), err)
			}
		}
	})
}

// A limit within itself, as of a middleware that was added twice, fails its jobs: they would
// wait for themselves for ever.
func TestWithinItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		locks := locker(t, s)
		outer := limit(t, joblimit.Config{Locks: locks, Running: 2})
		for _, inner := range []*joblimit.Limit{outer, limit(t, joblimit.Config{Locks: locks, Running: 1})} {
			for _, run := range []func(context.Context, string, func(context.Context) error) error{inner.Run, inner.RunWaiting} {
				err := outer.Run(t.Context(), "k", func(ctx context.Context) error { return run(ctx, "k", nothing) })
				var back *joblimit.BackError
				if !errors.Is(err, baton.ErrNested) || errors.As(err, &back) {
					t.Errorf("got %v", err)
				}
			}
		}
	})
}

// Programs with two numbers for one key, as while a fleet is replaced: never more jobs run
// than the higher number, and all jobs run.
func TestMixedFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		n := 0
		cfg := func() joblimit.Config {
			n++
			return joblimit.Config{Locks: locker(t, s), Running: 2 + 3*(n%2)} // 5, 2, 5, 2
		}
		took, backs, most := simulate(t, 4, 10, 400, cfg, func() { time.Sleep(100 * time.Millisecond) })
		if most > 5 || took > 2*time.Minute {
			t.Errorf("400 jobs in %s, %d times back, at most %d at a time", took, backs, most)
		}
	})
}

// Thousands of jobs of many keys whose permits are taken do not hold up that of a free key:
// half of the workers wait for none of them.
func TestFreeKeyAmongBusyOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		const keys = 50
		for i := range keys {
			s.Hold(fmt.Sprint("busy", i), "another process", baton.Permits(1, 1))
		}
		l := limit(t, joblimit.Config{Locks: locker(t, s), Running: 1})
		queue := make(chan string, 3000)
		for i := range 2000 {
			queue <- fmt.Sprint("busy", i%keys)
		}
		queue <- "free"
		began := time.Now()
		ran := make(chan time.Duration, 1)
		for range 10 { // workers
			go func() {
				for key := range queue {
					if err := l.Run(t.Context(), key, nothing); err == nil {
						ran <- time.Since(began)
					}
				}
			}()
		}
		if after := <-ran; after > 2*joblimit.DefaultWait {
			t.Errorf("it ran after %s", after)
		}
		close(queue)
	})
}

// A store that hangs when a job is done does not keep the job in its worker until its
// deadline: the queue would count a failure of a job that has done its work.
func TestSlowRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := batontest.New(t)
		rate := limiter(t, s, ratelimit.TokenBucket(10, time.Second, 10))
		l := limit(t, joblimit.Config{Locks: locker(t, s), Running: 1, Rate: rate})
		for _, op := range []batontest.Op{batontest.Release, batontest.Take} {
			for _, result := range []error{nil, &joblimit.BackError{Key: "inner", Err: baton.ErrHeld}} {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				var fault *batontest.Fault
				err := l.Run(ctx, "k", func(context.Context) error {
					fault = s.Delay(op, time.Hour).Optional() // nothing is given back of the rate if the job has run
					return result
				})
				if err != result || ctx.Err() != nil {
					t.Errorf("%s hangs, job returned %v: %v, %v", op, result, err, ctx.Err())
				}
				cancel()
				fault.Stop()
				time.Sleep(time.Minute) // until the permit has expired
			}
		}
	})
}
