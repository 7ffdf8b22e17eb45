package check

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// A mutant is one change to the history of a correct store that no correct store can have caused.
type mutant struct {
	name  string
	check string // the check that finds it
	// change reports whether it has found something to change.
	change func(h *history.History, r *rand.Rand) bool
}

var mutants = []mutant{
	{"two tokens are swapped", "tokens", func(h *history.History, r *rand.Rand) bool {
		a, b := next(h, r, func(a, b *history.Hold) bool { return a.Returned < b.Called })
		return a != nil && swap(&a.Token, &b.Token)
	}},
	{"two tokens of those who waited together are swapped", "linear", func(h *history.History, r *rand.Rand) bool {
		a, b := next(h, r, func(a, b *history.Hold) bool {
			return a.Returned > b.Called && a.Freed() && a.ReleaseCalled > a.Returned
		})
		return a != nil && swap(&a.Token, &b.Token)
	}},
	{"a token is given twice", "tokens", func(h *history.History, r *rand.Rand) bool {
		a, b := next(h, r, always)
		return a != nil && set(&b.Token, a.Token)
	}},
	{"a token falls", "tokens", func(h *history.History, r *rand.Rand) bool {
		a, b := next(h, r, func(a, b *history.Hold) bool { return a.Returned < b.Called })
		return a != nil && set(&b.Token, a.Token-1)
	}},
	{"a release is dropped, and the belief lasts", "overlap", func(h *history.History, r *rand.Rand) bool {
		a, b := next(h, r, func(_, b *history.Hold) bool { return b.SureTo > b.SureFrom })
		if a == nil {
			return false
		}
		a.ReleaseCalled, a.ReleaseReturned, a.Released, a.SureTo = 0, 0, "", b.SureTo
		return true
	}},
	{"a lease is valid after its release", "revived", func(h *history.History, r *rand.Rand) bool {
		a, _ := next(h, r, func(a, b *history.Hold) bool { return a.Freed() && a.ReleaseReturned < b.Called })
		return a != nil && set(&a.SureTo, a.ReleaseReturned+1)
	}},
	{"a hold is earlier", "overlap", func(h *history.History, r *rand.Rand) bool {
		a, b := next(h, r, func(a, b *history.Hold) bool { return a.SureTo > a.SureFrom && b.SureTo > b.SureFrom })
		return a != nil && shift(b, a.SureTo-1-b.SureFrom)
	}},
	{"a hold is later", "overlap", func(h *history.History, r *rand.Rand) bool {
		a, b := next(h, r, func(a, b *history.Hold) bool { return a.SureTo > a.SureFrom && b.SureTo > b.SureFrom })
		return a != nil && shift(a, b.SureFrom+1-a.SureTo)
	}},
	{"a grant is answered before the lock is released", "linear", func(h *history.History, r *rand.Rand) bool {
		a, b := next(h, r, func(a, b *history.Hold) bool { return a.Freed() && b.Called < a.ReleaseCalled })
		return a != nil && set(&b.Returned, a.ReleaseCalled-1)
	}},
	{"a release is called after the next was granted", "linear", func(h *history.History, r *rand.Rand) bool {
		a, b := next(h, r, func(a, b *history.Hold) bool { return a.Freed() && b.ReleaseCalled > 0 })
		return a != nil && set(&a.ReleaseCalled, b.Returned+1) && set(&a.ReleaseReturned, b.Returned+2)
	}},
	{"two keys are one", "overlap", func(h *history.History, r *rand.Rand) bool {
		for _, i := range some(h, r, func(o *history.Hold) bool {
			return o.Mode == history.Exclusive && o.Key == "a" && o.SureTo > o.SureFrom
		}) {
			for _, j := range grants(h, func(o *history.Hold) bool { return o.Key == "rw" && o.SureTo > o.SureFrom }) {
				if a, b := &h.Holds[i], &h.Holds[j]; a.SureFrom < b.SureTo && b.SureFrom < a.SureTo {
					b.Key = a.Key
					return true
				}
			}
		}
		return false
	}},
	{"a reader among readers is a writer", "overlap", func(h *history.History, r *rand.Rand) bool {
		at := grants(h, func(o *history.Hold) bool { return o.Mode == history.Shared && o.SureTo > o.SureFrom })
		for n := 1; n < len(at); n++ {
			if a, b := &h.Holds[at[n-1]], &h.Holds[at[n]]; b.SureFrom < a.SureTo {
				b.Mode = history.Exclusive
				return true
			}
		}
		return false
	}},
	{"permits are taken twice", "overlap", func(h *history.History, r *rand.Rand) bool {
		at := some(h, r, func(o *history.Hold) bool { return o.Weight == 2 && o.SureTo > o.SureFrom })
		return len(at) > 0 && again(h, h.Holds[at[0]])
	}},
	{"a stale write is accepted", "writes", func(h *history.History, r *rand.Rand) bool {
		i := slices.IndexFunc(h.Writes, func(w history.Write) bool { return w.Stale })
		return i >= 0 && set(&h.Writes[i].Accepted, true)
	}},
	{"a good write is refused", "writes", func(h *history.History, r *rand.Rand) bool {
		at := r.IntN(len(h.Writes))
		i := slices.IndexFunc(h.Writes[at:], func(w history.Write) bool { return !w.Stale })
		return i >= 0 && set(&h.Writes[at+i].Accepted, false)
	}},
	{"a write comes with the token of another", "writes", func(h *history.History, r *rand.Rand) bool {
		w := &h.Writes[r.IntN(len(h.Writes))]
		a, _ := next(h, r, func(a, _ *history.Hold) bool { return a.Op != w.Op })
		answered := slices.ContainsFunc(h.Holds, func(o history.Hold) bool { return o.Op == w.Op && o.Result == history.Granted })
		return a != nil && answered && set(&w.Token, a.Token)
	}},
	{"a limiter admits the same again", "windows", func(h *history.History, r *rand.Rand) bool {
		at := slices.IndexFunc(h.Decisions, func(d history.Decision) bool {
			return d.Result == history.Granted && d.Returned-d.Called < 10*ms && r.IntN(10) == 0
		})
		if at < 0 {
			return false
		}
		for n := range int64(6) {
			d := h.Decisions[at]
			d.Number = 1_000_000 + n
			h.Decisions = append(h.Decisions, d)
		}
		return true
	}},
	{"a waiter is never granted", "waiting", func(h *history.History, r *rand.Rand) bool {
		at := some(h, r, func(o *history.Hold) bool {
			return o.Waits && o.Called > h.Mark(history.Healed) && o.Called < h.Mark(history.Drains)
		})
		if len(at) == 0 {
			return false
		}
		o := &h.Holds[at[0]]
		*o = history.Hold{Op: o.Op, Key: o.Key, Mode: o.Mode, Weight: o.Weight, Of: o.Of, Waits: true, Called: o.Called, Result: history.Unknown}
		return later(h, h.Mark(history.Ends), 3*limit)
	}},
	{"waiters give up", "waiting", func(h *history.History, r *rand.Rand) bool {
		at := some(h, r, func(o *history.Hold) bool {
			return o.Waits && o.Called > h.Mark(history.Healed) && o.Called < h.Mark(history.Drains)
		})
		if len(at) < 2 {
			return false
		}
		key := h.Holds[at[0]].Key
		for _, i := range at {
			if o := &h.Holds[i]; o.Key == key {
				*o = history.Hold{Op: o.Op, Key: key, Mode: o.Mode, Weight: o.Weight, Of: o.Of, Waits: true, Called: o.Called, Returned: h.Mark(history.Ends), Result: history.Unknown}
			}
		}
		return later(h, h.Mark(history.Ends), 3*limit)
	}},
	{"all sleep while somebody waits", "waiting", func(h *history.History, r *rand.Rand) bool {
		var idle []stretch
		for _, k := range byKey(h, &Findings{}) {
			if k.key == "a" {
				idle = (&world{killed: h.Killed()}).idle(k)
			}
		}
		for _, i := range some(h, r, func(o *history.Hold) bool { return o.Waits && o.Key == "a" && o.Called > h.Mark(history.Healed) }) {
			t := h.Holds[i].Called + 1
			if slices.ContainsFunc(idle, func(s stretch) bool { return s.from < t && t < s.to }) {
				return later(h, t, 2*limit)
			}
		}
		return false
	}},
	{"an attempt does not return", "waiting", func(h *history.History, r *rand.Rand) bool {
		h.Holds = append(h.Holds, history.Hold{Op: history.Op{Client: 99}, Key: "a", Mode: history.Exclusive, Called: h.Mark(history.Healed) + r.Int64N(100), Result: history.Unknown})
		return true
	}},
	{"a release does not return", "waiting", func(h *history.History, r *rand.Rand) bool {
		at := some(h, r, func(o *history.Hold) bool {
			return o.Key == "rw" && o.ReleaseCalled > h.Mark(history.Healed) && o.ReleaseCalled < h.Mark(history.Drains)-2*limit
		})
		if len(at) == 0 {
			return false
		}
		o := &h.Holds[at[0]]
		o.ReleaseReturned, o.Released = 0, ""
		return true
	}},
	{"a lock that is free is refused", "refused", func(h *history.History, r *rand.Rand) bool {
		t := h.Mark(history.Ends) + 3*limit
		h.Holds = append(h.Holds, history.Hold{Op: history.Op{Client: 99}, Key: "a", Mode: history.Exclusive, Called: t, Returned: t + 1, Result: history.Refused})
		return later(h, h.Mark(history.Ends), 4*limit)
	}},
	{"a permit is lost", "permits", func(h *history.History, r *rand.Rand) bool {
		n := len(h.Holds) // the last four are the count
		later(h, h.Holds[n-2].Called+1, 2*limit)
		o := &h.Holds[n-2]
		*o = history.Hold{Op: o.Op, Key: o.Key, Mode: o.Mode, Weight: 1, Of: o.Of, Waits: true, Called: o.Called, Returned: o.Returned, Result: history.Refused}
		h.Holds = h.Holds[:n-1]
		return true
	}},
	{"a permit is found", "permits", func(h *history.History, r *rand.Rand) bool {
		o := &h.Holds[len(h.Holds)-1]
		o.Result, o.Token = history.Granted, 1<<40
		return true
	}},
}

var limit = int64(simRules.TTL + simRules.Bound)

func always(_, _ *history.Hold) bool { return true }

func swap(a, b *int64) bool { *a, *b = *b, *a; return true }

func set[T any](a *T, to T) bool { *a = to; return true }

// some returns the positions of granted and trusted holds, in random order.
func some(h *history.History, r *rand.Rand, ok func(*history.Hold) bool) []int {
	at := grants(h, ok)
	r.Shuffle(len(at), func(i, j int) { at[i], at[j] = at[j], at[i] })
	return at
}

// next returns two exclusive holds of the key "a", one right after the other.
func next(h *history.History, r *rand.Rand, ok func(a, b *history.Hold) bool) (a, b *history.Hold) {
	at := grants(h, func(o *history.Hold) bool { return o.Key == "a" })
	for _, n := range r.Perm(len(at)) {
		if n > 0 && ok(&h.Holds[at[n-1]], &h.Holds[at[n]]) {
			return &h.Holds[at[n-1]], &h.Holds[at[n]]
		}
	}
	return nil, nil
}

// shift moves a hold in time.
func shift(o *history.Hold, d int64) bool {
	for _, t := range []*int64{&o.Called, &o.Returned, &o.SureFrom, &o.SureTo, &o.ReleaseCalled, &o.ReleaseReturned, &o.LostAt} {
		if *t != 0 {
			*t += d
		}
	}
	return true
}

// later moves all events after an instant.
func later(h *history.History, from, d int64) bool {
	move := func(all ...*int64) {
		for _, t := range all {
			if *t >= from {
				*t += d
			}
		}
	}
	for i := range h.Holds {
		o := &h.Holds[i]
		move(&o.Called, &o.Returned, &o.SureFrom, &o.SureTo, &o.ReleaseCalled, &o.ReleaseReturned, &o.LostAt)
	}
	for i := range h.Decisions {
		move(&h.Decisions[i].Called, &h.Decisions[i].Returned)
	}
	for i := range h.Marks {
		move(&h.Marks[i].At)
	}
	for i := range h.Writes {
		move(&h.Writes[i].At)
	}
	return true
}

// again adds a copy of a hold, with another client.
func again(h *history.History, o history.Hold) bool {
	o.Client, o.Token = 99, 1<<40
	h.Holds = append(h.Holds, o)
	return true
}

// Every change is found, by its check, in every history that it applies to.
func TestMutants(t *testing.T) {
	t.Parallel()
	const n = 20
	var mu sync.Mutex
	changed, found := make([]int, len(mutants)), make([]int, len(mutants))
	seeds(n, func(seed uint64) {
		clean := simulate(seed, defects{}, 14, 4*int64(time.Second))
		for i, m := range mutants {
			h := clone(clean)
			if !m.change(h, rand.New(rand.NewPCG(seed, uint64(i)))) {
				continue
			}
			h.Sort()
			got := checks(Run(h, rules(seed)))
			mu.Lock()
			changed[i]++
			if slices.Contains(got, m.check) {
				found[i]++
			} else {
				t.Errorf("%s: seed %d: found %v", m.name, seed, got)
			}
			mu.Unlock()
		}
	})
	for i, m := range mutants {
		t.Logf("%-52s %-8s %d of %d", m.name, m.check, found[i], changed[i])
		if changed[i] < n*3/4 {
			t.Errorf("%s: only %d of %d histories could be changed", m.name, changed[i], n)
		}
	}
}
