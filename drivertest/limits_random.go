package drivertest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

func randomCases() (all []limitCase) {
	for a := limits.FixedWindow; a <= limits.LeakyBucket; a++ {
		all = append(all, limitCase{
			name:  "random requests, " + a.String(),
			why:   "whatever is asked in whatever order, every store says the same, to the microsecond",
			timed: true,
			run: func(t *limitTest) {
				t.random(rand.New(rand.NewPCG(1, uint64(a))), func(r *rand.Rand) limits.Limit { return randomLimit(r, a) }, 2_000_000)
			},
		})
	}
	return append(all, limitCase{
		name:  "random requests, mixed",
		why:   "one decision can be about limits of all kinds, and a key can be asked for another limit than before",
		timed: true,
		run: func(t *limitTest) {
			t.random(rand.New(rand.NewPCG(1, 99)), func(r *rand.Rand) limits.Limit {
				return randomLimit(r, limits.Algorithm(1+r.IntN(int(limits.LeakyBucket))))
			}, 2_000_000)
		},
	}, limitCase{
		name:  "random requests, long logs",
		why:   "a store that does not send all that it remembers must not say anything else because of that",
		timed: true,
		run: func(t *limitTest) {
			t.random(rand.New(rand.NewPCG(1, 98)), func(r *rand.Rand) limits.Limit {
				l := randomLimit(r, []limits.Algorithm{limits.SlidingLog, limits.SlidingWindow}[r.IntN(2)])
				l.N = 30 + r.Int64N(100)
				if l.Algorithm == limits.SlidingWindow {
					l.Parts, l.Period = 200, time.Duration(200*(1+r.Int64N(10_000)))*time.Microsecond
				}
				return l
			}, 20_000)
		},
	})
}

// random makes requests and compares the answers with those of package rate. pace is the
// longest time between two requests, in microseconds.
func (t *limitTest) random(r *rand.Rand, limit func(*rand.Rand) limits.Limit, pace int64) {
	const keys = 4
	steps := cmp.Or(t.h.Steps, 300)
	all := make([]limits.Limit, keys)
	states := make([]rate.State, keys)
	now := origin + r.Int64N(1_000_000)
	type past struct {
		key      int
		cost     int64
		at, wait int64
	}
	var taken []past
	for i := range all {
		all[i] = limit(r)
	}
	for n := range steps {
		if r.IntN(40) == 0 {
			i := r.IntN(keys)
			before := all[i]
			if all[i] = limit(r); r.IntN(2) == 0 {
				all[i].N = before.N // so that sometimes only the period changes
			}
		}
		switch r.IntN(60) {
		case 0:
			now -= 1 + r.Int64N(2_000_000)
		case 1:
			now -= time.Hour.Microseconds()
		default:
			now += []int64{0, r.Int64N(5), r.Int64N(5000), r.Int64N(pace)}[r.IntN(4)]
		}
		q := limits.Request{Now: now}
		var which []int
		switch {
		case r.IntN(12) == 0 && len(taken) > 0:
			p := taken[len(taken)-1-r.IntN(min(len(taken), 5))]
			if q.Mode = limits.GiveBack; r.IntN(3) > 0 {
				q.At, q.Wait = p.at, time.Duration(p.wait)*time.Microsecond
			}
			which = []int{p.key}
			q.Takes = []limits.Take{{Cost: p.cost}}
		default:
			which = r.Perm(keys)[:1+r.IntN(3)]
			q.Takes = make([]limits.Take, len(which))
			for j, i := range which {
				most := all[i].Capacity() + 1
				if r.IntN(2) == 0 {
					most = min(most, 4)
				}
				q.Takes[j].Cost = r.Int64N(most + 1)
			}
			if r.IntN(15) == 0 {
				q.Mode = limits.TakeAnyway
			} else if r.IntN(100) == 0 {
				q.Mode = limits.Forget
			}
			if r.IntN(3) == 0 {
				q.MaxWait = time.Duration(r.Int64N(3_000_000)) * time.Microsecond
			}
			if r.IntN(3) == 0 {
				q.TurnWithin = time.Duration(r.Int64N(3_000_000)) * time.Microsecond
			}
		}
		mine := make([]rate.State, len(which))
		for j, i := range which {
			q.Takes[j].Key, q.Takes[j].Limit = t.key(fmt.Sprint("k", i)), all[i]
			mine[j] = slices.Clone(states[i])
		}
		request, err := rate.NewRequest(q)
		if err != nil {
			t.Fatalf("step %d: %+v: %v", n, q, err)
		}
		before := fmt.Sprint(mine)
		want, changed := request.Decide(mine, now)
		for j, i := range which {
			if changed {
				states[i] = mine[j]
			}
		}
		got := t.take(q)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("step %d: %+v\nof %v is answered with\n%+v, which should be\n%+v", n, q, before, got, want)
		}
		if want.OK && q.Mode <= limits.TakeAnyway {
			for j, i := range which {
				taken = append(taken, past{i, q.Takes[j].Cost, want.At, want.Limits[j].Wait.Microseconds()})
			}
		}
	}
}

// randomLimit is a small limit: requests reach its edges.
func randomLimit(r *rand.Rand, a limits.Algorithm) limits.Limit {
	l := limits.Limit{Algorithm: a, N: 1 + r.Int64N(20), Period: time.Duration(1+r.Int64N(2_000_000)) * time.Microsecond}
	switch a {
	case limits.FixedWindow:
		l.Offset = time.Duration(r.Int64N(2_000_000)-1_000_000) * time.Microsecond
	case limits.SlidingWindow:
		l.Parts = 1 + r.Int64N(12)
		l.Period = time.Duration(l.Parts*(1+r.Int64N(200_000))) * time.Microsecond
		l.Classic = r.IntN(2) == 0
	case limits.TokenBucket, limits.LeakyBucket:
		l.N, l.Burst = 1+r.Int64N(30), 1+r.Int64N(20)
		if a == limits.LeakyBucket {
			l.Ahead = r.Int64N(l.Burst + 1)
		}
	}
	return l
}
