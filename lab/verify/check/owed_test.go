package check

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// A lost lease is explained by a fault that was present, or had ended a moment before, unless the
// fault is one that costs no client its lease.
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

// callers ask a limit that gives each request a turn: they are impatient, and one of some cancels
// while it has a turn.
type callers struct {
	hang  int           // one of that many
	sleep time.Duration // how long each of them pauses now and then
	wrong bool          // the limit also uses up the turns of requests that it refuses
}

// turns are the decisions of a limit.
func turns(seed uint64, every int64, c callers) *history.History {
	r := rand.New(rand.NewPCG(seed, 5))
	h := &history.History{Marks: []history.Mark{
		{At: 1, What: history.Healed}, {At: 20 * int64(time.Second), What: history.Drains}, {At: 21 * int64(time.Second), What: history.Ends},
	}}
	asks := make([]int64, 3) // when each caller asks next
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
		switch hangs := r.IntN(c.hang) == 0; {
		case hangs && turn-now <= max(every, int64(d.Patience)): // it has a turn when it cancels
			free, d.Result, d.Hung = turn+every, history.Unknown, true
		case turn-now <= int64(d.Patience):
			free, d.Result, d.Returned = turn+every, history.Granted, max(turn, d.Returned)
		case c.wrong:
			free = min(turn+every, now+int64(time.Second))
		}
		h.Decisions = append(h.Decisions, d)
		asks[who] = d.Returned + r.Int64N(every)
		if second := int64(time.Second); c.sleep > 0 && d.Returned%second < second/4 { // all together
			asks[who] = d.Returned - d.Returned%second + int64(c.sleep)
		}
	}
	slices.SortFunc(h.Decisions, func(a, b history.Decision) int { return cmp.Compare(a.Called, b.Called) })
	h.Holds = []history.Hold{hold(9, history.Exclusive, 1, 10, 20)}
	return h
}

// If the demand exceeds a limit, most of the limit is used. A limit that gives turns to requests
// that it refuses serves almost none. If callers that canceled explain what was not served, the
// check does not decide; without requests there was no demand.
func TestShare(t *testing.T) {
	t.Parallel()
	const seeds = 50
	every := 100 * time.Millisecond
	for _, c := range []struct {
		name    string
		callers callers
		want    string // of most seeds; the others have none
		least   int
		looked  int // how many intervals of each are checked
	}{
		{"some hang up", callers{hang: 8}, "[]", seeds, 5},
		{"refused requests keep their turns", callers{hang: 8, wrong: true}, "[share]", seeds * 9 / 10, 5},
		{"most hang up", callers{hang: 1}, "[] undecided", seeds * 9 / 10, 5},
		{"callers that hardly run", callers{hang: 8, sleep: 1900 * time.Millisecond}, "[]", seeds, 0},
	} {
		found := make(map[string]int)
		for seed := range uint64(seeds) {
			rules := Rules{TTL: time.Second, Bound: time.Second, Limits: map[string]Limit{"turns": {Most: 100, Window: time.Second, Every: every}}}
			f := Run(turns(seed, int64(every), c.callers), rules)
			if f.Looked.Shares < c.looked {
				t.Errorf("%s, seed %d: only %d stretches were looked at", c.name, seed, f.Looked.Shares)
			}
			got := fmt.Sprint(checks(f))
			if len(f.Undecided) > 0 {
				got += " undecided"
			}
			if got != c.want && got != "[]" {
				t.Errorf("%s, seed %d: %v, %v", c.name, seed, f.Violations, f.Undecided)
			}
			found[got]++
		}
		t.Logf("%s: %v", c.name, found)
		if found[c.want] < c.least {
			t.Errorf("%s: found %v in %d seeds, want %q", c.name, found, seeds, c.want)
		}
	}
}

// A lease may be trusted for the TTL after the last answer, by the client without answers.
func TestTrust(t *testing.T) {
	const ttl = 100
	for _, c := range []struct {
		name    string
		to      int64 // when the trust ends
		client  int   // the client without answers, 0: all
		answers int64 // from when on
		found   bool
	}{
		{"ends in time", 150 + ttl, 1, 900, false},
		{"ends too late", 151 + ttl, 1, 900, true},
		{"no server answers", 151 + ttl, 0, 900, true},
		{"another client", 151 + ttl, 2, 900, false},
		{"answered again", 500, 1, 150 + ttl, false},
		{"answered again, too late", 500, 1, 151 + ttl, true},
		{"a stopped client", 160, 1, 900, false},
		{"a stopped client trusts it when it goes on", 901, 1, 900, true},
	} {
		h := &history.History{
			Holds: []history.Hold{hold(1, history.Exclusive, 1, 100, c.to)},
			Marks: []history.Mark{{At: 150, What: history.Silent, Client: c.client}, {At: c.answers, What: history.Answers, Client: c.client}},
		}
		f := Findings{}
		f.trust(h, byKey(h, &f), Rules{TTL: ttl, Trust: true})
		if got := slices.Contains(checks(f), "trust"); got != c.found {
			t.Errorf("%s: found %v: %+v", c.name, got, f.Violations)
		}
	}
}
