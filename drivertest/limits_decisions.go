package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

func decisionCases() []limitCase {
	return []limitCase{
		{
			name:  "all or nothing",
			why:   "who is refused by one limit must not use up another",
			timed: true,
			run: func(t *limitTest) {
				a, b := t.key("a"), t.key("b")
				for i, s := range []struct {
					at      time.Duration
					cost    int64
					a, b    int64
					retry   time.Duration
					refused string
				}{
					{0, 5, 0, 3, 0, "[]"},
					{0, 1, 0, 3, 200 * time.Millisecond, "[0]"},
					{time.Second, 4, 5, 3, 59 * time.Second, "[1]"},
					{time.Second, 3, 2, 0, 0, "[]"},
					{time.Second, 1, 2, 0, 59 * time.Second, "[1]"},
					{1200 * time.Millisecond, 1, 3, 0, 58800 * time.Millisecond, "[1]"},
				} {
					d := t.take(limits.Request{Now: origin + s.at.Microseconds(), Takes: []limits.Take{
						{Key: a, Limit: tokenBucket(5, time.Second, 5), Cost: s.cost},
						{Key: b, Limit: fixedWindow(8, time.Minute), Cost: s.cost},
					}})
					var refused []int
					for i, x := range d.Limits {
						if !x.OK {
							refused = append(refused, i)
						}
					}
					if d.Limits[0].Remaining != s.a || d.Limits[1].Remaining != s.b || d.Retry != s.retry ||
						fmt.Sprint(refused) != s.refused || d.OK != (s.refused == "[]") {
						t.Errorf("step %d: %+v, want %+v", i, d, s)
					}
				}
			},
		},
		{
			name: "sixteen limits, each with its cost",
			why:  "requests and bytes, per user and in all, are one decision",
			run: func(t *limitTest) {
				ask := func(more int64) limits.Taken {
					var r limits.Request
					for i := range limits.MaxTakes {
						l := fiveOfEach[i%len(fiveOfEach)]
						r.Takes = append(r.Takes, limits.Take{Key: t.key(fmt.Sprint("k", i)), Limit: l, Cost: int64(i % 5)})
					}
					r.Takes[limits.MaxTakes-1].Cost += more
					return t.take(r)
				}
				if d := ask(6); d.OK || d.Retry != limits.Never {
					t.Errorf("the last asks for more than there can be: %+v", d)
				}
				d := ask(0)
				if !d.OK {
					t.Errorf("%+v", d)
				}
				for i, x := range d.Limits {
					if want := 5 - int64(i%5); x.Remaining != want {
						t.Errorf("limit %d: %d remain, want %d: something was taken by a request that was refused, or not by one that was allowed", i, x.Remaining, want)
					}
				}
			},
		},
		{
			name: "exactly the capacity",
			why:  "a hundred callers of several processes at once must not get one more or one less",
			run: func(t *limitTest) {
				for i, l := range fiveOfEach {
					key := fmt.Sprint("k", i)
					ok := t.crowd(60, func(i int, h limits.Store) (bool, error) {
						cost := int64(i % 2) // every second one only looks
						d, err := h.Take(t.ctx, limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}})
						return d.OK && cost > 0, err
					})
					if left := t.look(key, l, 0).Remaining; ok != 5 || left != 0 {
						t.Errorf("%v: %d of 5 were allowed, %d remain", l.Algorithm, ok, left)
					}
				}
			},
		},
		{
			name: "opposite orders",
			why:  "requests that name the same limits in another order must neither wait for each other for ever nor fail",
			run: func(t *limitTest) {
				a := limits.Take{Key: t.key("a"), Limit: fixedWindow(20, 100_000*time.Hour), Cost: 1}
				b := limits.Take{Key: t.key("b"), Limit: slidingLog(20, 1000*time.Hour), Cost: 1}
				ok := t.crowd(60, func(i int, h limits.Store) (bool, error) {
					both := []limits.Take{a, b}
					if i/handles%2 == 0 {
						both = []limits.Take{b, a}
					}
					d, err := h.Take(t.ctx, limits.Request{Takes: both})
					return d.OK, err
				})
				if ok != 20 {
					t.Errorf("%d of 20 were allowed", ok)
				}
			},
		},
		{
			name: "odd keys are different limits",
			why:  "keys that look alike must not count together",
			run: func(t *limitTest) {
				l := fiveOfEach[0]
				for i, key := range oddKeys {
					if d := t.one(key, l, int64(i%5)+1); !d.OK || d.Limits[0].Remaining != 5-int64(i%5)-1 {
						t.Errorf("%q: %+v", key, d)
					}
				}
				for i, key := range oddKeys {
					if left := t.look(key, l, 0).Remaining; left != 5-int64(i%5)-1 {
						t.Errorf("%q: %d remain", key, left)
					}
				}
			},
		},
		{
			name: "locks and limits do not meet",
			why:  "a key names a lock and a limit, and neither knows the other",
			run: func(t *limitTest) {
				locks, ok := t.all[0].(driver.Locks)
				if !ok {
					return
				}
				r := driver.Request{
					Claim: driver.Claim{Key: "k", ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole},
					TTL:   time.Minute,
				}
				if d := t.one("k", fiveOfEach[0], 2); !d.OK {
					t.Errorf("%+v", d)
				}
				g, err := locks.Acquire(t.ctx, r)
				if err != nil || g.Waiting {
					t.Fatalf("a lock beside a limit: %+v, %v", g, err)
				}
				if d := t.one("k", fiveOfEach[0], 2); !d.OK || d.Limits[0].Remaining != 1 {
					t.Errorf("a limit beside a lock: %+v", d)
				}
				r.Ticket = g.Ticket
				if err := locks.Release(t.ctx, r.Claim); err != nil {
					t.Errorf("released: %v", err)
				}
				if left := t.look("k", fiveOfEach[0], 0).Remaining; left != 1 {
					t.Errorf("%d remain after the lock was released", left)
				}
			},
		},
		{
			name: "bad requests",
			why:  "what cannot be decided is refused before anything was changed",
			run: func(t *limitTest) {
				l := fiveOfEach[0]
				good := limits.Take{Key: t.key("good"), Limit: l, Cost: 1}
				bad := func(change func(*limits.Take)) limits.Request {
					b := limits.Take{Key: t.key("bad"), Limit: l, Cost: 1}
					change(&b)
					return limits.Request{Takes: []limits.Take{good, b}}
				}
				with := func(change func(*limits.Request)) limits.Request {
					r := limits.Request{Takes: []limits.Take{good}}
					change(&r)
					return r
				}
				for name, r := range map[string]limits.Request{
					"no limit":         {},
					"too many":         {Takes: make([]limits.Take, limits.MaxTakes+1)},
					"empty key":        bad(func(b *limits.Take) { b.Key = "" }),
					"key with a NUL":   bad(func(b *limits.Take) { b.Key = "a\x00" }),
					"twice":            bad(func(b *limits.Take) { b.Key = good.Key }),
					"negative cost":    bad(func(b *limits.Take) { b.Cost = -1 }),
					"no algorithm":     bad(func(b *limits.Take) { b.Limit = limits.Limit{N: 1, Period: 1} }),
					"no limit at all":  bad(func(b *limits.Take) { b.Limit = fixedWindow(0, time.Second) }),
					"no period":        bad(func(b *limits.Take) { b.Limit = fixedWindow(1, 0) }),
					"too precise":      bad(func(b *limits.Take) { b.Limit = fixedWindow(1, 1500) }),
					"too much":         bad(func(b *limits.Take) { b.Limit = fixedWindow(math.MaxInt64, time.Second) }),
					"burst of nothing": bad(func(b *limits.Take) { b.Limit = tokenBucket(1, time.Second, 0) }),
					"uneven parts":     bad(func(b *limits.Take) { b.Limit = slidingWindow(1, time.Second, 7, false) }),
					"a negative limit": bad(func(b *limits.Take) { b.Limit = fixedWindow(-1, time.Second) }),
					"negative period":  bad(func(b *limits.Take) { b.Limit = tokenBucket(1, -time.Second, 1) }),
					"endless period":   bad(func(b *limits.Take) { b.Limit = slidingWindow(1, math.MaxInt64/1000*1000, 1, false) }),
					"negative burst":   bad(func(b *limits.Take) { b.Limit = leakyBucket(1, time.Second, -1, 0) }),
					"endless burst":    bad(func(b *limits.Take) { b.Limit = tokenBucket(1, time.Hour, math.MaxInt64) }),
					"all ahead":        bad(func(b *limits.Take) { b.Limit = leakyBucket(1, time.Second, 5, 6) }),
					"no parts":         bad(func(b *limits.Take) { b.Limit = slidingWindow(1, time.Second, 0, false) }),
					"a log too long":   bad(func(b *limits.Take) { b.Limit = slidingLog(1_000_000, time.Second) }),
					"estimated too":    bad(func(b *limits.Take) { b.Limit = estimated(1<<50, time.Hour+time.Microsecond) }),
					"unknown":          bad(func(b *limits.Take) { b.Limit.Algorithm = 99 }),
					"what it has not":  bad(func(b *limits.Take) { b.Limit.Burst = 5 }),
					"Now is in 2100":   with(func(r *limits.Request) { r.Now = 4_100_000_000_000_000 }),
					"refund of 2100":   with(func(r *limits.Request) { r.Mode, r.At = limits.GiveBack, 4_100_000_000_000_000 }),
					"ID kept too long": with(func(r *limits.Request) { r.ID, r.Keep = "a", limits.MaxKeep+1 }),
					"mode":             with(func(r *limits.Request) { r.Mode = 99 }),
					"bad ID":           with(func(r *limits.Request) { r.ID, r.Keep = "a b", time.Second }),
					"ID not kept":      with(func(r *limits.Request) { r.ID = "a" }),
					"ID for a refund":  with(func(r *limits.Request) { r.Mode, r.At, r.ID, r.Keep = limits.GiveBack, 1, "a", time.Second }),
					"negative wait":    with(func(r *limits.Request) { r.MaxWait = -1 }),
					"turn before now":  with(func(r *limits.Request) { r.TurnWithin = -1 }),
				} {
					_, err := t.all[0].Take(t.ctx, r)
					var l *limits.Error
					var k *driver.KeyError
					var q *driver.RequestError
					if !errors.As(err, &l) && !errors.As(err, &k) && !errors.As(err, &q) {
						t.Errorf("%s: error %v", name, err)
					}
				}
				if left := t.look(good.Key, l, 0).Remaining; left != 5 {
					t.Errorf("bad requests left %d of 5", left)
				}
			},
		},
		{
			name:  "fresh keys are exact",
			why:   "limiters that count with fractions show one less",
			timed: true,
			run: func(t *limitTest) {
				for i, rate := range []struct {
					n      int64
					period time.Duration
				}{{10, time.Second}, {100, time.Minute}, {1000, time.Hour}, {1_000_000, time.Hour}} {
					for j, l := range []limits.Limit{
						fixedWindow(rate.n, rate.period), slidingWindow(rate.n, rate.period, 10, false), slidingWindow(rate.n, rate.period, 60, true),
						slidingLog(min(rate.n, 10_000), rate.period), estimated(rate.n, rate.period),
						tokenBucket(rate.n, rate.period, rate.n), leakyBucket(rate.n, rate.period, rate.n, 0),
					} {
						if l.Parts == 60 && rate.period == time.Second {
							l.Parts = 10 // 60 is no multiple of it
						}
						r := limits.Request{Takes: []limits.Take{{Key: fmt.Sprint("k", i, "-", j), Limit: l, Cost: 1}}, Now: origin}
						if d := t.take(r); !d.OK || d.Limits[0].Remaining != l.Capacity()-1 {
							t.Errorf("%+v: %+v", l, d)
						}
					}
				}
			},
		},
		{
			name:  "costs beyond all bounds",
			why:   "a sum that overflows allows what must be refused, or locks out for ever",
			timed: true,
			run: func(t *limitTest) {
				other := limits.Take{Key: t.key("other"), Limit: fiveOfEach[0], Cost: 1}
				for i, l := range fiveOfEach {
					ask := func(mode limits.Mode, cost int64, more ...limits.Take) limits.Request {
						r := limits.Request{Takes: []limits.Take{{Key: t.key(fmt.Sprint("k", i)), Limit: l, Cost: cost}}, Mode: mode, Now: origin}
						r.Takes = append(r.Takes, more...)
						return r
					}
					t.take(ask(limits.TakeIfAllowed, 2))
					r := ask(limits.TakeIfAllowed, math.MaxInt64, other)
					r.MaxWait = math.MaxInt64
					if d := t.take(r); d.OK || d.Retry != limits.Never || d.Limits[0].Remaining != 3 || d.Limits[1].Remaining != 5 {
						t.Errorf("%v: %+v", l.Algorithm, d)
					}
					for range 2 {
						// Twice the capacity has to come back; in a window it does when
						// the window ends.
						if d := t.take(ask(limits.TakeAnyway, math.MaxInt64)); !d.OK || d.Limits[0].Remaining != 0 || d.Limits[0].Reset > 200_000*time.Hour {
							t.Errorf("%v, anyway: %+v", l.Algorithm, d)
						}
					}
					r = ask(limits.GiveBack, math.MaxInt64)
					r.At = origin
					if x := t.take(r).Limits[0]; x.Remaining > 5 || x.Reset < 0 {
						t.Errorf("%v, given back: %+v", l.Algorithm, x)
					}
				}
			},
		},
		{
			name: "a context that has ended",
			why:  "a request that nobody waits for any more takes nothing",
			run: func(t *limitTest) {
				ctx, cancel := context.WithCancel(t.ctx)
				cancel()
				if _, err := t.all[0].Take(ctx, limits.Request{Takes: []limits.Take{{Key: "k", Limit: fiveOfEach[0], Cost: 1}}}); !errors.Is(err, context.Canceled) {
					t.Errorf("error %v", err)
				}
				if left := t.look("k", fiveOfEach[0], 0).Remaining; left != 5 {
					t.Errorf("%d of 5 remain", left)
				}
			},
		},
		{
			name: "a look changes nothing",
			why:  "monitoring must not use up what it looks at, nor fill the store with keys",
			kept: true,
			run: func(t *limitTest) {
				for i, l := range fiveOfEach {
					if d := t.one(fmt.Sprint("k", i), l, 0); !d.OK || d.Limits[0].Remaining != 5 || d.Limits[0].Reset != 0 {
						t.Errorf("%v: %+v", l.Algorithm, d)
					}
					if d := t.one(fmt.Sprint("k", i), l, 6); d.OK || d.Limits[0].Remaining != 5 {
						t.Errorf("%v: %+v", l.Algorithm, d)
					}
				}
				if n := t.h.Kept(t, t.all[0]); n != 0 {
					t.Errorf("the store keeps %d things of keys of which nothing was taken", n)
				}
			},
		},
		{
			name:  "changed limits keep what was taken",
			why:   "a limit that is raised gives the difference, one that is lowered below what was taken gives nothing, and neither a second helping",
			timed: true,
			run: func(t *limitTest) {
				for i, c := range []struct{ before, higher, lower limits.Limit }{
					{tokenBucket(100, time.Minute, 100), tokenBucket(200, time.Minute, 200), tokenBucket(20, time.Minute, 20)},
					{leakyBucket(100, time.Minute, 100, 0), leakyBucket(200, time.Minute, 200, 0), leakyBucket(20, time.Minute, 20, 0)},
					{slidingWindow(100, time.Minute, 6, false), slidingWindow(200, time.Minute, 6, false), slidingWindow(20, time.Minute, 6, false)},
					{slidingWindow(100, time.Minute, 6, false), slidingWindow(200, 2*time.Minute, 60, false), slidingWindow(20, 30*time.Second, 3, true)},
					{slidingWindow(100, time.Minute, 6, false), slidingLog(200, time.Minute), fixedWindow(20, time.Minute)},
					{fixedWindow(100, time.Minute), fixedWindow(200, time.Minute), fixedWindow(20, 30*time.Second)},
					{slidingLog(100, time.Minute), slidingLog(200, time.Minute), slidingLog(20, 30*time.Second)},
					{estimated(100, time.Minute), estimated(200, time.Minute), estimated(20, 30*time.Second)},
				} {
					for j, to := range []struct {
						limit limits.Limit
						left  int64
					}{{c.higher, 140}, {c.lower, 0}} {
						key := fmt.Sprint("k", i, "-", j)
						for _, cost := range []int64{40, 20} {
							t.take(limits.Request{Takes: []limits.Take{{Key: key, Limit: c.before, Cost: cost}}, Now: origin})
						}
						d := t.take(limits.Request{Takes: []limits.Take{{Key: key, Limit: to.limit, Cost: 1}}, Now: origin}).Limits[0]
						if want := max(to.left-1, 0); d.Remaining != want || d.OK != (to.left > 0) || d.Reset > 3*time.Minute {
							t.Errorf("60 of %+v became %+v of %+v", c.before, d, to.limit)
						}
					}
				}
			},
		},
		{
			name: "forget",
			why:  "an operator can give a caller a fresh start",
			run: func(t *limitTest) {
				var r limits.Request
				for i, l := range fiveOfEach {
					r.Takes = append(r.Takes, limits.Take{Key: t.key(fmt.Sprint("k", i)), Limit: l, Cost: 3})
				}
				t.take(r)
				r.Mode = limits.Forget
				forgotten := slices.Clone(r.Takes[1:])
				d := t.take(limits.Request{Takes: forgotten, Mode: limits.Forget})
				if !d.OK {
					t.Errorf("%+v", d)
				}
				for i, take := range r.Takes {
					want := int64(5)
					if i == 0 {
						want = 2
					}
					if x := t.look(take.Key, take.Limit, 0); x.Remaining != want {
						t.Errorf("%v: %+v, want %d", take.Limit.Algorithm, x, want)
					}
				}
			},
		},
	}
}
