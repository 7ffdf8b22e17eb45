package check

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// A limiter decides at instants in microseconds; wrong names its defect.
type limiter struct {
	rand  *rand.Rand
	wrong string
	limit Limit

	last  int64 // of a bucket
	level int64 // in shares
	taken []history.Decision
}

func (l *limiter) room(at int64) int64 {
	if b := l.limit.Bucket; b != nil {
		full := b.Burst * b.Period.Microseconds()
		l.level, l.last = min(l.level+(at-l.last)*b.Tokens, full), at
		return l.level / b.Period.Microseconds()
	}
	room, late := l.limit.Most, max(l.limit.Late.Microseconds(), 1)
	for _, t := range l.taken { // each comes back with all of its part of the window
		if (t.At/late+1)*late+l.limit.Window.Microseconds() > at {
			room -= t.N
		}
	}
	return max(room, 0)
}

func (l *limiter) take(n, at int64) {
	if b := l.limit.Bucket; b != nil {
		l.level -= n * b.Period.Microseconds()
	} else {
		l.taken = append(l.taken, history.Decision{N: n, At: at})
	}
}

// decide decides. unseen is how much was taken that read-only requests do not see.
func (l *limiter) decide(n, at, unseen int64) (r history.Result, left int64) {
	room := l.room(at)
	if unseen > 0 && n > room+unseen {
		return history.Refused, room + unseen
	}
	limit := room
	if l.wrong == "admits one more" {
		limit++
	}
	if l.wrong == "refuses now and then" && l.rand.IntN(20) == 0 {
		limit = 0
	}
	if n > limit {
		if l.wrong == "takes what it refuses" {
			l.take(room, at)
		}
		return history.Refused, room
	}
	if l.wrong != "takes nothing now and then" || l.rand.IntN(20) > 0 {
		l.take(n, at)
	}
	if l.wrong == "takes twice now and then" && l.rand.IntN(20) == 0 {
		l.take(min(n, l.room(at)), at)
	}
	if l.wrong == "tells what was there before" {
		return history.Granted, room
	}
	return history.Granted, max(room-n, 0)
}

var limiters = []Limit{
	{Most: 20, Window: time.Second, Late: 100 * time.Millisecond},
	{Most: 25, Window: time.Second, Bucket: &Bucket{Tokens: 10, Period: time.Second, Burst: 15}},
	{Most: 12, Window: time.Second, Bucket: &Bucket{Tokens: 7, Period: time.Second, Burst: 5}},
}

// ahead is the difference of the store's clock, in microseconds.
const ahead = int64(1_700_000_000_000_000)

// The state that a refusal reads may lack requests without an answer yet, or even some that
// were answered a moment ago.
const (
	readsAside   = "reads aside"
	readsTooLate = "reads what was there a moment ago"
)

// decisions are those of clients that ask one limiter at the same time. With losses some
// answers are lost, or some requests arrive late.
func decisions(seed uint64, limit Limit, wrong string, losses bool) *history.History {
	r := rand.New(rand.NewPCG(seed, 3))
	l := &limiter{rand: r, wrong: wrong, limit: limit, last: 1}
	if b := limit.Bucket; b != nil {
		l.level = b.Burst * b.Period.Microseconds()
	}
	type asked struct {
		history.Decision
		decided int64
	}
	var all []asked
	for client := range 4 {
		at := int64(time.Second)
		for n := range int64(120) {
			at += r.Int64N(150 * ms)
			a := asked{Decision: history.Decision{Op: history.Op{Client: client, Number: n}, Key: "limit", N: 1 + r.Int64N(3), Called: at}}
			a.decided = at + r.Int64N(3*ms)
			at = a.decided + r.Int64N(3*ms)
			a.Returned = at
			if losses && r.IntN(10) == 0 {
				a.Result = history.Unknown
				if r.IntN(2) == 0 { // it arrives when its client no longer waits for the answer
					a.decided += r.Int64N(2000 * ms)
				}
			}
			all = append(all, a)
		}
	}
	slices.SortStableFunc(all, func(a, b asked) int { return cmp.Compare(a.decided, b.decided) })
	h := &history.History{}
	seen := make(map[int64]int64) // from when on this much of the allowed amount
	for _, a := range all {
		at := ahead + a.decided/1000
		unseen := int64(0)
		for from, n := range seen {
			if from > a.decided {
				unseen += n
			}
		}
		result, left := l.decide(a.N, at, unseen)
		if result == history.Granted {
			switch wrong {
			case readsAside:
				seen[a.decided+r.Int64N(1+max(a.Returned-a.decided, 0))] += a.N
			case readsTooLate:
				seen[a.Returned+20*ms] += a.N
			}
		}
		switch {
		case a.Result != history.Unknown:
			a.Result, a.Remaining, a.At = result, left, at
		case r.IntN(4) == 0:
			a.Returned = 0 // the client was killed
		}
		h.Decisions = append(h.Decisions, a.Decision)
	}
	h.Sort()
	return h
}

func counted(h *history.History, l Limit) (f Findings) {
	f.counts(h, map[string]Limit{"limit": l})
	return f
}

// A correct limiter is never reported, even if its reads lag.
func TestCountsNoFalseAlarms(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	replayed, refused := 0, 0
	seeds(cleanSeeds, func(seed uint64) {
		for _, l := range limiters {
			h := decisions(seed, l, []string{"", readsAside}[seed/2%2], seed%2 == 0)
			f := counted(h, l)
			mu.Lock()
			for _, d := range h.Decisions {
				if d.Result == history.Refused {
					refused++
				}
			}
			replayed += f.Looked.Replayed
			mu.Unlock()
			if len(f.Violations) > 0 || len(f.Undecided) > 0 {
				t.Errorf("seed %d, %+v: %+v", seed, l, f.Violations[0])
			}
		}
	})
	t.Logf("%d decisions were replayed, %d refused", replayed, refused)
	if replayed < 400*int(cleanSeeds) || refused < 40*int(cleanSeeds) {
		t.Errorf("only %d decisions were replayed, and only %d refused", replayed, refused)
	}
}

// Wrong limiters are found, by the promise that they break. Those that allow too much are found
// even with lost answers. The number of seeds that find one is deterministic.
func TestCountsPlanted(t *testing.T) {
	t.Parallel()
	const n = 20
	for wrong, admits := range map[string]bool{ // too much; else too little
		"admits one more":             true,
		"takes nothing now and then":  true,
		"refuses now and then":        false,
		"takes what it refuses":       false,
		"takes twice now and then":    false,
		"tells what was there before": true,
		readsTooLate:                  true,
	} {
		for _, l := range limiters {
			for _, losses := range []bool{false, true} {
				found := 0
				for seed := range uint64(n) {
					f := counted(decisions(seed+1, l, wrong, losses), l)
					if slices.ContainsFunc(f.Violations, func(v Violation) bool { return v.Promise == Bounded }) {
						found++
					}
				}
				t.Logf("%-28s bucket %v, losses %v: %d of %d", wrong, l.Bucket != nil, losses, found, n)
				least := n / 4 // most of the time there is no room, and nothing to lose
				switch {
				case admits:
					least = n * 3 / 4
				case losses:
					least = 0
				}
				if found < least {
					t.Errorf("%s, %+v, losses %v: found in %d of %d seeds", wrong, l, losses, found, n)
				}
			}
		}
	}
}

// If the clock of a store went back, or is not known, there is no report.
func TestCountsWithoutClock(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(d *history.Decision, n int){
		"went back": func(d *history.Decision, n int) {
			if n > 200 {
				d.At -= time.Hour.Microseconds()
			}
		},
		"is not told": func(d *history.Decision, _ int) { d.At = 0 },
	} {
		h := decisions(1, limiters[0], "admits one more", false)
		for i := range h.Decisions {
			spoil(&h.Decisions[i], i)
		}
		if f := counted(h, limiters[0]); len(f.Violations) > 0 || len(f.Undecided) > 0 || f.Looked.Replayed > 0 {
			t.Errorf("a clock that %s: %+v", what, f)
		}
	}
}
