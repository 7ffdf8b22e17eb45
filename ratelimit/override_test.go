package ratelimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// keeper is a store of limits and overrides that counts requests, and fails or hangs when
// told to.
type keeper struct {
	mem          *memstore.Store
	takes, looks atomic.Int64
	takeErr      atomic.Pointer[error]
	lookErr      atomic.Pointer[error]
	hang         atomic.Bool // looks
}

func newKeeper() *keeper { return &keeper{mem: memstore.New()} }

func (k *keeper) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	k.takes.Add(1)
	if err := k.takeErr.Load(); err != nil {
		return limits.Taken{}, *err
	}
	return k.mem.Take(ctx, r)
}

func (k *keeper) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	return k.mem.SetOverride(ctx, o, keep)
}

func (k *keeper) Overrides(ctx context.Context) ([]limits.Override, error) {
	k.looks.Add(1)
	if k.hang.Load() {
		<-ctx.Done()
		return nil, errors.Join(driver.ErrUnknown, ctx.Err())
	}
	if err := k.lookErr.Load(); err != nil {
		return nil, *err
	}
	return k.mem.Overrides(ctx)
}

// set overrides a key of the store, as another process does.
func (k *keeper) set(t *testing.T, o limits.Override, keep time.Duration) {
	t.Helper()
	if err := k.mem.SetOverride(t.Context(), o, keep); err != nil {
		t.Fatal(err)
	}
}

// capacity is what the key allows, as a look tells.
func capacity(t *testing.T, l *ratelimit.Limiter, key string) int64 {
	t.Helper()
	r, err := l.Peek(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return r.Limit
}

// settled is capacity after what was set has had its time.
func settled(t *testing.T, l *ratelimit.Limiter, key string) int64 {
	t.Helper()
	time.Sleep(time.Second) // of a bubble
	capacity(t, l, key)     // one decision late
	synctest.Wait()
	return capacity(t, l, key)
}

// Each algorithm with other numbers, and those that it cannot keep.
func TestOverrideChangesNumbers(t *testing.T) {
	const minute = time.Minute
	for name, c := range map[string]struct {
		limit ratelimit.Limit
		o     limits.Override
		want  int64         // the capacity; 0: it is ignored
		span  time.Duration // Result.Period, if want is not 0
	}{
		"window":                     {ratelimit.FixedWindow(10, minute), limits.Override{N: 50}, 50, minute},
		"window, another period":     {ratelimit.FixedWindow(10, minute).Offset(50 * time.Second), limits.Override{N: 7, Period: 20 * time.Second}, 7, 20 * time.Second},
		"sliding":                    {ratelimit.SlidingWindow(10, minute).Parts(6), limits.Override{N: 3}, 3, minute},
		"sliding, another period":    {ratelimit.SlidingWindow(10, minute).Parts(6), limits.Override{N: 3, Period: 7 * time.Microsecond}, 3, 7 * time.Microsecond},
		"sliding with a burst":       {ratelimit.SlidingWindow(10, minute), limits.Override{N: 50, Burst: 5}, 0, 0},
		"log":                        {ratelimit.SlidingLog(10, minute), limits.Override{N: 10_000}, 10_000, minute},
		"log, too long":              {ratelimit.SlidingLog(10, minute), limits.Override{N: 10_001}, 0, 0},
		"estimated":                  {ratelimit.EstimatedWindow(10, minute), limits.Override{N: 50, Period: time.Hour}, 50, time.Hour},
		"bucket":                     {ratelimit.TokenBucket(10, minute, 25), limits.Override{N: 20}, 50, 150 * time.Second},
		"bucket, another period":     {ratelimit.TokenBucket(10, minute, 25), limits.Override{N: 10, Period: 2 * minute}, 12, 144 * time.Second},
		"bucket, very low":           {ratelimit.TokenBucket(1000, minute, 25), limits.Override{N: 1}, 1, minute},
		"bucket with a burst":        {ratelimit.TokenBucket(10, minute, 25), limits.Override{N: 20, Burst: 3}, 3, 9 * time.Second},
		"bucket beyond all numbers":  {ratelimit.TokenBucket(1, time.Hour, 1000), limits.Override{N: 1<<51 - 1, Period: time.Microsecond}, 0, 0},
		"queue":                      {ratelimit.LeakyBucket(60, minute, 10*time.Second), limits.Override{N: 120}, 20, 10 * time.Second},
		"queue, rounded at its size": {ratelimit.LeakyBucket(60, minute, 500*time.Millisecond), limits.Override{N: 600}, 5, 500 * time.Millisecond},
		"queue, part ahead":          {ratelimit.LeakyBucket(60, minute, 10*time.Second).Ahead(10), limits.Override{N: 6}, 1, 10 * time.Second},
		"queue with a burst":         {ratelimit.LeakyBucket(60, minute, 10*time.Second), limits.Override{N: 60, Burst: 5}, 0, 0},
		"day":                        {ratelimit.PerDay(10, nil), limits.Override{N: 50}, 50, 24 * time.Hour},
		"day with a period":          {ratelimit.PerDay(10, nil), limits.Override{N: 50, Period: 24 * time.Hour}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, c := newKeeper(), c
				var log bytes.Buffer
				l := limiter(t, store, c.limit, ratelimit.Overridable(), ratelimit.Logger(slog.New(slog.NewTextHandler(&log, nil))))
				plain := capacity(t, l, "k")
				c.o.Key = "k"
				store.set(t, c.o, time.Hour)
				want := c.want
				if want == 0 {
					want = plain
				}
				if got := settled(t, l, "k"); got != want {
					t.Errorf("%d are allowed, want %d", got, want)
				}
				r, err := l.Peek(t.Context(), "k")
				if err != nil || c.span != 0 && r.Period != c.span || r.Limits()[0].Overridden != (c.want != 0) {
					t.Errorf("%+v, %v, want a period of %v", r, err, c.span)
				}
				if got := capacity(t, l, "other"); got != plain {
					t.Errorf("of another key %d are allowed, want %d", got, plain)
				}
				for range 3 {
					settled(t, l, "k")
				}
				synctest.Wait() // for who writes the log
				told := strings.Count(log.String(), "an override is not obeyed")
				if ignored := c.want == 0; ignored != (told == 1) || told > 1 {
					t.Errorf("told %d times: %s", told, &log)
				}
				err = l.SetOverride(t.Context(), "k", ratelimit.Override{N: c.o.N, Period: c.o.Period, Burst: c.o.Burst}, time.Minute)
				if errors.As(err, new(*ratelimit.LimitError)) != (c.want == 0) {
					t.Errorf("set by a program: %v", err)
				}
				store.set(t, limits.Override{Key: "k"}, 0)
				if got := settled(t, l, "k"); got != plain {
					t.Errorf("removed, %d are allowed, want %d", got, plain)
				}
			})
		})
	}
}

// An override is raised, lowered, ends and is removed: what was taken stays taken. Who
// does not obey goes on as before.
func TestOverrideTakesEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, ctx := newKeeper(), t.Context()
		limit := ratelimit.SlidingLog(5, 24*time.Hour).Named("api")
		l := limiter(t, store, limit, ratelimit.Overridable())
		other := limiter(t, store, limit, ratelimit.Overridable())
		plain := limiter(t, store, limit)
		set := func(n int64, keep time.Duration) {
			t.Helper()
			if err := l.SetOverride(ctx, "k", ratelimit.Override{Name: "api", N: n}, keep); err != nil {
				t.Fatal(err)
			}
		}
		left := func(l *ratelimit.Limiter, want int64) {
			t.Helper()
			if r := allow(t, l, "k", max(want, 1)); r.OK != (want > 0) || r.Remaining != 0 {
				t.Errorf("%+v, want %d to be left", r, want)
			}
		}
		left(l, 5)
		left(other, 0)
		left(l, 0)
		set(8, time.Hour)
		left(l, 3) // its own override it obeys at once
		left(other, 0)
		set(10, time.Hour)
		time.Sleep(time.Second)
		left(other, 0) // one decision late
		synctest.Wait()
		left(other, 2)
		left(plain, 0)
		set(2, time.Hour)
		set(11, time.Minute)
		left(l, 1)
		set(20, time.Minute)
		time.Sleep(time.Minute) // the end needs no look
		left(l, 0)
		set(12, time.Hour)
		set(0, 0)
		left(l, 0)
		if n := len(must2(t)(store.mem.Overrides(ctx))); n != 0 {
			t.Errorf("%d overrides stand", n)
		}
		left(plain, 0)
	})
}

func must2(t *testing.T) func([]limits.Override, error) []limits.Override {
	return func(all []limits.Override, err error) []limits.Override {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
}

// The keys of limits that count for all, and of those with a name, are those of the store.
func TestOverrideOfNamedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeeper()
		l := limiter(t, store, ratelimit.SlidingLog(5, time.Hour).Named("each"), ratelimit.SlidingLog(50, time.Hour).Named("all").ForAll(), ratelimit.Overridable())
		for key, o := range map[string]ratelimit.Override{"k{": {Name: "each", N: 6}, "*/all": {Name: "all", N: 70}} {
			if err := l.SetOverride(t.Context(), key, o, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		for key, want := range map[string][2]int64{"k{": {6, 70}, "x": {5, 70}} {
			r, err := l.Peek(t.Context(), key)
			if err != nil || r.Limits()[0].Limit != want[0] || r.Limits()[1].Limit != want[1] {
				t.Errorf("%q: %+v, %v, want %v", key, r.Limits(), err, want)
			}
		}
		for _, o := range must2(t)(store.mem.Overrides(t.Context())) {
			if o.Key != "each//k{" && o.Key != "*/all" {
				t.Errorf("overridden is %q", o.Key)
			}
		}
	})
}

// An override of 0 blocks its key, in every way to ask and whatever the algorithm: also those
// that wait, and while the store fails. It takes nothing, and other keys go on.
func TestOverrideBlocks(t *testing.T) {
	for name, limit := range map[string]ratelimit.Limit{
		"fixed": ratelimit.FixedWindow(5, 24*time.Hour), "sliding": ratelimit.SlidingWindow(5, 24*time.Hour),
		"log": ratelimit.SlidingLog(5, 24*time.Hour), "estimated": ratelimit.EstimatedWindow(5, 24*time.Hour),
		"token bucket": ratelimit.TokenBucket(5, 24*time.Hour, 5), "calls": ratelimit.SlidingWindow(5, 24*time.Hour).PerCall(),
		"leaky bucket": ratelimit.LeakyBucket(5, 24*time.Hour, 24*time.Hour).Ahead(5), "day": ratelimit.PerDay(5, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, store := t.Context(), newKeeper()
				other := ratelimit.SlidingWindow(100, 240*time.Hour).Named("other")
				l := limiter(t, store, limit.Named("one"), other, ratelimit.FailOpen(time.Second), ratelimit.Overridable())
				for range 5 {
					allow(t, l, "k", 1)
				}
				waiting := make(chan error, 3)
				for range cap(waiting) {
					go func() {
						_, err := l.Wait(ctx, "k")
						waiting <- err
					}()
				}
				synctest.Wait()
				if err := l.SetOverride(ctx, "k", ratelimit.Override{Name: "one"}, time.Hour); err != nil {
					t.Fatal(err)
				}
				for range cap(waiting) {
					if err := <-waiting; !errors.Is(err, ratelimit.ErrRefused) {
						t.Errorf("a caller that waited: %v", err)
					}
				}
				blocked := func(what string, r ratelimit.Result, err error) {
					t.Helper()
					refused, ok := errors.AsType[*ratelimit.RefusedError](err)
					if ok {
						r = refused.Result
					} else if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					if r.OK || r.RetryAfter != ratelimit.Never || r.Name != "one" || r.Limit != 0 || r.Remaining != 0 || !r.Limits()[0].Overridden {
						t.Errorf("%s: %+v", what, r)
					}
				}
				ask := func(what string) {
					t.Helper()
					r, err := l.Allow(ctx, "k")
					blocked(what+", Allow", r, err)
					r, err = l.Wait(ctx, "k")
					blocked(what+", Wait", r, err)
					res, err := l.Reserve(ctx, "k", 1)
					blocked(what+", Reserve", res.Result, err)
				}
				ask("blocked")
				if r, err := l.Peek(ctx, "k"); err != nil || r.Limit != 0 || r.Remaining != 0 {
					t.Errorf("a look: %+v, %v", r, err)
				}
				if r, err := l.Allow(ctx, "free"); err != nil || !r.OK {
					t.Errorf("another key: %+v, %v", r, err)
				}
				down := driver.ErrUnavailable
				store.takeErr.Store(&down)
				ask("the store fails")
				if r, err := l.Allow(ctx, "free"); err != nil || !r.OK {
					t.Errorf("another key while the store fails: %+v, %v", r, err)
				}
				store.takeErr.Store(nil)
				time.Sleep(time.Hour + 10*time.Second)
				if got, want := capacity(t, l, "k"), capacity(t, l, "new"); got != want {
					t.Errorf("after it %d are allowed, want %d", got, want)
				}
				if r, err := l.Peek(ctx, "k"); err != nil || r.Limits()[1].Remaining != 95 {
					t.Errorf("the other limit: %+v, %v", r, err)
				}
			})
		})
	}
}

// A shadow that is blocked refuses nothing, and says that it would.
func TestOverrideBlocksShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeeper()
		l := limiter(t, store, ratelimit.SlidingWindow(5, time.Hour).Named("tried").Shadow(), ratelimit.SlidingWindow(2, time.Hour).Named("real"), ratelimit.Overridable())
		if err := l.SetOverride(t.Context(), "k", ratelimit.Override{Name: "tried"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if r, err := l.Allow(t.Context(), "k"); err != nil || r.OK != (i < 2) || !r.WouldRefuse {
				t.Errorf("%d: %+v, %v", i, r, err)
			}
		}
	})
}

// Who waits is let in when the limit is raised, and when an override that lowered it has
// ended, although no decision is made meanwhile.
func TestOverrideReachesWaiters(t *testing.T) {
	for name, limit := range map[string]ratelimit.Limit{
		"log": ratelimit.SlidingLog(1, 24*time.Hour), "bucket": ratelimit.TokenBucket(1, 24*time.Hour, 1),
		"queue": ratelimit.LeakyBucket(1, 24*time.Hour, 240*time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newKeeper()
				l := limiter(t, store, limit, ratelimit.Overridable())
				allow(t, l, "k", 1)
				var in atomic.Int64
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						if _, err := l.Wait(t.Context(), "k"); err != nil {
							t.Error(err)
						}
						in.Add(1)
					})
				}
				time.Sleep(time.Hour)
				if n := in.Load(); n != 0 {
					t.Fatalf("%d were let in after an hour", n)
				}
				before := store.takes.Load()
				store.set(t, limits.Override{Key: "k", N: 1000, Period: time.Second}, time.Hour)
				time.Sleep(3 * time.Second)
				if n := in.Load(); n != 3 {
					t.Errorf("%d of 3 were let in after the limit was raised", n)
				}
				if n := store.takes.Load() - before; n > 12 {
					t.Errorf("that took %d requests", n)
				}
				wg.Wait()
				looks := store.looks.Load()
				time.Sleep(time.Hour)
				if n := store.looks.Load() - looks; n > 1 {
					t.Errorf("%d looks while nobody waits", n)
				}
			})
		})
	}
	t.Run("the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newKeeper()
			l := limiter(t, store, ratelimit.SlidingLog(2, 24*time.Hour), ratelimit.Overridable())
			store.set(t, limits.Override{Key: "k", N: 1}, time.Hour)
			allow(t, l, "k", 1)
			start := time.Now()
			if _, err := l.Wait(t.Context(), "k"); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took < time.Hour-time.Second || took > time.Hour+3*time.Second {
				t.Errorf("let in after %v", took)
			}
		})
	})
}

func TestOverrideOfBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hold = 2 * time.Second
		store := newKeeper()
		l := limiter(t, store, ratelimit.SlidingLog(100, 24*time.Hour), ratelimit.InBatches(10, hold, 1, 10), ratelimit.Overridable())
		rush := func() (n int) { // for five seconds
			for range 500 {
				if allow(t, l, "k", 1).OK {
					n++
				}
				time.Sleep(10 * time.Millisecond)
			}
			return n
		}
		store.set(t, limits.Override{Key: "k", N: 7}, time.Hour) // less than a batch
		if n := rush(); n != 7 {
			t.Errorf("%d of 7 were allowed", n)
		}
		store.set(t, limits.Override{Key: "k", N: 250}, time.Hour)
		if n := rush(); n != 243 {
			t.Errorf("%d of another 243 were allowed", n)
		}
		store.set(t, limits.Override{Key: "k"}, 0)
		if n := rush(); n != 0 {
			t.Errorf("%d of none were allowed", n)
		}
		if store.looks.Load() > 16 {
			t.Errorf("%d looks in 15 s", store.looks.Load())
		}
	})
}

func TestOverrideBesideShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeeper()
		l := limiter(t, store, ratelimit.SlidingLog(10, time.Hour).Named("real"), ratelimit.SlidingLog(2, time.Hour).Named("tried").Shadow(), ratelimit.Overridable())
		store.set(t, limits.Override{Key: "tried/{k}", N: 4}, time.Hour)
		for i := range 6 {
			if r := allow(t, l, "k", 1); !r.OK || r.WouldRefuse != (i >= 4) || !r.Limits()[1].Overridden || r.Limits()[0].Overridden {
				t.Errorf("number %d: %+v", i, r)
			}
		}
		store.set(t, limits.Override{Key: "real/{k}", N: 6}, time.Hour)
		settled(t, l, "k")
		if r := allow(t, l, "k", 1); r.OK {
			t.Errorf("number 7 of 6: %+v", r)
		}
	})
}

// A reservation is settled under the limit that there is then.
func TestOverrideOfReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeeper()
		l := limiter(t, store, ratelimit.TokenBucket(10, 24*time.Hour, 10), ratelimit.Overridable())
		store.set(t, limits.Override{Key: "k", N: 100}, time.Hour)
		res, err := l.Reserve(t.Context(), "k", 50)
		if err != nil || !res.Result.OK {
			t.Fatalf("%+v, %v", res, err)
		}
		if err := res.Commit(t.Context(), 20); err != nil {
			t.Error(err)
		}
		if r := allow(t, l, "k", 80); !r.OK || r.Remaining != 0 {
			t.Errorf("%+v, want 80 to be left", r)
		}
		if r, err := l.WaitWithin(t.Context(), "k", 101, time.Hour); !errors.Is(err, ratelimit.ErrRefused) || r.RetryAfter != ratelimit.Never {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// Decisions cost no further request, and what is not used costs nothing.
func TestOverrideCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeeper()
		limit := ratelimit.SlidingWindow(1<<40, time.Hour)
		l := limiter(t, store, limit, ratelimit.Overridable())
		for range 10_000 { // in ten seconds
			allow(t, l, "k", 1)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if looks, takes := store.looks.Load(), store.takes.Load(); looks < 10 || looks > 11 || takes != 10_000 {
			t.Errorf("10 000 decisions in 10 s took %d requests, and %d looks", takes, looks)
		}
		looks := store.looks.Load()
		time.Sleep(time.Hour)
		if store.looks.Load() != looks {
			t.Errorf("%d looks without decisions", store.looks.Load()-looks)
		}
		plain := limiter(t, store, limit)
		for range 100 {
			allow(t, plain, "k", 1)
			time.Sleep(100 * time.Millisecond)
		}
		if store.looks.Load() != looks {
			t.Errorf("%d looks by a Limiter that is not Overridable", store.looks.Load()-looks)
		}
		var wg sync.WaitGroup
		store.hang.Store(true) // one look for all
		for range 100 {
			wg.Go(func() { allow(t, l, "k", 1) })
		}
		wg.Wait()
		if n := store.looks.Load() - looks; n != 1 {
			t.Errorf("%d looks by 100 callers at once", n)
		}
		time.Sleep(time.Minute) // the look ends
	})
}

func TestOverridableRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		if _, err := ratelimit.New(&moody{Store: memstore.New()}, ratelimit.SlidingWindow(5, time.Minute), ratelimit.Overridable()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a store without overrides: %v", err)
		}
		if _, err := ratelimit.NewDecider(&moody{Store: memstore.New()}, ratelimit.Overridable()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a Decider of a store without overrides: %v", err)
		}
		store := newKeeper()
		plain := limiter(t, store, ratelimit.SlidingWindow(5, time.Minute))
		l := limiter(t, store, ratelimit.SlidingWindow(5, time.Minute), ratelimit.Overridable())
		all := limiter(t, store, ratelimit.SlidingWindow(5, time.Minute).Named("all").ForAll(), ratelimit.Overridable())
		for what, err := range map[string]error{
			"not Overridable": plain.SetOverride(ctx, "k", ratelimit.Override{N: 1}, time.Minute),
			"no such limit":   l.SetOverride(ctx, "k", ratelimit.Override{Name: "x", N: 1}, time.Minute),
			"below zero":      l.SetOverride(ctx, "k", ratelimit.Override{N: -1}, time.Minute),
			"for all":         all.SetOverride(ctx, "k", ratelimit.Override{Name: "all", N: 1}, time.Minute),
			"for ever":        l.SetOverride(ctx, "k", ratelimit.Override{N: 1}, 366*24*time.Hour),
			"into the past":   l.SetOverride(ctx, "k", ratelimit.Override{N: 1}, -1),
		} {
			if e, ok := errors.AsType[*ratelimit.LimitError](err); !ok || e.Key != "k" {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := l.SetOverride(ctx, "a\n", ratelimit.Override{N: 1}, time.Minute); !errors.As(err, new(*ratelimit.KeyError)) {
			t.Errorf("a bad key: %v", err)
		}
		if n := len(must2(t)(store.mem.Overrides(ctx))); n != 0 {
			t.Errorf("%d overrides stand", n)
		}
		for i := range limits.MaxOverrides {
			store.set(t, limits.Override{Key: fmt.Sprint("k", i), N: 1}, time.Minute)
		}
		if err := l.SetOverride(ctx, "k", ratelimit.Override{N: 1}, time.Minute); !errors.As(err, new(*limits.OverridesFullError)) {
			t.Errorf("full: %v", err)
		}
	})
}

// Overrides come and go through wrappers, while many decide.
func TestOverridesInARace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		store := observe.Limits(memstore.New(), observe.Events{Request: func(_ context.Context, e observe.RequestEvent) {
			if e.Operation == observe.Overrides {
				looks.Add(1)
			}
		}})
		l := limiter(t, store, ratelimit.TokenBucket(5, time.Second, 5), ratelimit.Overridable())
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := range 200 {
					key := fmt.Sprint(n % 3)
					switch {
					case i == 0 && n%5 == 0:
						if err := l.SetOverride(t.Context(), key, ratelimit.Override{N: int64(n + 1)}, time.Duration(n%4)*time.Second); err != nil {
							t.Error(err)
						}
					case i < 3:
						ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
						_, _ = l.Wait(ctx, key)
						cancel()
					default:
						allow(t, l, key, 1)
					}
					time.Sleep(37 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		if looks.Load() == 0 {
			t.Error("no look was told")
		}
		time.Sleep(time.Minute)
	})
}
