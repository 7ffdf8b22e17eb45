package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/verify/history"
)

// hold makes a hold that was granted at once, believed in from one instant to
// another, and released then.
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
		f.tokens(byKey(&history.History{Holds: c.holds}, &f))
		switch {
		case c.want == "" && len(f.Violations) > 0:
			t.Errorf("%s: %+v", c.name, f.Violations)
		case c.want != "" && (len(f.Violations) != 1 || !strings.Contains(f.Violations[0].Text, c.want)):
			t.Errorf("%s: %+v, want %q", c.name, f.Violations, c.want)
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

// Run tells all in the order of time, and from a history that it leaves alone.
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

// A waiter that others overtake again and again is seen where the order is
// promised, and one that was overtaken by those before it in line is not.
func TestOvertaken(t *testing.T) {
	for _, c := range []struct {
		times, own int64
		order      bool
		want       []string
	}{
		{maxOvertakes, 0, true, nil},
		{maxOvertakes + 1, 0, true, []string{"overtaken"}},
		{maxOvertakes + 1, 0, false, nil},
		{maxOvertakes + 2, 1, true, nil},
		{2*maxOvertakes + 2, 1, true, []string{"overtaken"}},
	} {
		h := &history.History{Marks: []history.Mark{{At: 1, What: history.Healed}, {At: 3000, What: history.Drains}, {At: 4000, What: history.Ends}}}
		waits := hold(1, history.Exclusive, 1000, 2900, 2950)
		waits.Called, waits.Waits, waits.Number = 5, true, 1000
		h.Holds = append(h.Holds, waits)
		for n := range c.times {
			o := hold(2, history.Exclusive, n+1, 40+10*n, 45+10*n)
			o.Number, o.Waits = n, true
			if n < c.own {
				o.Client = 1 // the waiter's own process had a turn
			}
			h.Holds = append(h.Holds, o)
		}
		f := Run(h, Rules{TTL: 10, Bound: 10, Order: c.order})
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
