package rate

import (
	"flag"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/batonhq/baton/driver/limits"
)

const sec = 1_000_000 // µs

var steps = flag.Int("steps", 200_000, "how many random steps each property test takes per algorithm")

// kinds makes random limits, small ones, so that the edges are met.
var kinds = map[string]func(r *rand.Rand) (Algorithm, error){
	"fixed window": func(r *rand.Rand) (Algorithm, error) {
		return NewFixed(1+r.Int64N(20), 1+r.Int64N(1000), r.Int64N(1000))
	},
	"strict": func(r *rand.Rand) (Algorithm, error) {
		m := 1 + r.Int64N(10)
		return NewSliding(1+r.Int64N(20), m*(1+r.Int64N(100)), m, true)
	},
	"classic": func(r *rand.Rand) (Algorithm, error) {
		m := 1 + r.Int64N(10)
		return NewSliding(1+r.Int64N(20), m*(1+r.Int64N(100)), m, false)
	},
	"two counters": func(r *rand.Rand) (Algorithm, error) { return NewApprox(1+r.Int64N(20), 1+r.Int64N(1000)) },
	"log":          func(r *rand.Rand) (Algorithm, error) { return NewLog(1+r.Int64N(20), 1+r.Int64N(1000)) },
	"token bucket": func(r *rand.Rand) (Algorithm, error) {
		return NewBucket(1+r.Int64N(30), 1+r.Int64N(1000), 1+r.Int64N(20))
	},
	"leaky bucket": func(r *rand.Rand) (Algorithm, error) {
		n := 1 + r.Int64N(20)
		return NewQueue(1+r.Int64N(30), 1+r.Int64N(1000), n, r.Int64N(n+1))
	},
}

// each runs f with many random limits of each kind, n steps in all.
func each(t *testing.T, f func(t *testing.T, r *rand.Rand, a Algorithm, n int)) {
	for name, make := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const at = 500
			rounds := max((*steps+at-1)/at, 1)
			t.Logf("%d steps", rounds*at)
			for i := range rounds {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				a, err := make(r)
				if err != nil {
					t.Fatal(err)
				}
				if f(t, r, a, at); t.Failed() {
					t.Fatalf("%+v, number %d", a, i)
				}
			}
		})
	}
}

// decide asks all limits for the same cost.
func decide(all []Algorithm, states []State, now, cost int64) limits.Taken {
	r := &Request{Limits: all}
	for range all {
		r.Takes = append(r.Takes, limits.Take{Cost: cost})
	}
	work := make([]State, len(states))
	for i, s := range states {
		work[i] = slices.Clone(s)
	}
	d, changed := r.Decide(work, now)
	if changed {
		copy(states, work)
	}
	return d
}

// look returns the status of a state of any kind.
func look(a Algorithm, s State, now int64) Status {
	m := split(a, slices.Clone(s), now)
	m.own, _ = a.Settle(m.own, now)
	return m.status(a, now)
}

// anyTurn is how far ahead a turn may be by default.
func anyTurn(a Algorithm) int64 { return (&Request{}).ahead(a) }

func settle(a Algorithm, s State, now int64) State {
	s, _ = a.Settle(s, now)
	return s
}

// pause is a random time to the next request.
func pause(r *rand.Rand) int64 {
	switch r.IntN(4) {
	case 0:
		return 0
	case 1:
		return r.Int64N(5)
	case 2:
		return r.Int64N(100)
	}
	return r.Int64N(600)
}

// A promise is neither early nor late, and a refusal changes nothing.
func TestPromises(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand, a Algorithm, n int) {
		var s State
		now := int64(1_800_000_000_000_000) + r.Int64N(1000)
		at := func(moment, cost int64) bool {
			return a.Ask(settle(a, slices.Clone(s), moment), moment, cost, anyTurn(a)).OK
		}
		left := func(moment int64) int64 { return a.Status(settle(a, slices.Clone(s), moment), moment).Remaining }
		for range n {
			now += pause(r)
			s = settle(a, s, now)
			before := slices.Clone(s)
			cost := 1 + r.Int64N(a.Capacity())
			st := a.Status(s, now)
			answer := a.Ask(s, now, cost, anyTurn(a))
			if !slices.Equal(s, before) {
				t.Fatalf("asking made %v of %v", s, before)
			}
			if answer.OK != (cost <= st.Remaining) {
				t.Fatalf("%d: %+v, %+v", cost, answer, st)
			}
			if !answer.OK && (answer.Retry < 1 || at(now+answer.Retry-1, cost) || !at(now+answer.Retry, cost)) {
				t.Fatalf("%d of %v at %d: %+v is wrong", cost, s, now, answer)
			}
			if (st.Next == 0) != (st.Remaining == a.Capacity()) ||
				st.Next > 0 && (left(now+st.Next-1) > st.Remaining || left(now+st.Next) <= st.Remaining) {
				t.Fatalf("%v at %d: %+v, next is wrong", s, now, st)
			}
			if (st.Reset == 0) != (len(s) == 0) ||
				st.Reset > 0 && (len(settle(a, slices.Clone(s), now+st.Reset-1)) == 0 || len(settle(a, slices.Clone(s), now+st.Reset)) != 0) {
				t.Fatalf("%v at %d: %+v, reset is wrong", s, now, st)
			}
			switch {
			case answer.OK:
				s = a.Take(s, now, cost)
				if got := a.Status(s, now); got.Remaining != st.Remaining-cost {
					t.Fatalf("took %d of %+v: %+v", cost, st, got)
				}
				if r.IntN(5) == 0 {
					s = a.Give(s, now, cost, now, answer.Wait)
					if got := a.Status(s, now); got.Remaining != st.Remaining {
						t.Fatalf("took and gave %d of %+v: %+v", cost, st, got)
					}
				}
			case r.IntN(10) == 0:
				s = a.Charge(s, now, cost) // debt
			}
			for _, v := range s {
				if v < 0 || v >= exact {
					t.Fatalf("a state that a double cannot hold: %v", s)
				}
			}
		}
	})
}

// What was allowed, as moments, one for each.
type history []int64

// most is the most within any half-open window of that length.
func (h history) most(length int64) (n int) {
	first := 0
	for i := range h {
		for h[first] <= h[i]-length {
			first++
		}
		n = max(n, i-first+1)
	}
	return n
}

// No more is ever allowed in any window than the algorithm's bound.
func TestBounds(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand, a Algorithm, n int) {
		if excess := beyond(r, a, a, n, nil); excess != "" {
			t.Error(excess)
		}
	})
}

// Nor is it when other limits, of any kind, are asked about the same key: they take
// from it, look at it, and are refused.
func TestOthersGiveNothing(t *testing.T) {
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	each(t, func(t *testing.T, r *rand.Rand, a Algorithm, n int) {
		if r.IntN(4) > 0 { // it takes longer
			return
		}
		var others []Algorithm
		for len(others) < 4 {
			other, err := kinds[names[r.IntN(len(names))]](r)
			if b, ok := other.(*Bucket); ok && err == nil {
				if own, ok := a.(*Bucket); ok { // a bucket is refilled at the rate of the limit that takes
					b.Tokens, b.Period, b.Most = own.Tokens, own.Period, own.Most
				}
			}
			if err == nil {
				others = append(others, other)
			}
		}
		disturb := func(s State, now int64) State {
			for range r.IntN(4) {
				other := others[r.IntN(len(others))]
				cost := r.Int64N(other.Capacity() + 2)
				before, all := slices.Clone(s), []State{s}
				d := decide([]Algorithm{other}, all, now, cost)
				if (!d.OK || cost == 0) && !slices.Equal(before, all[0]) {
					t.Fatalf("%+v was asked for %d, answered %+v, and made %v of %v", other, cost, d, all[0], before)
				}
				if before := look(a, before, now).Remaining; look(a, all[0], now).Remaining > before {
					t.Fatalf("%+v was asked for %d and answered %+v: then %v has more left than %d", other, cost, d, all[0], before)
				}
				s = all[0]
			}
			return s
		}
		if excess := beyond(r, a, a, n, disturb); excess != "" {
			t.Error(excess)
		}
	})
}

// What was taken under one kind of limit counts under all, and is kept apart.
func TestKindsKeepTheirOwn(t *testing.T) {
	window, err := NewFixed(10, 1000, 0)
	must(t, err)
	bucket, err := NewBucket(1, 10, 10)
	must(t, err)
	estimate, err := NewApprox(10, 100)
	must(t, err)
	other, err := NewApprox(10, 200)
	must(t, err)
	kinds := []Algorithm{window, bucket, estimate, other}
	all := []State{nil}
	for i, a := range kinds {
		if d := decide([]Algorithm{a}, all, 0, int64(i+1)); !d.OK {
			t.Fatalf("%d: %+v", i, d)
		}
	}
	for now, want := range map[int64][4]int64{
		0:   {0, 0, 0, 0},
		10:  {1, 1, 1, 1}, // one token has come back
		20:  {2, 2, 2, 2},
		200: {5, 5, 5, 5}, // the estimate in windows of 100 is over
		400: {9, 9, 9, 9}, // and that of 200
		999: {9, 9, 9, 9},
	} {
		for i, a := range kinds {
			if st := look(a, all[0], now); st.Remaining != want[i] {
				t.Errorf("limit %d at %d: %+v of %v, want %d", i, now, st, all[0], want[i])
			}
		}
	}
	if d := decide([]Algorithm{bucket}, all, 400, 9); !d.OK {
		t.Errorf("%+v", d)
	}
	if d := decide([]Algorithm{bucket}, all, 400, 1); d.OK || d.Retry != micros(10) || d.Limits[0].Reset != micros(600) {
		t.Errorf("%+v", d)
	}
	if d := decide([]Algorithm{window}, all, 1000, 10); !d.OK || len(all[0].parts()) != 1 {
		t.Errorf("%+v, %v", d, all[0])
	}
	if m := split(bucket, State{9, 9}, 0); m.join() != nil || m.n != 0 {
		t.Errorf("what no take wrote is kept: %+v", m)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// beyond lets one algorithm decide n random requests, and says where more was allowed
// than the bound of another. The bound does not cover what disturb does to the state
// between them.
func beyond(r *rand.Rand, decides, a Algorithm, n int, disturb func(State, int64) State) (excess string) {
	var s State
	var h history
	now := int64(0)
	for range n {
		now += pause(r)
		cost := 1 + r.Int64N(decides.Capacity())
		if r.IntN(2) == 0 {
			cost = 1
		}
		all := []State{s}
		if decide([]Algorithm{decides}, all, now, cost).OK {
			for range cost {
				h = append(h, now)
			}
		}
		if s = all[0]; disturb != nil {
			s = disturb(s, now)
		}
	}
	bound := func(length, want int64) {
		if got := h.most(length); int64(got) > want {
			excess = fmt.Sprintf("%d within %d µs, at most %d may be", got, length, want)
		}
	}
	switch a := a.(type) {
	case *Window:
		bound(a.Life, 2*a.Limit)
		bound(a.Life-a.Part+1, a.Limit)
		first := 0
		for i := range h { // nor in what the algorithm takes for one window
			for h[first]-floorMod(h[first]-a.Offset, a.Part) <= h[i]-a.Life {
				first++
			}
			if got := int64(i - first + 1); got > a.Limit {
				excess = fmt.Sprintf("%d count at once, at most %d may", got, a.Limit)
			}
		}
	case *Approx:
		bound(a.Period, 2*a.Limit-1)
		if a.Limit == 1 {
			bound(a.Period, 1)
		}
	case *Bucket:
		for _, length := range []int64{1, a.Period, 10 * a.Period} {
			bound(length, a.Burst+(length-1)*a.Tokens/a.Period)
		}
	}
	return excess
}

// defects are small mistakes, one for each kind, that let more through.
var defects = map[string]struct {
	what  string
	plant func(Algorithm) Algorithm
}{
	"fixed window": {"windows that are a microsecond short", func(a Algorithm) Algorithm {
		w := *a.(*Window)
		w.Part, w.Life = max(w.Part-1, 1), max(w.Life-1, 1)
		return &w
	}},
	"strict":  {"the part that is under way counts as one of the window's", earlier},
	"classic": {"one part less than the window has", earlier},
	"two counters": {"the window before is forgotten", func(a Algorithm) Algorithm {
		return forgetful{a.(*Approx)}
	}},
	"log": {"what was taken comes back a microsecond early", func(a Algorithm) Algorithm {
		w := *a.(*Window)
		w.Life = max(w.Life-1, 1)
		return &w
	}},
	"token bucket": {"the time for a token is rounded down", func(a Algorithm) Algorithm {
		b := *a.(*Bucket)
		b.Period = max(b.Period/b.Tokens*b.Tokens, 1)
		return &b
	}},
	"leaky bucket": {"a queue that holds one more", func(a Algorithm) Algorithm {
		b := *a.(*Bucket)
		b.Burst++
		return &b
	}},
}

func earlier(a Algorithm) Algorithm {
	w := *a.(*Window)
	w.Life = max(w.Life-w.Part, 1)
	return &w
}

type forgetful struct{ *Approx }

func (f forgetful) Settle(s State, now int64) (State, bool) {
	s, converted := f.Approx.Settle(s, now)
	if len(s) > 0 {
		s[4] = 0
	}
	return s, converted
}

// Defects that let more through are found, within the number of steps that the tests
// usually take.
func TestBoundsFindDefects(t *testing.T) {
	for name, make := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const at = 500
			for i := range 200_000 / at {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				a, err := make(r)
				if err != nil {
					t.Fatal(err)
				}
				if excess := beyond(r, defects[name].plant(a), a, at, nil); excess != "" {
					t.Logf("%s: found after %d steps: %s", defects[name].what, (i+1)*at, excess)
					return
				}
			}
			t.Errorf("no check notices %s", defects[name].what)
		})
	}
}

// The bucket is one of fractions, and the window one that remembers all.
func TestAgainstModels(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand, a Algorithm, n int) {
		var model func(now, cost int64) bool
		switch a := a.(type) {
		case *Bucket:
			model = fractions(a)
		case *Window:
			model = allMoments(a)
		default:
			return
		}
		var s State
		now := int64(0)
		for range n / 10 {
			now += pause(r)
			cost := 1 + r.Int64N(a.Capacity())
			all := []State{s}
			got := decide([]Algorithm{a}, all, now, cost).OK
			s = all[0]
			if want := model(now, cost); got != want {
				t.Fatalf("%d at %d: %v, want %v", cost, now, got, want)
			}
		}
	})
}

// fractions holds a level that leaks, as a fraction.
func fractions(b *Bucket) func(now, cost int64) bool {
	level, last := new(big.Rat), int64(0)
	full := new(big.Rat).SetInt64(b.Burst)
	return func(now, cost int64) bool {
		level.Sub(level, big.NewRat((now-last)*b.Tokens, b.Period))
		if last = now; level.Sign() < 0 {
			level.SetInt64(0)
		}
		then := new(big.Rat).Add(level, new(big.Rat).SetInt64(cost))
		if then.Cmp(full) > 0 {
			return false
		}
		level = then
		return true
	}
}

// allMoments remembers what was taken when.
func allMoments(w *Window) func(now, cost int64) bool {
	var all []int64
	part := func(at int64) int64 { return at - floorMod(at-w.Offset, w.Part) }
	return func(now, cost int64) bool {
		all = slices.DeleteFunc(all, func(at int64) bool { return part(at) <= now-w.Life })
		if int64(len(all))+cost > w.Limit {
			return false
		}
		for range cost {
			all = append(all, now)
		}
		return true
	}
}

// A clock that goes back allows nothing that was not allowed before, and locks nothing
// for longer than two windows, however far it goes.
func TestClockGoesBack(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand, a Algorithm, n int) {
		for range n / 50 {
			var s State
			now := int64(1_800_000_000_000_000) + r.Int64N(1000)
			for range 20 {
				now += pause(r)
				all := []State{s}
				decide([]Algorithm{a}, all, now, 1+r.Int64N(a.Capacity()))
				s = all[0]
			}
			left := a.Status(settle(a, slices.Clone(s), now), now).Remaining
			back := now - 1 - pause(r)
			if r.IntN(3) == 0 {
				back = now - 3600*sec
			}
			s = settle(a, s, back)
			st := a.Status(s, back)
			if st.Remaining > left {
				t.Fatalf("%d left at %d, %+v at %d", left, now, st, back)
			}
			if full := longest(a); st.Reset > 2*full {
				t.Fatalf("%+v after the clock went back, %d from full to fresh", st, full)
			}
		}
	})
}

// longest is how long it takes at most from full to fresh.
func longest(a Algorithm) int64 {
	switch a := a.(type) {
	case *Window:
		return a.Life
	case *Approx:
		return 2 * a.Period
	}
	b := a.(*Bucket)
	return b.of(b.Burst).ceil()
}

// However limits change, a state stays one: within the capacity, fresh in time.
func TestAnyStateSettles(t *testing.T) {
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	each(t, func(t *testing.T, r *rand.Rand, a Algorithm, n int) {
		s, now := State(nil), int64(1_800_000_000_000_000)
		for range n {
			now += pause(r)
			if r.IntN(20) == 0 {
				b, err := kinds[names[r.IntN(len(names))]](r)
				if x, ok := a.(*Approx); ok && r.IntN(2) == 0 {
					b, err = NewApprox(x.Limit, 1+r.Int64N(1000))
				}
				if err != nil {
					t.Fatal(err)
				}
				a = b
			}
			before := fmt.Sprint(s)
			all := []State{s}
			d := decide([]Algorithm{a}, all, now, r.Int64N(a.Capacity()+2))
			s = all[0]
			st := look(a, s, now)
			if st.Remaining < 0 || st.Remaining > a.Capacity() || st.Reset < 0 || !d.OK && d.Retry < 1 {
				t.Fatalf("%s became %v, %+v, %+v", before, s, d, st)
			}
			for _, part := range s.parts() {
				if part[0] == kindApprox && max(part[4], part[5]) > 2*part[3] {
					t.Fatalf("%s became %v: that counts more than twice the limit", before, s)
				}
			}
		}
	})
}

// Limits that cannot be kept exactly are refused.
func TestLimitsAreRefused(t *testing.T) {
	for _, err := range []error{
		second(NewFixed(0, 1, 0)), second(NewFixed(1, 0, 0)), second(NewFixed(exact, 1, 0)), second(NewFixed(1, exact, 0)), second(NewFixed(-1, 1, 0)),
		second(NewSliding(1, 10, 3, true)), second(NewSliding(1, 10, 0, true)), second(NewSliding(1, 10_000, MaxParts+1, true)),
		second(NewApprox(exact/8, 3600*sec+1)), second(NewApprox(1, 3e15)), second(NewSliding(1, 3e15, 1, true)), second(NewLog(MaxLog+1, 1)),
		second(NewBucket(1, 1, 0)), second(NewBucket(1, 1, exact/4)), second(NewBucket(exact/8, exact/8-1, 1000)), second(NewBucket(1, 3600*sec, 1_000_000)),
		second(NewQueue(1, 1, 5, 6)), second(NewQueue(1, 1, 5, -1)), second(NewCalendar(0, [4]int64{1, 2, 3, 4})), second(NewCalendar(1, [4]int64{1, 2, 2, 4})),
	} {
		if err == nil {
			t.Error("accepted")
		} else if _, ok := err.(*limits.Error); !ok {
			t.Errorf("%T: %v", err, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
