package ratelimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
)

// A process that decides alone has its share of the limit as it is overridden, until the
// override ends.
func TestOverrideWhileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeeper()
		l := limiter(t, store, ratelimit.SlidingLog(10, 24*time.Hour), ratelimit.FailLocal(2, 50*time.Millisecond), ratelimit.Overridable())
		store.set(t, limits.Override{Key: "k", N: 100}, time.Minute)
		capacity(t, l, "k")
		down := fmt.Errorf("down: %w", driver.ErrUnavailable)
		store.takeErr.Store(&down)
		store.lookErr.Store(&down)
		n := 0
		for range 80 {
			if r := allow(t, l, "k", 1); r.By != ratelimit.ByLocal {
				t.Fatalf("%+v", r)
			} else if r.OK {
				n++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n != 50 {
			t.Errorf("%d of a share of 50 were allowed", n)
		}
		time.Sleep(time.Minute)
		if r := allow(t, l, "x", 1); r.By != ratelimit.ByLocal || r.Remaining != 4 {
			t.Errorf("%+v", r)
		}
		if r := allow(t, l, "k", 1); r.OK || r.Limits()[0].Overridden {
			t.Errorf("after the end: %+v", r)
		}
	})
}

// The first look holds decisions up no longer than the store may take for an answer.
func TestFirstLookOfOverridesHangs(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []ratelimit.Option
		within time.Duration // of the caller
		took   time.Duration
		ok     bool
	}{
		"a caller with a deadline":    {nil, 100 * time.Millisecond, 100 * time.Millisecond, false},
		"a caller without one":        {nil, time.Hour, 5 * time.Second, true},
		"open":                        {[]ratelimit.Option{ratelimit.FailOpen(50 * time.Millisecond)}, time.Hour, 50 * time.Millisecond, true},
		"local, shorter than allowed": {[]ratelimit.Option{ratelimit.FailLocal(1, time.Minute)}, 10 * time.Millisecond, 10 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newKeeper()
				store.hang.Store(true)
				l := limiter(t, store, append([]ratelimit.Option{ratelimit.SlidingWindow(5, time.Minute), ratelimit.Overridable()}, c.opts...)...)
				start := time.Now()
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), c.within)
						defer cancel()
						r, err := l.Allow(ctx, "k")
						if took := time.Since(start); took != c.took || r.OK != c.ok || c.ok != (err == nil) || err != nil && !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("after %v, want %v: %+v, %v", took, c.took, r, err)
						}
					})
				}
				wg.Wait()
				if c.ok {
					start = time.Now()
					allow(t, l, "k", 1)
					if took := time.Since(start); took != 0 {
						t.Errorf("the next decision took %v", took)
					}
				}
				time.Sleep(10 * time.Second) // the look ends
			})
		})
	}
}

// A store whose looks fail is told once, and asked seldom; what is known goes on.
func TestLooksForOverridesFail(t *testing.T) {
	for name, err := range map[string]error{
		"down": fmt.Errorf("down: %w", driver.ErrUnavailable), "older tables": fmt.Errorf("older: %w", errors.ErrUnsupported),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newKeeper()
				var log bytes.Buffer
				l := limiter(t, store, ratelimit.SlidingWindow(5, time.Hour), ratelimit.Overridable(), ratelimit.Logger(slog.New(slog.NewTextHandler(&log, nil))))
				store.set(t, limits.Override{Key: "k", N: 50}, time.Minute)
				capacity(t, l, "k")
				store.lookErr.Store(&err)
				looks := store.looks.Load()
				for range 580 {
					time.Sleep(100 * time.Millisecond)
					if got := capacity(t, l, "k"); got != 50 {
						t.Fatalf("%d are allowed", got)
					}
				}
				if n := store.looks.Load() - looks; n < 5 || n > 13 {
					t.Errorf("%d looks in 58 s, all of which failed", n)
				}
				time.Sleep(2 * time.Second)
				if got := capacity(t, l, "k"); got != 5 {
					t.Errorf("%d are allowed after the end", got)
				}
				synctest.Wait() // for who writes the log
				if n := strings.Count(log.String(), "cannot be looked up"); n != 1 {
					t.Errorf("told %d times: %s", n, &log)
				}
				store.lookErr.Store(nil)
				store.set(t, limits.Override{Key: "k", N: 7}, time.Hour)
				time.Sleep(10 * time.Second)
				if got := settled(t, l, "k"); got != 7 {
					t.Errorf("%d are allowed when the store is back", got)
				}
			})
		})
	}
}
