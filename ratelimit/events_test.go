package ratelimit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// told collects events.
type told struct {
	mu                 sync.Mutex
	decided            []ratelimit.DecisionEvent
	degraded, restored []ratelimit.FallbackEvent
	contexts           []context.Context
}

func (o *told) observe() ratelimit.Option {
	return ratelimit.Observe(&ratelimit.Events{
		Decided: func(ctx context.Context, e ratelimit.DecisionEvent) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.decided, o.contexts = append(o.decided, e), append(o.contexts, ctx)
		},
		Degraded: func(_ context.Context, e ratelimit.FallbackEvent) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.degraded = append(o.degraded, e)
		},
		Restored: func(_ context.Context, e ratelimit.FallbackEvent) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.restored = append(o.restored, e)
		},
	})
}

// last is the only event since the last call.
func (o *told) last(t *testing.T) ratelimit.DecisionEvent {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.decided) != 1 {
		t.Fatalf("%d events for one call: %+v", len(o.decided), o.decided)
	}
	e := o.decided[0]
	o.decided = nil
	return e
}

// Each call that asks is told once, as it ended.
func TestEveryDecisionIsToldOnce(t *testing.T) {
	for name, limit := range map[string]ratelimit.Limit{
		"quick":   ratelimit.TokenBucket(1, time.Minute, 1),
		"asking":  ratelimit.SlidingLog(1, time.Minute),
		"queuing": ratelimit.LeakyBucket(1, time.Minute, time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				type value struct{}
				ctx := context.WithValue(t.Context(), value{}, 1)
				var o told
				store := &moody{Store: memstore.New()}
				l := limiter(t, store.Store, limit, o.observe())
				check := func(operation string, n int64, ok bool, took time.Duration) {
					t.Helper()
					e := o.last(t)
					if e.Operation != operation || e.Result.Key != "k" || e.Result.Cost != n || e.Result.OK != ok || e.Took < took || e.Took > took+100*time.Millisecond || e.Err != nil {
						t.Errorf("want %s of %d, %v after %v: %+v", operation, n, ok, took, e)
					}
					if o.contexts[len(o.contexts)-1].Value(value{}) == nil {
						t.Error("the context is not the caller's")
					}
				}
				l.Allow(ctx, "k")
				check("allow", 1, true, 0)
				l.AllowN(ctx, "k", 7)
				check("allow", 7, false, 0)
				if name != "queuing" {
					l.Allowed(ctx, "k")
					check("allow", 1, false, 0)
				}
				l.Forget(ctx, "k")
				res, _ := l.Reserve(ctx, "k", 1)
				check("reserve", 1, true, 0)
				l.Peek(ctx, "k")
				res.Cancel(ctx)
				l.ReserveWithin(ctx, "k", 1, time.Hour)
				check("reserve", 1, true, 0)
				l.Wait(ctx, "k")
				check("wait", 1, true, time.Minute)
				if _, err := l.WaitN(ctx, "k", 7); !errors.Is(err, ratelimit.ErrRefused) {
					t.Error(err)
				}
				check("wait", 7, false, 0)
				l.WaitWithin(ctx, "k", 1, time.Second)
				check("wait", 1, false, 0)
				short, cancel := context.WithCancel(ctx)
				cancel()
				for _, call := range []func() error{
					func() error { return second(l.Allow(short, "k")) },
					func() error { return second(l.Wait(short, "k")) },
					func() error { return second(l.Reserve(short, "k", 1)) },
				} {
					err := call()
					if e := o.last(t); err == nil || !errors.Is(e.Err, context.Canceled) || e.Result.Key != "k" || e.Result.Cost != 1 || e.Result.OK {
						t.Errorf("%+v for %v", e, err)
					}
				}
				for _, key := range []string{"", "k"} {
					l.AllowN(ctx, key, int64(len(key))-1)
					l.Reserve(ctx, key, 0)
					l.WaitN(ctx, key, 0)
				}
				l.Allow(ctx, "")
				l.Reserve(ctx, "", 1)
				l.Wait(ctx, "")
				if len(o.decided) != 0 {
					t.Errorf("calls that were refused for bad input are told: %+v", o.decided)
				}
			})
		})
	}
}

func TestBatchesAreToldByCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o told
		l := limiter(t, memstore.New(), ratelimit.SlidingWindow(20, time.Minute), ratelimit.InBatches(10, time.Second, 1, 10), o.observe())
		for i := range 25 {
			l.Allow(t.Context(), "k")
			if e := o.last(t); e.Result.OK != (i < 20) || e.Store != "memory" || e.Operation != "allow" {
				t.Errorf("%d: %+v", i, e)
			}
		}
	})
}

// What the policy for a store that fails decides has a begin and an end, for a key
// or for all.
func TestFallbackBeginsAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o told
		var logged bytes.Buffer
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.SlidingWindow(1000, time.Minute), ratelimit.FailOpen(50*time.Millisecond), o.observe(),
			ratelimit.Logger(slog.New(slog.NewTextHandler(&logged, nil))))
		check := func(degraded, restored string) {
			t.Helper()
			keys := func(all []ratelimit.FallbackEvent) string {
				var keys []string
				for _, e := range all {
					keys = append(keys, "<"+e.Key+">")
				}
				return strings.Join(keys, "")
			}
			if d, r := keys(o.degraded), keys(o.restored); d != degraded || r != restored {
				t.Errorf("degraded %s and restored %s, want %s and %s", d, r, degraded, restored)
			}
		}
		store.fail(driver.ErrUnavailable)
		for range 4 {
			allow(t, l, "a", 1)
		}
		check("", "")
		allow(t, l, "a", 1)
		check("<a>", "")
		for range 10 {
			allow(t, l, "a", 1)
		}
		check("<a>", "")
		allow(t, l, "b", 1)
		check("<a><b>", "")
		allow(t, l, "c", 1)
		check("<a><b><>", "")
		time.Sleep(time.Second) // fake time: until the store is asked again
		allow(t, l, "d", 1)
		check("<a><b><>", "")
		store.err.Store(nil)
		time.Sleep(time.Second)
		allow(t, l, "d", 1)
		check("<a><b><>", "<a><b><>")
		allow(t, l, "d", 1)
		check("<a><b><>", "<a><b><>")
		if e := o.degraded[0]; e.By != ratelimit.ByOpen || !errors.Is(e.Err, driver.ErrUnavailable) || e.Lasted != 0 {
			t.Errorf("%+v", e)
		}
		if e := o.restored[0]; e.By != ratelimit.ByOpen || e.Err != nil || e.Lasted != 2*time.Second {
			t.Errorf("%+v", e)
		}
		if s := logged.String(); strings.Count(s, "level=WARN") != 3 || strings.Count(s, "level=INFO") != 3 || strings.Count(s, "\n") != 6 || !strings.Contains(s, "limit.key=a limit.by=open") {
			t.Errorf("logged:\n%s", s)
		}
	})
}

// A caller that leaves before the store is judged ends no event's context.
func TestFallbackIsToldAfterItsCallersLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		store.stall.Store(true)
		var ended []error
		l := limiter(t, store, ratelimit.SlidingWindow(1000, time.Minute), ratelimit.FailOpen(time.Second),
			ratelimit.Observe(&ratelimit.Events{Degraded: func(ctx context.Context, _ ratelimit.FallbackEvent) { ended = append(ended, ctx.Err()) }}))
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			l.Allow(ctx, "k")
			cancel()
		}
		time.Sleep(time.Second) // fake time: until all are judged
		synctest.Wait()
		if len(ended) != 1 || ended[0] != nil {
			t.Errorf("told with contexts that have ended so: %v", ended)
		}
	})
}

// The store answers while a slow observer is told that it does not: the other observer
// is told of the begin before the end, too, and no call waits for the slow one.
func TestBeginIsToldBeforeItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		slow := make(chan struct{})
		var mu sync.Mutex
		var order []string
		note := func(what string) func(context.Context, ratelimit.FallbackEvent) {
			return func(context.Context, ratelimit.FallbackEvent) {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, what)
			}
		}
		l := limiter(t, store, ratelimit.SlidingWindow(1000, time.Minute), ratelimit.FailOpen(time.Second),
			ratelimit.Observe(&ratelimit.Events{Degraded: func(context.Context, ratelimit.FallbackEvent) { <-slow }}),
			ratelimit.Observe(&ratelimit.Events{Degraded: note("begins"), Restored: note("ends")}))
		store.fail(driver.ErrUnavailable)
		last := make(chan struct{})
		go func() {
			defer close(last)
			for range 5 {
				l.Allow(t.Context(), "k")
			}
		}()
		synctest.Wait() // for the slow observer
		store.err.Store(nil)
		time.Sleep(2 * time.Second) // until the store may be asked again
		allow(t, l, "k", 1)
		close(slow)
		<-last
		if !slices.Equal(order, []string{"begins", "ends"}) {
			t.Errorf("told %q", order)
		}
	})
}

// In a storm of calls every call is told once, and every begin of a fallback ends.
func TestEventsAgreeInAStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o told
		store := &moody{Store: memstore.New()}
		l := limiter(t, store, ratelimit.TokenBucket(1000, time.Second, 10).Named("n"), ratelimit.FailLocal(2, 20*time.Millisecond), o.observe())
		const workers, calls = 16, 300
		var failures atomic.Int64
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range calls {
					switch {
					case w == 0 && i%50 == 24:
						store.err.Store(nil)
					case w == 0 && i%50 == 49:
						store.fail(driver.ErrUnavailable)
					}
					key := string(rune('a' + (w+i)%4))
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
					var err error
					switch i % 3 {
					case 0:
						_, err = l.Allow(ctx, key)
					case 1:
						_, err = l.Reserve(ctx, key, 2)
					default:
						_, err = l.Wait(ctx, key)
					}
					cancel()
					if err != nil && !errors.Is(err, ratelimit.ErrRefused) {
						failures.Add(1)
					}
				}
			})
		}
		wg.Wait()
		store.err.Store(nil)
		time.Sleep(time.Second) // fake time: until the store may be asked again
		allow(t, l, "a", 1)
		synctest.Wait()
		o.mu.Lock()
		defer o.mu.Unlock()
		failed := int64(0)
		for _, e := range o.decided {
			if e.Err != nil {
				failed++
			}
		}
		if n := len(o.decided); n != workers*calls+1 || failed != failures.Load() || len(o.degraded) == 0 || len(o.degraded) != len(o.restored) {
			t.Errorf("%d events of %d calls, %d failures of %d, %d begins and %d ends", n, workers*calls+1, failed, failures.Load(), len(o.degraded), len(o.restored))
		}
	})
}

func TestDecisionsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		l := limiter(t, memstore.New(), ratelimit.SlidingLog(1, time.Minute).Named("calls"),
			ratelimit.Logger(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		allow(t, l, "k", 1)
		allow(t, l, "k", 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.Allow(ctx, "a\nb c")
		l.Allow(ctx, "k")
		for i, want := range []string{
			`msg="limit decided" limit.key=k limit.cost=1 limit.name=calls limit.store=memory operation=allow took=0s ok=true by=store`,
			`ok=false by=store remaining=0 retryAfter=1m0s wouldRefuse=false`,
			`msg="limit could not be decided" limit.key=k limit.cost=1`,
		} {
			lines := strings.Split(strings.TrimSpace(logged.String()), "\n")
			if len(lines) != 3 || !strings.Contains(lines[i], "level=DEBUG") || !strings.Contains(lines[i], want) {
				t.Fatalf("line %d of\n%s\nwant %s", i, logged.String(), want)
			}
		}
	})
}

// Who listens to something else pays nothing for decisions, nor does who listens to
// nothing.
func TestUntoldDecisionsCostNothing(t *testing.T) {
	for name, opts := range map[string][]ratelimit.Option{
		"nothing":              {},
		"nil":                  {ratelimit.Observe(nil), ratelimit.Logger(nil)},
		"events without one":   {ratelimit.Observe(&ratelimit.Events{})},
		"a logger of warnings": {ratelimit.Logger(slog.New(slog.DiscardHandler))},
		"a decision is told":   {ratelimit.Observe(&ratelimit.Events{Decided: func(context.Context, ratelimit.DecisionEvent) {}})},
	} {
		l := limiter(t, memstore.New(), append([]ratelimit.Option{ratelimit.TokenBucket(1, time.Hour, 100)}, opts...)...)
		if n := testing.AllocsPerRun(200, func() {
			l.Allow(t.Context(), "k")
			l.Allowed(t.Context(), "k")
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
