package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// overrideLate is how long after its end an override may still be reported.
const overrideLate = 5 * time.Second

func (t *limitTest) overrider(i int) limits.Overrider {
	o, _ := limits.OverriderOf(t.all[i%len(t.all)])
	return o
}

// override sets an override, which must succeed.
func (t *limitTest) override(i int, o limits.Override, keep time.Duration) {
	t.Helper()
	if err := t.overrider(i).SetOverride(t.ctx, o, keep); err != nil {
		t.Fatalf("an override %+v for %v: %v", o, keep, err)
	}
}

// overrides returns those that handle i knows, by key.
func (t *limitTest) overrides(i int) map[string]limits.Override {
	t.Helper()
	list, err := t.overrider(i).Overrides(t.ctx)
	if err != nil {
		t.Fatalf("overrides: %v", err)
	}
	all := make(map[string]limits.Override)
	for _, o := range list {
		if _, again := all[o.Key]; again {
			t.Errorf("the override of %q is told twice", o.Key)
		}
		all[o.Key] = o
	}
	return all
}

// overridden asserts that every handle knows exactly these overrides. Each must end
// within an hour.
func (t *limitTest) overridden(want ...limits.Override) {
	t.Helper()
	for i := range t.all {
		all := t.overrides(i)
		if len(all) != len(want) {
			t.Errorf("handle %d knows %d overrides, want %d", i, len(all), len(want))
		}
		for _, w := range want {
			got, stands := all[w.Key]
			if !stands {
				t.Errorf("handle %d knows no override of %q", i, w.Key)
				continue
			}
			if got.Left <= 0 || got.Left > time.Hour {
				t.Errorf("handle %d: the override of %q has %v left", i, w.Key, got.Left)
			}
			if got.Left = 0; got != w {
				t.Errorf("handle %d: %+v, want %+v", i, got, w)
			}
		}
	}
}

// fillOverrides sets n overrides, several at a time.
func (t *limitTest) fillOverrides(n int) {
	var wg sync.WaitGroup
	gate := make(chan struct{}, 16)
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			if err := t.overrider(i).SetOverride(t.ctx, limits.Override{Key: fmt.Sprint("k", i), N: int64(i + 1)}, time.Hour); err != nil {
				t.Errorf("override %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

func overrideCases() []limitCase {
	all := []limitCase{
		{
			name: "overrides: set and replaced",
			why:  "an operator who corrects an override must not leave two, and every process must see the last one, to the digit",
			run: func(t *limitTest) {
				t.overridden()
				a := limits.Override{Key: "a", N: 500, Period: time.Minute, Burst: 50}
				b := limits.Override{Key: "b", N: 1<<51 - 1, Period: 100_000*time.Hour + time.Microsecond}
				t.override(0, a, time.Hour)
				t.override(1, b, time.Hour)
				t.overridden(a, b)
				a.N, a.Period, a.Burst = 7, 0, 0
				for i := range 3 { // a repetition changes nothing
					t.override(i, a, 50*time.Minute)
				}
				t.overridden(a, b)
				if left := t.overrides(0)["a"].Left; left > 50*time.Minute {
					t.Errorf("replaced by one for 50 minutes, it has %v left", left)
				}
			},
		},
		{
			name: "overrides: of nothing",
			why:  "an operator who stops one caller sets an override of 0; a store that refuses or changes it lets the caller go on",
			run: func(t *limitTest) {
				o := limits.Override{Key: "a"}
				t.override(0, o, time.Hour)
				t.overridden(o)
				o.Period, o.Burst = time.Minute, 5
				t.override(1, o, time.Hour)
				t.overridden(o)
				for _, l := range []limits.Limit{
					{Algorithm: limits.FixedWindow, N: 5, Period: time.Hour},
					{Algorithm: limits.SlidingWindow, N: 5, Period: time.Hour, Parts: 60},
					{Algorithm: limits.SlidingLog, N: 5, Period: time.Hour},
					{Algorithm: limits.EstimatedWindow, N: 5, Period: time.Hour},
					{Algorithm: limits.TokenBucket, N: 5, Period: time.Hour, Burst: 7},
					{Algorithm: limits.LeakyBucket, N: 5, Period: time.Hour, Burst: 7},
				} {
					// A caller that obeys asks, beside other limits, for more than the
					// limit ever gives.
					key, free := fmt.Sprintf("{%v} blocked", l.Algorithm), fmt.Sprintf("{%v} free", l.Algorithm)
					take := func(cost int64) limits.Taken {
						t.Helper()
						taken, err := t.all[1].Take(t.ctx, limits.Request{Takes: []limits.Take{
							{Key: free, Limit: limits.Limit{Algorithm: limits.FixedWindow, N: 1, Period: 1000 * time.Hour}, Cost: 1},
							{Key: key, Limit: l, Cost: cost},
						}})
						if err != nil {
							t.Fatalf("%v", err)
						}
						return taken
					}
					for range 3 {
						if d := take(l.Capacity() + 1); d.OK || d.Retry != limits.Never {
							t.Errorf("%v: a cost above the capacity: %+v", l.Algorithm, d)
						}
					}
					if d := take(1); !d.OK {
						t.Errorf("%v: what was refused was taken: %+v", l.Algorithm, d)
					}
				}
			},
		},
		{
			name: "overrides: removed",
			why:  "what was set by mistake must be gone for everybody at once, and nothing else with it",
			run: func(t *limitTest) {
				a, b := limits.Override{Key: "a", N: 1}, limits.Override{Key: "b", N: 2}
				t.override(0, a, time.Hour)
				t.override(0, b, time.Hour)
				for i := range 2 { // the second time there is none
					t.override(i, limits.Override{Key: "a"}, 0)
					t.overridden(b)
				}
				t.override(0, limits.Override{Key: "never set"}, 0)
				t.override(1, a, time.Hour)
				t.overridden(a, b)
			},
		},
		{
			name: "overrides: end by themselves",
			why:  "an override that is forgotten must not stay, and must not end before its time",
			run: func(t *limitTest) {
				const keep = 1500 * time.Millisecond
				b := limits.Override{Key: "b", N: 2}
				t.override(1, b, time.Hour)
				sent := time.Now()
				t.override(0, limits.Override{Key: "a", N: 1}, keep)
				answered := time.Now()
				before, asked := t.overrides(0)["b"].Left, time.Now()
				for stands := true; stands; t.pass(20 * time.Millisecond) {
					var a limits.Override
					asked := time.Now()
					a, stands = t.overrides(int(asked.UnixMilli()))["a"]
					told := time.Now()
					switch {
					case stands && asked.Sub(answered) > keep+overrideLate:
						t.Fatalf("for %v, it still stands after %v", keep, asked.Sub(answered))
					case stands && a.Left > keep+overrideLate:
						t.Errorf("for %v, after %v it has %v left", keep, asked.Sub(answered), a.Left)
					case !stands && told.Sub(sent) < keep-100*time.Millisecond: // clocks run at different speeds
						t.Errorf("for %v, it is gone after %v", keep, told.Sub(sent))
					}
				}
				passed := time.Since(asked)
				if left := t.overrides(0)["b"].Left; left > before-passed+500*time.Millisecond || left < before-passed-overrideLate {
					t.Errorf("of %v, after %v %v are left", before, passed, left)
				}
				t.overridden(b)
			},
		},
		{
			name: "overrides: bounded",
			why:  "every process reads all of them all the time, so their number must have an end, and those that have ended must not count",
			run: func(t *limitTest) {
				t.fillOverrides(limits.MaxOverrides - 1)
				const keep = 1500 * time.Millisecond
				t.override(0, limits.Override{Key: "the last", N: 1}, keep)
				over := limits.Override{Key: "one too many", N: 1}
				err := t.overrider(1).SetOverride(t.ctx, over, time.Hour)
				if full, ok := errors.AsType[*limits.OverridesFullError](err); err != nil && (!ok || full.Key != over.Key || full.Store == "") {
					t.Errorf("one too many: %v", err)
				} else if err == nil && t.overrides(0)["the last"].Left > 0 { // else it has ended, on a slow machine
					t.Errorf("%d overrides stand, want at most %d", len(t.overrides(0)), limits.MaxOverrides)
				}
				t.override(1, limits.Override{Key: "k7", N: 77}, time.Hour) // replaces one
				all := t.overrides(0)
				for i := range limits.MaxOverrides - 1 {
					want := int64(i + 1)
					if i == 7 {
						want = 77
					}
					if got := all[fmt.Sprint("k", i)].N; got != want {
						t.Fatalf("override %d is of %d, want %d", i, got, want)
					}
				}
				end := time.Now().Add(keep + overrideLate)
				for err != nil && time.Now().Before(end) {
					t.pass(50 * time.Millisecond)
					err = t.overrider(1).SetOverride(t.ctx, over, time.Hour)
				}
				if err != nil {
					t.Fatalf("%v after one has ended: %v", keep+overrideLate, err)
				}
				err = t.overrider(0).SetOverride(t.ctx, limits.Override{Key: "and another", N: 1}, time.Hour)
				if !errors.As(err, new(*limits.OverridesFullError)) {
					t.Errorf("full again: %v", outcome(err))
				}
				t.override(0, limits.Override{Key: "k3"}, 0)
				t.override(0, limits.Override{Key: "and another", N: 1}, time.Hour)
			},
		},
		{
			name: "overrides: odd keys",
			why:  "an override must reach the key that was named, whatever it looks like, and no other",
			run: func(t *limitTest) {
				var want []limits.Override
				for i, key := range oddKeys {
					o := limits.Override{Key: key, N: int64(i + 1), Period: time.Second}
					t.override(i, o, time.Hour)
					want = append(want, o)
				}
				t.overridden(want...)
				for i, o := range want[1:] {
					t.override(i, limits.Override{Key: o.Key}, 0)
				}
				t.overridden(want[0])
			},
		},
		{
			name: "overrides: nothing else is touched",
			why:  "an override is neither a fresh start nor a lock: what was taken stays taken, and what belongs to the same key stays as it is",
			run: func(t *limitTest) {
				limit := fiveOfEach[5]
				o := limits.Override{Key: "k", N: 500, Period: time.Minute}
				t.one("k", limit, 3)
				var lock driver.Claim
				locks, _ := t.all[0].(driver.Locks)
				records, _ := t.all[0].(driver.Records)
				if locks != nil {
					lock = driver.Claim{Key: "k", ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole}
					g, err := locks.Acquire(t.ctx, driver.Request{Claim: lock, TTL: 20 * time.Second})
					if err != nil {
						t.Fatalf("a lock: %v", err)
					}
					lock.Ticket = g.Ticket
					defer func() { _ = locks.Release(t.ctx, lock) }() // other cases may use the same tables
				}
				if records != nil {
					if _, err := records.BeginAttempt(t.ctx, attempt("k", 1), keepLong); err != nil {
						t.Fatalf("a record: %v", err)
					}
					defer func() { _ = records.ForgetRecord(t.ctx, "k") }()
				}
				stands := func(when string, left int64) {
					t.Helper()
					if got := t.look("k", limit, 0).Remaining; got != left {
						t.Errorf("%s %d of the limit remain, want %d", when, got, left)
					}
					if locks != nil {
						if r := locks.Renew(t.ctx, []driver.Claim{lock}, 20*time.Second)[0]; r.State != driver.Held {
							t.Errorf("%s the lock is %v, %v", when, r.State, r.Err)
						}
					}
					if records != nil {
						if _, err := records.FindRecord(t.ctx, "k"); err != nil {
							t.Errorf("%s the record: %v", when, err)
						}
					}
				}
				t.override(0, o, time.Hour)
				stands("overridden,", 2)
				if d := t.one("k", limit, 3); d.OK {
					t.Errorf("the store obeys an override by itself: %+v", d)
				}
				t.take(limits.Request{Mode: limits.Forget, Takes: []limits.Take{{Key: "k", Limit: limit}}})
				t.overridden(o)
				t.one("k", limit, 1)
				t.override(0, limits.Override{Key: "k"}, 0)
				stands("without it,", 4)
				t.overridden()
			},
		},
		{
			name: "overrides: bad ones",
			why:  "what makes no sense must be refused before it reaches every process, and who has gone must not change anything",
			run: func(t *limitTest) {
				for name, key := range illegalKeys {
					for _, keep := range []time.Duration{0, time.Hour} {
						err := t.overrider(0).SetOverride(t.ctx, limits.Override{Key: key, N: 1}, keep)
						if !errors.As(err, new(*driver.KeyError)) {
							t.Errorf("a key with %s: %v, want a *driver.KeyError", name, outcome(err))
						}
					}
				}
				for i, o := range []limits.Override{
					{N: -1}, {N: 1 << 51}, {N: 1, Period: -1}, {N: 1, Period: time.Second + 1}, {N: 1, Burst: -1}, {N: 1, Burst: 1 << 51},
				} {
					o.Key = "k"
					if err := t.overrider(i).SetOverride(t.ctx, o, time.Hour); !errors.As(err, new(*limits.Error)) {
						t.Errorf("%+v: %v, want a *limits.Error", o, outcome(err))
					}
				}
				for _, keep := range []time.Duration{-1, limits.MaxOverrideKeep + 1} {
					if err := t.overrider(0).SetOverride(t.ctx, limits.Override{Key: "k", N: 1}, keep); !errors.As(err, new(*limits.Error)) {
						t.Errorf("for %v: %v, want a *limits.Error", keep, outcome(err))
					}
				}
				gone, cancel := context.WithCancel(t.ctx)
				cancel()
				if err := t.overrider(0).SetOverride(gone, limits.Override{Key: "k", N: 1}, time.Hour); !errors.Is(err, context.Canceled) {
					t.Errorf("set by a caller that has gone: %v", outcome(err))
				}
				if all, err := t.overrider(0).Overrides(gone); !errors.Is(err, context.Canceled) {
					t.Errorf("told to a caller that has gone: %v, %v", all, outcome(err))
				}
				t.overridden()
				t.override(0, limits.Override{Key: "k", N: 1}, limits.MaxOverrideKeep)
			},
		},
	}
	for i := range all {
		all[i].overrides = true
	}
	return all
}
