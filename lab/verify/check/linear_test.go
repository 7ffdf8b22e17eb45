package check

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/batonhq/baton/lab/verify/history"
)

// The orders that the search leaves out are never the only ones that fit: a search of all orders
// has the same result.
func TestStepsAgainstAllOrders(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for _, m := range []struct {
		name  string
		modes []history.Mode
		steps func([]span) []porcupine.Operation
		order func(a, b span) int
	}{
		{"exclusive", []history.Mode{history.Exclusive}, readWrite, func(a, b span) int { return int(a.Token - b.Token) }},
		{"read-write", []history.Mode{history.Exclusive, history.Shared, history.Shared}, readWrite, func(a, b span) int { return int(a.Token - b.Token) }},
		{"permits", []history.Mode{history.Permits}, semaphore, func(a, b span) int { return int(a.Returned - b.Returned) }},
	} {
		verdicts := make(map[porcupine.CheckResult]int)
		for n := range 4000 {
			all := someSpans(r, m.modes)
			slices.SortStableFunc(all, m.order)
			want := porcupine.CheckOperationsTimeout(everyOrder(all), naive(all), time.Hour)
			got := porcupine.CheckOperationsTimeout(steps, m.steps(all), time.Hour)
			if verdicts[got]++; got != want {
				t.Fatalf("%s, history %d: %v, and among all orders %v:\n%+v", m.name, n, got, want, all)
			}
		}
		t.Logf("%s: %v", m.name, verdicts)
		if verdicts[porcupine.Ok] < 400 || verdicts[porcupine.Illegal] < 400 {
			t.Errorf("%s: %v: of one kind there are too few", m.name, verdicts)
		}
	}
}

// someSpans draws some holds that may or may not fit together.
func someSpans(r *rand.Rand, modes []history.Mode) []span {
	var all []span
	tokens := r.Perm(6)
	for i := range 2 + r.IntN(4) {
		called := 1 + r.Int64N(40)
		o := &history.Hold{
			Mode: modes[r.IntN(len(modes))], Weight: 1 + r.Int64N(2), Of: 3, Called: called, Returned: called + 1 + r.Int64N(8),
			Token: called/4 + int64(tokens[i]), Result: history.Granted,
		}
		o.Token = o.Token*10 + int64(i) // all differ
		switch r.IntN(3) {
		case 0:
			o.SureFrom = o.Returned + 1
			o.SureTo = o.SureFrom + r.Int64N(8)
		case 1:
			if o.Mode != history.Permits {
				break // never seen valid, and no known end
			}
			fallthrough
		default:
			o.ReleaseCalled = o.Returned + 1 + r.Int64N(8)
			o.ReleaseReturned, o.Released = o.ReleaseCalled+r.Int64N(8), history.Granted
		}
		all = append(all, spanOf(o))
	}
	return all
}

type held struct{ granted, ended uint }

type act struct {
	grant bool
	i     int
}

// naive makes the grants and ends of spans, in no order.
func naive(all []span) []porcupine.Operation {
	var ops []porcupine.Operation
	for i, s := range all {
		ops = append(ops, porcupine.Operation{Input: act{true, i}, Call: s.Called, Return: s.Returned},
			porcupine.Operation{Input: act{false, i}, Call: s.lo, Return: s.hi})
	}
	return ops
}

// everyOrder is a store that grants what fits, with tokens that rise between
// those that exclude each other.
func everyOrder(all []span) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return held{} },
		Step: func(state, input, _ any) (bool, any) {
			h, a := state.(held), input.(act)
			if !a.grant {
				h.ended |= 1 << a.i
				return h.granted&(1<<a.i) != 0, h
			}
			s := all[a.i]
			sum := s.Weight
			for g := h.granted; g != 0; g &= g - 1 {
				b := all[bits.TrailingZeros(g)]
				holds := h.ended&(g&-g) == 0
				switch {
				case s.Mode == history.Permits:
					if holds {
						sum += b.Weight
					}
				case excludes(s.Hold, b.Hold) && (holds || b.Token > s.Token):
					return false, h
				}
			}
			h.granted |= 1 << a.i
			return s.Mode != history.Permits || sum <= s.Of, h
		},
	}
}

// A part that porcupine did not finish is neither held nor broken.
func TestLinearWithoutTime(t *testing.T) {
	var f Findings
	h := &history.History{Holds: []history.Hold{hold(1, history.Exclusive, 2, 10, 20), hold(2, history.Exclusive, 1, 30, 40)}}
	f.linear(byKey(h, &f), maxPart, 0)
	if len(f.Violations) != 0 || len(f.Undecided) != 1 || f.Undecided[0].Check != "linear" {
		t.Errorf("%+v", f)
	}
}
