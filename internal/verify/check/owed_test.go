package check

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/verify/history"
)

// A lost lease is explained by a fault that was there, or had ended a moment before,
// unless it is a fault that costs no client its lease.
func TestLost(t *testing.T) {
	t.Parallel()
	lost, released, kept := hold(1, history.Exclusive, 1, 10, 50), hold(2, history.Exclusive, 2, 10, 50), hold(3, history.Exclusive, 3, 10, 50)
	lost.LostAt, lost.Cause, lost.ReleaseCalled, lost.ReleaseReturned, lost.Released = 60, "expired", 0, 0, ""
	released.Released, released.ReleaseReturned = history.Refused, 60
	for _, c := range []struct {
		name     string
		hold     history.Hold
		from, to int64 // of the fault
		rules    Rules
		want     string
	}{
		{"kept", kept, 0, 0, Rules{Explains: 10}, ""},
		{"lost without a fault", lost, 0, 0, Rules{Explains: 10}, "no fault explains it"},
		{"its release finds nothing", released, 0, 0, Rules{Explains: 10}, "no fault explains it"},
		{"nobody looks", lost, 0, 0, Rules{}, ""},
		{"during a fault", lost, 55, 70, Rules{Explains: 10}, ""},
		{"right after a fault", lost, 5, 50, Rules{Explains: 10}, ""},
		{"long after a fault", lost, 5, 49, Rules{Explains: 10}, "no fault explains it"},
		{"before a fault", lost, 61, 70, Rules{Explains: 10}, "no fault explains it"},
		{"during a fault that costs no lease", lost, 5, 70, Rules{Explains: 10, Keeps: true}, "costs nobody a lease"},
		{"while it was young", lost, lost.Returned + 10, 70, Rules{Explains: 10, Keeps: true, Young: 10}, ""},
		{"when it was older", lost, lost.Returned + 10, 70, Rules{Explains: 10, Keeps: true, Young: 9}, "costs nobody a lease"},
		{"young, but born under the fault", lost, lost.Returned - 1, 70, Rules{Explains: 10, Keeps: true, Young: 10}, "costs nobody a lease"},
	} {
		h := &history.History{Holds: []history.Hold{c.hold}}
		if c.from != 0 {
			h.Marks = []history.Mark{{At: c.from, What: history.Breaks, Text: "x"}, {At: c.to, What: history.Heals, Text: "x"}}
		}
		var f Findings
		f.lost(h, byKey(h, &f), c.rules)
		switch {
		case c.want == "" && len(f.Violations) > 0:
			t.Errorf("%s: %+v", c.name, f.Violations)
		case c.want != "" && (len(f.Violations) != 1 || !strings.Contains(f.Violations[0].Text, c.want) || f.Looked.Lost != 1):
			t.Errorf("%s: %+v, want %q", c.name, f, c.want)
		}
	}
}

// turns are decisions of a limit that gives each request a turn, to callers who are
// impatient or hang up. With wrong, refused requests keep their turns, too.
func turns(seed uint64, every int64, wrong bool) *history.History {
	r := rand.New(rand.NewPCG(seed, 5))
	h := &history.History{Marks: []history.Mark{
		{At: 1, What: history.Healed}, {At: 20 * int64(time.Second), What: history.Drains}, {At: 21 * int64(time.Second), What: history.Ends},
	}}
	asks := make([]int64, 3) // when each of the callers asks next
	free := int64(1)         // the next turn that is not taken
	for {
		who := 0
		for i, at := range asks {
			if at < asks[who] {
				who = i
			}
		}
		now := asks[who] + 1
		if now > 19*int64(time.Second) {
			break
		}
		d := history.Decision{
			Op: history.Op{Client: who + 1, Number: now}, Key: "turns", N: 1, Waits: true, Called: now, Result: history.Refused,
			Patience: time.Duration(r.Int64N(5 * every / 2)),
		}
		turn := max(free, now)
		d.Returned = now + int64(time.Millisecond)
		switch hangs := r.IntN(8) == 0; {
		case hangs && turn-now <= every: // it has a turn when it hangs up
			free, d.Result, d.Hung = turn+every, history.Unknown, true
		case turn-now <= int64(d.Patience):
			free, d.Result, d.Returned = turn+every, history.Granted, max(turn, d.Returned)
		case wrong:
			free = min(turn+every, now+int64(time.Second))
		}
		h.Decisions = append(h.Decisions, d)
		asks[who] = d.Returned + r.Int64N(every)
	}
	slices.SortFunc(h.Decisions, func(a, b history.Decision) int { return cmp.Compare(a.Called, b.Called) })
	h.Holds = []history.Hold{hold(9, history.Exclusive, 1, 10, 20)}
	return h
}

// Of a limit of which more is wanted than there is, most is used. One that gives turns
// to requests that it refuses serves hardly any.
func TestShare(t *testing.T) {
	t.Parallel()
	every := 100 * time.Millisecond
	found := 0
	for seed := range uint64(50) {
		for _, wrong := range []bool{false, true} {
			rules := Rules{TTL: time.Second, Bound: time.Second, Limits: map[string]Limit{"turns": {Most: 100, Window: time.Second, Every: every}}}
			f := Run(turns(seed, int64(every), wrong), rules)
			got := fmt.Sprint(checks(f))
			if f.Looked.Shares < 5 {
				t.Errorf("seed %d: only %d stretches were looked at", seed, f.Looked.Shares)
			}
			switch {
			case !wrong && got != "[]":
				t.Errorf("seed %d: %v", seed, f.Violations[0].Text)
			case wrong && got == "[share]":
				found++
			}
		}
	}
	if found < 45 {
		t.Errorf("turns for those who are refused were found in %d of 50 seeds", found)
	}
}
