package check

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// hold makes a hold that was granted at once, trusted from one instant to another, and
// released then.
func hold(n int64, m history.Mode, token, from, to int64) history.Hold {
	h := history.Hold{
		Op: history.Op{Client: int(n), Number: n}, Key: "k", Mode: m, Called: from - 2, Returned: from - 1, Result: history.Granted,
		Token: token, SureFrom: from, SureTo: to, ReleaseCalled: to + 1, ReleaseReturned: to + 2, Released: history.Granted,
	}
	if m == history.Permits {
		h.Weight, h.Of = 1, 2
	}
	return h
}

func checks(f Findings) []string {
	var names []string
	for _, v := range f.Violations {
		names = append(names, v.Check)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestOverlap(t *testing.T) {
	const x, s, p = history.Exclusive, history.Shared, history.Permits
	for _, c := range []struct {
		name  string
		holds []history.Hold
		want  string // of the first text
	}{
		{"one after the other", []history.Hold{hold(1, x, 1, 10, 20), hold(2, x, 2, 30, 40)}, ""},
		{"the same reading of the clock", []history.Hold{hold(1, x, 1, 10, 20), hold(2, x, 2, 20, 40)}, ""},
		{"two writers", []history.Hold{hold(1, x, 1, 10, 21), hold(2, x, 2, 20, 40)}, "both believed in their lease for 1ns"},
		{"seen once, within", []history.Hold{hold(1, x, 1, 10, 21), hold(2, x, 2, 20, 20)}, "both believed"},
		{"seen once, at the edge", []history.Hold{hold(1, x, 1, 10, 21), hold(2, x, 2, 21, 21)}, ""},
		{"seen once, together", []history.Hold{hold(1, x, 1, 10, 10), hold(2, x, 2, 10, 10)}, ""},
		{"readers", []history.Hold{hold(1, s, 1, 10, 21), hold(2, s, 2, 20, 40)}, ""},
		{"a reader and a writer", []history.Hold{hold(1, s, 1, 10, 21), hold(2, s, 2, 11, 13), hold(3, x, 3, 20, 40)}, "client 1 (operation 1) (shared) and client 3 (operation 3) (exclusive)"},
		{"two of two", []history.Hold{hold(1, p, 1, 10, 30), hold(2, p, 2, 15, 40), hold(3, p, 3, 30, 50)}, ""},
		{"three of two", []history.Hold{hold(1, p, 1, 10, 30), hold(2, p, 2, 15, 40), hold(3, p, 3, 29, 50)}, "3 of 2 permits"},
		{"permits and a writer", []history.Hold{hold(1, p, 1, 10, 30), hold(2, x, 2, 15, 40)}, "(permits) and client 2"},
		{"permits and a reader", []history.Hold{hold(1, p, 1, 10, 30), hold(2, s, 2, 15, 40)}, "(shared)"},
		{"never seen", []history.Hold{hold(1, x, 1, 10, 30), hold(2, x, 2, 0, 0)}, ""},
	} {
		var f Findings
		f.overlap(byKey(&history.History{Holds: c.holds}, &f))
		switch {
		case c.want == "" && len(f.Violations) > 0:
			t.Errorf("%s: %+v", c.name, f.Violations)
		case c.want != "" && (len(f.Violations) != 1 || !strings.Contains(f.Violations[0].Text, c.want)):
			t.Errorf("%s: %+v, want %q", c.name, f.Violations, c.want)
		}
	}
}

func TestLag(t *testing.T) {
	lapsed := hold(3, history.Exclusive, 3, 50, 60)
	lapsed.Released = history.Failed
	var f Findings
	f.overlap(byKey(&history.History{Holds: []history.Hold{
		hold(1, history.Exclusive, 1, 10, 20), hold(2, history.Exclusive, 2, 23, 40), lapsed, hold(4, history.Shared, 4, 65, 80),
	}}, &f))
	if f.Looked.Lag != -3 || f.Looked.LapsedLag != -5 || f.Looked.Pairs != 3 || f.Looked.Sure != 4 {
		t.Errorf("%+v", f.Looked)
	}
}

// If readers may have equal tokens, only overlapping requests of readers may, and no writer.
func TestEqualReaders(t *testing.T) {
	t.Parallel()
	const s, x = history.Shared, history.Exclusive
	for _, c := range []struct {
		name  string
		holds []history.Hold
		want  int
	}{
		{"at the same time", []history.Hold{hold(1, s, 1, 10, 50), hold(2, s, 1, 10, 40)}, 0},
		{"one after the other", []history.Hold{hold(1, s, 1, 10, 50), hold(2, s, 1, 30, 40)}, 1},
		{"a writer", []history.Hold{hold(1, s, 1, 10, 50), hold(2, x, 1, 10, 40)}, 1},
	} {
		var f Findings
		f.tokens(byKey(&history.History{Holds: c.holds}, &f), Rules{EqualReaders: true})
		if len(f.Violations) != c.want {
			t.Errorf("%s: %+v, want %d", c.name, f.Violations, c.want)
		}
	}
}

func TestTokens(t *testing.T) {
	const x, s, p = history.Exclusive, history.Shared, history.Permits
	early := hold(2, x, 1, 30, 40)
	early.Called = 5
	for _, c := range []struct {
		name  string
		holds []history.Hold
		want  string
	}{
		{"rising", []history.Hold{hold(1, x, 1, 10, 20), hold(2, x, 2, 30, 40)}, ""},
		{"falling", []history.Hold{hold(1, x, 2, 10, 20), hold(2, x, 1, 30, 40)}, "the lower 1"},
		{"falling, asked for at the same time", []history.Hold{hold(1, x, 2, 10, 20), early}, ""},
		{"readers in any order", []history.Hold{hold(1, s, 2, 10, 50), hold(2, s, 1, 30, 40)}, ""},
		{"a reader below a writer", []history.Hold{hold(1, x, 2, 10, 20), hold(2, s, 3, 30, 40), hold(3, s, 1, 30, 40)}, "the lower 1"},
		{"permits in any order", []history.Hold{hold(1, p, 2, 10, 50), hold(2, p, 1, 30, 40)}, ""},
		{"the same twice", []history.Hold{hold(1, s, 1, 10, 50), hold(2, s, 1, 30, 40)}, "both granted token 1"},
	} {
		var f Findings
		f.tokens(byKey(&history.History{Holds: c.holds}, &f), Rules{})
		switch {
		case c.want == "" && len(f.Violations) > 0:
			t.Errorf("%s: %+v", c.name, f.Violations)
		case c.want != "" && (len(f.Violations) != 1 || !strings.Contains(f.Violations[0].Text, c.want)):
			t.Errorf("%s: %+v, want %q", c.name, f.Violations, c.want)
		}
	}
}

// A token that falls breaks exclusion. It does not break fencing only if the lease was
// handed over inside the process that the store had granted it to.
func TestTokensHandedOn(t *testing.T) {
	t.Parallel()
	const x = history.Exclusive
	grant, next := hold(1, x, 640, 10, 20), hold(2, x, 704, 30, 40)
	same := hold(3, x, 641, 50, 60)
	same.Client = 1
	for _, c := range []struct {
		name  string
		holds []history.Hold
		want  Promise
	}{
		{"in the process of the grant", []history.Hold{grant, next, same}, Exclusive},
		{"of a grant that nobody saw", []history.Hold{next, same}, Exclusive},
		{"in another process", []history.Hold{grant, next, hold(3, x, 641, 50, 60)}, Fenced},
		{"by the store", []history.Hold{next, hold(3, x, 640, 50, 60)}, Fenced},
	} {
		var f Findings
		f.tokens(byKey(&history.History{Holds: c.holds}, &f), Rules{PerGrant: 64})
		if len(f.Violations) != 1 || f.Violations[0].Promise != c.want {
			t.Errorf("%s: %+v, want one of %s", c.name, f.Violations, c.want)
		}
	}
}

func TestWrites(t *testing.T) {
	a, b := history.Op{Client: 1, Number: 1}, history.Op{Client: 2, Number: 2}
	holds := []history.Hold{hold(1, history.Exclusive, 5, 10, 20), hold(2, history.Exclusive, 6, 30, 40)}
	same := []history.Hold{holds[0], hold(2, history.Exclusive, 5, 30, 40)}
	write := func(op history.Op, token int64, accepted, stale bool) history.Write {
		return history.Write{Op: op, Key: "k", Token: token, At: 1, Accepted: accepted, Stale: stale}
	}
	for _, c := range []struct {
		name   string
		holds  []history.Hold
		writes []history.Write
		want   string
	}{
		{"rising", holds, []history.Write{write(a, 5, true, false), write(a, 5, true, false), write(b, 6, true, false)}, ""},
		{"stale and refused", holds, []history.Write{write(b, 6, true, false), write(a, 5, false, true)}, ""},
		{"stale and accepted", holds, []history.Write{write(b, 6, true, false), write(a, 5, true, true)}, "was accepted after one with 6"},
		{"the same token", same, []history.Write{write(a, 5, true, false), write(b, 5, true, true)}, "the same token 5"},
		{"refused for nothing", holds, []history.Write{write(a, 5, true, false), write(b, 6, false, false)}, "was refused"},
		{"another token", holds, []history.Write{write(a, 7, true, false)}, "was granted token 5 and wrote with 7"},
		{"nobody's", holds, []history.Write{write(history.Op{Client: 9}, 7, true, false)}, "undecided"},
	} {
		var f Findings
		f.writes(&history.History{Holds: c.holds, Writes: c.writes})
		switch {
		case c.want == "undecided":
			if len(f.Undecided) != 1 {
				t.Errorf("%s: %+v", c.name, f)
			}
		case c.want == "" && len(f.Violations) > 0:
			t.Errorf("%s: %+v", c.name, f.Violations)
		case c.want != "" && (len(f.Violations) != 1 || !strings.Contains(f.Violations[0].Text, c.want)):
			t.Errorf("%s: %+v, want %q", c.name, f.Violations, c.want)
		}
	}
}

// Run reports everything in the order of time, and does not change the history.
func TestRun(t *testing.T) {
	h := &history.History{Holds: []history.Hold{
		hold(1, history.Exclusive, 9, 10, 20), hold(2, history.Exclusive, 8, 30, 40), hold(3, history.Exclusive, 10, 5, 15),
	}}
	f := Run(h, Rules{})
	if got := checks(f); !slices.Equal(got, []string{"linear", "overlap", "tokens"}) || !slices.IsSortedFunc(f.Violations, func(a, b Violation) int { return int(a.From - b.From) }) {
		t.Errorf("%+v", f.Violations)
	}
	if h.Holds[0].Op.Client != 1 || f.Looked.Attempts != 3 || f.Looked.Granted != 3 {
		t.Errorf("%+v of %+v", f.Looked, h.Holds)
	}
}

// A waiter that others overtake again and again is found if the order is promised. A waiter
// that was overtaken only by earlier ones in the queue is not.
func TestOvertaken(t *testing.T) {
	for _, c := range []struct {
		times, own int64
		handed     bool // inside the other process
		order      bool
		want       []string
	}{
		{maxOvertakes, 0, true, true, nil},
		{maxOvertakes + 1, 0, true, true, []string{"overtaken"}},
		{maxOvertakes + 1, 0, true, false, nil},
		{maxOvertakes + 2, 1, true, true, nil},
		{2*maxOvertakes + 2, 1, true, true, []string{"overtaken"}},
		{maxTurns, 0, false, true, nil},
		{maxTurns + 1, 0, false, true, []string{"overtaken"}},
		{maxTurns + 1, 0, false, false, nil},
		{maxTurns + 2, 1, false, true, nil},
		{2*maxTurns + 2, 1, false, true, []string{"overtaken"}},
	} {
		h := &history.History{Marks: []history.Mark{{At: 1, What: history.Healed}, {At: 3000, What: history.Drains}, {At: 4000, What: history.Ends}}}
		waits := hold(1, history.Exclusive, 64000, 2900, 2950)
		waits.Called, waits.Waits, waits.Number = 5, true, 1000
		h.Holds = append(h.Holds, waits)
		for n := range c.times {
			o := hold(2, history.Exclusive, 64*(n+1), 40+10*n, 45+10*n)
			if c.handed {
				o.Token = 64*(n/40+1) + n%40
			}
			o.Number, o.Waits = n, true
			if n < c.own {
				o.Client = 1 // the waiter's own process had a turn
			}
			h.Holds = append(h.Holds, o)
		}
		f := Run(h, Rules{TTL: 10, Bound: 10, Order: c.order, PerGrant: 64})
		var got []string
		for _, v := range f.Violations {
			if v.Check != "waiting" { // between the last of them and its own grant
				got = append(got, v.Check)
			}
		}
		if !slices.Equal(slices.Compact(got), c.want) || len(f.Undecided) > 0 {
			t.Errorf("%+v: found %+v", c, f)
		}
	}
}

// A question that could not be decided is reported, and is no violation.
func TestUndecided(t *testing.T) {
	permit := hold(1, history.Permits, 1, 10, 20)
	open := history.Hold{Op: history.Op{Client: 7}, Key: "k", Mode: history.Exclusive, Waits: true, Called: 95, Result: history.Unknown}
	twice := hold(1, history.Exclusive, 1, 10, 20)
	later := hold(1, history.Exclusive, 2, 30, 40)
	admit := history.Decision{Key: "l", N: 1, Called: 1, Returned: 2, Result: history.Granted}
	marks := []history.Mark{{At: 1, What: history.Healed}, {At: 50, What: history.Drains}, {At: 100, What: history.Ends}}
	gone := append(slices.Clone(marks), history.Mark{At: 99, What: history.Killed, Client: 7})
	for _, c := range []struct {
		name string
		h    history.History
		want string // the check
	}{
		{"no marks", history.History{Holds: []history.Hold{later}}, "waiting"},
		{"no end", history.History{Holds: []history.Hold{later}, Marks: marks[:2]}, "waiting"},
		{"nothing is missing", history.History{Holds: []history.Hold{later}, Marks: marks}, ""},
		{"a waiter is left at the end", history.History{Holds: []history.Hold{later, open}, Marks: marks}, "waiting"},
		{"a waiter was killed", history.History{Holds: []history.Hold{later, open}, Marks: gone}, ""},
		{"nobody counted", history.History{Holds: []history.Hold{permit}, Marks: marks}, "permits"},
		{"two with one name", history.History{Holds: []history.Hold{twice, later}, Marks: marks}, "history"},
		{"no limit", history.History{Decisions: []history.Decision{admit}}, "windows"},
	} {
		if c.name != "two with one name" {
			for i := range c.h.Holds {
				c.h.Holds[i].Number = int64(i)
			}
		}
		f := Run(&c.h, Rules{TTL: 10, Bound: 10})
		var got string
		for _, u := range f.Undecided {
			got += u.Check
		}
		if got != c.want || len(f.Violations) > 0 {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}

// The windows are those that a check of each one finds.
func TestWindowsAgainstCounting(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	l := Limit{Most: 10, Window: 20 * time.Millisecond}
	window := int64(l.Window - l.Window/1000 - time.Millisecond)
	over := 0
	for range 2000 {
		h := &history.History{}
		for n := range 20 {
			d := history.Decision{Op: history.Op{Number: int64(n)}, Key: "l", N: 1 + r.Int64N(3), Called: 1 + r.Int64N(80*ms), Result: history.Granted}
			d.Returned = d.Called + r.Int64N(5*ms)
			h.Decisions = append(h.Decisions, d)
		}
		h.Sort()
		var want []int64 // where the windows begin that do not overlap
		for _, from := range h.Decisions {
			sum := int64(0)
			for _, d := range h.Decisions {
				if d.Called >= from.Called && d.Returned <= from.Called+window {
					sum += d.N
				}
			}
			if sum > l.Most && (len(want) == 0 || from.Called >= want[len(want)-1]+window) {
				want = append(want, from.Called)
			}
		}
		var got []int64
		for _, v := range Run(h, Rules{Limits: map[string]Limit{"l": l}}).Violations {
			got = append(got, v.From)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("windows begin at %v, want %v: %+v", got, want, h.Decisions)
		}
		over += len(want)
	}
	if over < 100 {
		t.Errorf("only %d windows had too much", over)
	}
}

// The sweep finds a violation exactly when a comparison of all pairs does.
func TestOverlapAgainstPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	modes := []history.Mode{history.Exclusive, history.Shared, history.Shared, history.Permits, history.Permits}
	count := make(map[bool]int)
	for range 5000 {
		h := &history.History{}
		for n := range int64(2 + r.IntN(4)) {
			from := 10 + r.Int64N(30)
			o := hold(n, modes[r.IntN(len(modes))], n+1, from, from+r.Int64N(6))
			o.Weight = 1 + r.Int64N(2)
			o.Of = 3
			h.Holds = append(h.Holds, o)
		}
		want := false
		for i := range h.Holds {
			a := &h.Holds[i]
			sum := int64(0) // right after the begin of a
			for j := range h.Holds {
				b := &h.Holds[j]
				meet := i == j || a.SureFrom < b.SureTo && b.SureFrom < a.SureTo
				want = want || i != j && meet && excludes(a, b)
				if a.Mode == history.Permits && b.Mode == history.Permits && meet && b.SureFrom <= a.SureFrom {
					sum += b.Weight
				}
			}
			want = want || sum > 3
		}
		var f Findings
		f.overlap(byKey(h, &f))
		if got := len(f.Violations) > 0; got != want {
			t.Fatalf("found %+v, want some: %v, in %+v", f.Violations, want, h.Holds)
		}
		count[want]++
	}
	if count[true] < 500 || count[false] < 500 {
		t.Errorf("%v: of one kind there are too few", count)
	}
}
