package drivertest

import (
	"fmt"
	"math"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

func turnCases() []limitCase {
	const ms, s = time.Millisecond, time.Second
	one := func(t *limitTest, mode limits.Mode, l limits.Limit, cost int64, now time.Duration, more func(*limits.Request)) limits.Taken {
		r := limits.Request{Takes: []limits.Take{{Key: "k", Limit: l, Cost: cost}}, Mode: mode, Now: origin + now.Microseconds()}
		if more != nil {
			more(&r)
		}
		return t.take(r)
	}
	back := func(d limits.Taken) func(*limits.Request) {
		return func(r *limits.Request) { r.At, r.Wait = d.At, d.Wait }
	}
	return []limitCase{
		{
			name:  "refund of what was taken first",
			why:   "a proxy that gives hits back does not know when they were taken, and no window may allow more than its limit to those that took it",
			timed: true,
			run: func(t *limitTest) {
				for i, l := range []limits.Limit{slidingWindow(10, 10*s, 10, false), slidingLog(10, 11*s), fixedWindow(10, time.Hour), tokenBucket(10, time.Hour, 10)} {
					key := t.key(fmt.Sprint("k", i))
					ask := func(mode limits.Mode, cost int64, at time.Duration) limits.Decision {
						return t.take(limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}, Mode: mode, Now: origin + at.Microseconds()}).Limits[0]
					}
					ask(limits.TakeIfAllowed, 4, 0)
					ask(limits.TakeIfAllowed, 3, 5*s)
					if x := ask(limits.GiveBack, 2, 6*s); x.Remaining != 5 {
						t.Errorf("%v: %+v, 2 of 7 given back", l.Algorithm, x)
					}
					if x := ask(limits.TakeIfAllowed, 0, 11*s); i < 2 && x.Remaining != 7 { // 2 were left of the 4, and have come back
						t.Errorf("%v, later: %+v", l.Algorithm, x)
					}
					if x := ask(limits.GiveBack, math.MaxInt64, 11*s); x.Remaining != 10 || x.Reset != 0 {
						t.Errorf("%v: %+v, all given back, and more", l.Algorithm, x)
					}
				}
				l := estimated(10, 10*s)
				one(t, limits.TakeIfAllowed, l, 4, 0, nil)
				one(t, limits.TakeIfAllowed, l, 3, 10*s, nil)
				if x := one(t, limits.GiveBack, l, 2, 10*s, nil).Limits[0]; x.Remaining != 5 {
					t.Errorf("%v: %+v", l.Algorithm, x)
				}
				if x := one(t, limits.GiveBack, l, 100, 10*s, nil).Limits[0]; x.Remaining != 10 || x.Reset != 0 {
					t.Errorf("%v, all: %+v", l.Algorithm, x)
				}
			},
		},
		{
			name:  "debt and refund",
			why:   "what turns out to cost more is charged although it is not allowed, and what turns out to cost less comes back, but never more than there was",
			timed: true,
			run: func(t *limitTest) {
				l := tokenBucket(10, s, 10)
				one(t, limits.TakeIfAllowed, l, 10, 0, nil)
				if x := t.look("k", l, origin+200_000); x.Remaining != 2 {
					t.Fatalf("%+v", x)
				}
				debt := one(t, limits.TakeAnyway, l, 6, 200*ms, nil)
				if x := debt.Limits[0]; !debt.OK || x.Remaining != 0 || x.Reset != 1400*ms || debt.Wait != 400*ms {
					t.Errorf("in debt: %+v", debt)
				}
				if d := one(t, limits.TakeIfAllowed, l, 1, 200*ms, nil); d.OK || d.Retry != 500*ms {
					t.Errorf("in debt: %+v", d)
				}
				if d := one(t, limits.GiveBack, l, 6, 200*ms, back(debt)); d.Limits[0].Remaining != 2 {
					t.Errorf("given back: %+v", d)
				}
				if d := one(t, limits.GiveBack, l, 100, 200*ms, back(debt)); d.Limits[0].Remaining != 10 || d.Limits[0].Reset != 0 {
					t.Errorf("too much given back: %+v", d)
				}
			},
		},
		{
			name:  "debt has a bound",
			why:   "one mistake must not lock a caller out for ever",
			timed: true,
			run: func(t *limitTest) {
				for i, l := range []limits.Limit{
					fixedWindow(5, time.Minute), slidingWindow(5, time.Minute, 6, false), slidingLog(5, time.Minute),
					estimated(5, time.Minute), tokenBucket(5, time.Minute, 5), leakyBucket(5, time.Minute, 5, 0),
				} {
					r := limits.Request{Takes: []limits.Take{{Key: fmt.Sprint("k", i), Limit: l, Cost: 1_000_000}}, Mode: limits.TakeAnyway, Now: origin}
					t.take(r)
					d := t.take(r)
					if x := d.Limits[0]; !d.OK || x.Remaining != 0 || x.Next <= 0 || x.Reset > 2*time.Minute {
						t.Errorf("%v: %+v", l.Algorithm, d)
					}
				}
			},
		},
		{
			name:  "reserve and settle",
			why:   "what a request costs is known when it is over",
			timed: true,
			run: func(t *limitTest) {
				l := tokenBucket(1000, time.Minute, 1000)
				reserve := func() limits.Taken {
					one(t, limits.Forget, l, 0, 0, nil)
					d := one(t, limits.TakeIfAllowed, l, 800, 0, nil)
					if x := t.look("k", l, origin+6_000_000); x.Remaining != 300 {
						t.Errorf("reserved: %+v", x)
					}
					return d
				}
				d := reserve()
				if x := one(t, limits.GiveBack, l, 500, 6*s, back(d)).Limits[0]; x.Remaining != 800 || x.Reset != 12*s {
					t.Errorf("it cost less: %+v", x)
				}
				reserve()
				if x := one(t, limits.TakeAnyway, l, 300, 6*s, nil).Limits[0]; x.Remaining != 0 {
					t.Errorf("it cost all: %+v", x)
				}
				if d := one(t, limits.TakeIfAllowed, l, 1, 6*s, nil); d.OK || d.Retry != 60*ms {
					t.Errorf("it cost all: %+v", d)
				}
			},
		},
		{
			name:  "a refund finds its window",
			why:   "what was taken in a window that is over must not make room in this one",
			timed: true,
			run: func(t *limitTest) {
				for i, l := range []limits.Limit{fixedWindow(5, time.Minute), slidingWindow(5, time.Minute, 6, false), slidingLog(5, time.Minute), estimated(5, time.Minute)} {
					key := fmt.Sprint("k", i)
					ask := func(mode limits.Mode, cost int64, now, at time.Duration) limits.Decision {
						r := limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}, Mode: mode, Now: origin + now.Microseconds()}
						if mode == limits.GiveBack {
							r.At = origin + at.Microseconds()
						}
						return t.take(r).Limits[0]
					}
					ask(limits.TakeIfAllowed, 4, 10*s, 0)
					ask(limits.TakeIfAllowed, 2, 130*s, 0)
					if x := ask(limits.GiveBack, 2, 130*s, 10*s); x.Remaining != 3 {
						t.Errorf("%v, of a window that is over: %+v", l.Algorithm, x)
					}
					if x := ask(limits.GiveBack, 1, 140*s, 130*s); x.Remaining != 4 {
						t.Errorf("%v, of this window: %+v", l.Algorithm, x)
					}
					if x := ask(limits.GiveBack, 100, 140*s, 130*s); x.Remaining != 5 || x.Reset != 0 {
						t.Errorf("%v, more than was taken: %+v", l.Algorithm, x)
					}
				}
			},
		},
		{
			name:  "turns of a token bucket",
			why:   "who waits for tokens has a turn of his own, first come, first served, and who would have to wait too long is told at once",
			timed: true,
			run: func(t *limitTest) {
				l := tokenBucket(1, s, 1)
				wait := func(most time.Duration) limits.Taken {
					return one(t, limits.TakeIfAllowed, l, 1, 0, func(r *limits.Request) { r.MaxWait = most })
				}
				var turns []limits.Taken
				for i := range 4 {
					d := wait(10 * s)
					if !d.OK || d.Wait != time.Duration(i)*s || d.Limits[0].Wait != d.Wait || d.Limits[0].Remaining != 0 {
						t.Fatalf("turn %d: %+v", i, d)
					}
					turns = append(turns, d)
				}
				if d := wait(3999 * ms); d.OK || d.Retry != 4*s {
					t.Errorf("a turn that is too late: %+v", d)
				}
				next := func() time.Duration { return wait(0).Retry }
				if d := one(t, limits.GiveBack, l, 1, 0, back(turns[1])); !d.OK || next() != 4*s {
					t.Errorf("a turn in the middle was given to somebody behind it: the next is in %v", next())
				}
				if d := one(t, limits.GiveBack, l, 1, 0, back(turns[3])); !d.OK || next() != 3*s {
					t.Errorf("the last turn did not come back: the next is in %v", next())
				}
			},
		},
		{
			name:  "turns of a leaky bucket",
			why:   "who leaves a queue makes room behind all who are in it",
			timed: true,
			run: func(t *limitTest) {
				l := leakyBucket(1, s, 4, 0)
				var turns []limits.Taken
				for range 4 {
					turns = append(turns, one(t, limits.TakeIfAllowed, l, 1, 0, nil))
				}
				if d := one(t, limits.GiveBack, l, 1, 0, back(turns[1])); d.Limits[0].Remaining != 0 {
					t.Errorf("a place in the middle was given away: %+v", d)
				}
				if d := one(t, limits.GiveBack, l, 1, 0, back(turns[3])); d.Limits[0].Remaining != 1 {
					t.Errorf("the last place did not come back: %+v", d)
				}
				if d := one(t, limits.TakeIfAllowed, l, 1, 0, nil); !d.OK || d.Wait != 3*s {
					t.Errorf("the last place, again: %+v", d)
				}
			},
		},
		{
			name:  "a turn that is too late takes nothing",
			why:   "callers who cannot wait for long are served as fast as the queue is, however many of them are refused; what they are refused must not be a turn of others",
			timed: true,
			run: func(t *limitTest) {
				queue, window := t.key("queue"), t.key("window")
				ask := func(now, within time.Duration) limits.Taken {
					return t.take(limits.Request{
						Takes: []limits.Take{{Key: queue, Limit: leakyBucket(10, s, 50, 0), Cost: 1}, {Key: window, Limit: fixedWindow(1000, time.Minute), Cost: 1}},
						Now:   origin + now.Microseconds(), TurnWithin: within,
					})
				}
				served := int64(0)
				for now := time.Duration(0); now < 2*s; now += 20 * ms {
					for range 3 { // every 20 ms; a turn takes 100 ms
						if d := ask(now, 100*ms); d.OK {
							served++
						} else if d.Wait != 0 || d.Retry <= 0 || d.Retry > 100*ms || d.Limits[0].OK || !d.Limits[1].OK {
							t.Errorf("at %v: %+v", now, d)
						}
					}
				}
				// One turn at once, one that comes within 100 ms, and one for each tenth
				// of a second since.
				if left := t.look(window, fixedWindow(1000, time.Minute), origin+2_000_000).Remaining; served != 21 || left != 1000-served {
					t.Errorf("%d turns were given in 2 s at 10/s, want 21; %d of 1000 remain", served, left)
				}
				// The last turn is at 2.0 s.
				if d := ask(1990*ms, 109*ms); d.OK || d.Retry != ms {
					t.Errorf("a turn that is a millisecond too late: %+v", d)
				}
				if d := ask(1990*ms, 110*ms); !d.OK || d.Wait != 110*ms {
					t.Errorf("the last turn that is not too late: %+v", d)
				}
				if d := ask(2190*ms, 1); d.OK || d.Retry != 10*ms {
					t.Errorf("no time to wait: %+v", d)
				}
				if d := ask(2200*ms, 1); !d.OK || d.Wait != 0 {
					t.Errorf("no time to wait, and no need to: %+v", d)
				}
				if d := ask(2200*ms, 0); !d.OK || d.Wait != 100*ms {
					t.Errorf("however late: %+v", d)
				}
				for range 48 {
					ask(2200*ms, 0)
				}
				if d := ask(2200*ms, 4*s); d.OK || d.Retry != s {
					t.Errorf("a queue that is full, and too long: %+v", d)
				}
				if d := ask(2200*ms, time.Minute); d.OK || d.Retry != 100*ms {
					t.Errorf("a queue that is full: %+v", d)
				}
			},
		},
	}
}
