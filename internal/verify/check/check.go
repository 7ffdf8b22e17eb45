// Package check finds in a history what must never happen. A check is sound: it
// calls nothing a violation that a correct store could have done, and what a
// client did not live to see counts for nobody.
//
// Whether waiters are granted in the order in which they came is not checked:
// no client can see when another's place in line was taken. The contract's tests
// do that with the store alone. What shows from outside is a waiter that is
// passed over again and again.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/batonhq/baton/internal/verify/history"
)

// A Promise is what is broken: the words of GUARANTEES.md.
type Promise string

const (
	Exclusive Promise = "E" // no two believe at the same instant
	Fenced    Promise = "F" // tokens rise; what checks them takes no stale write
	Lively    Promise = "L" // after the last fault every waiter is granted in time, and nothing leaks
	Bounded   Promise = "B" // a limiter admits no more than its limit
)

// Rules are what the run was to keep.
type Rules struct {
	TTL    time.Duration
	Bound  time.Duration // after Healed a waiter is granted within TTL + Bound
	Order  bool          // waiters are granted in the order in which they came
	Limits map[string]Limit

	// EqualReaders allows readers that were asked for at the same time to have
	// the same token, as Redlock's may.
	EqualReaders bool

	// PerGrant is by how much the tokens of two of the store's grants differ at
	// least. A lease with a token between them was handed on inside a process.
	// Zero if there are none.
	PerGrant int64

	// Explains is how long after its end a fault explains that a lease was lost. Zero
	// looks for no lost leases. With Keeps, what is broken explains none, but of
	// leases that were no older than Young when it broke.
	Explains time.Duration
	Keeps    bool
	Young    time.Duration
}

// A Limit is what holds for a limiter's key: at most Most in any stretch of Window.
type Limit struct {
	Most   int64
	Window time.Duration

	// How it counts, exactly: by a Bucket, or by the window, out of which what was
	// taken may come up to Late after its end. With neither it is not looked at.
	Bucket *Bucket
	Late   time.Duration

	// Every is how often a turn comes, where requests wait for theirs or hang up.
	// Of such a limit it is looked how much was served.
	Every time.Duration
}

// Findings are what a history shows.
type Findings struct {
	// Violations are in the order of From. A check tells at most a hundred of one
	// key.
	Violations []Violation `json:"violations,omitempty"`
	// Undecided is what could not be looked at. A run that has any is invalid:
	// it has neither passed nor failed.
	Undecided []Undecided `json:"undecided,omitempty"`
	Looked    Looked      `json:"looked"`

	told map[[2]string]int // violations by check and key
}

// enough is how many violations of one key a check tells.
const enough = 100

// A Violation is one thing that must not have happened.
type Violation struct {
	Promise Promise      `json:"promise"`
	Check   string       `json:"check"` // which check found it
	Key     string       `json:"key"`
	Text    string       `json:"text"` // one sentence
	From    int64        `json:"from"` // when it happened, on the history's clock
	To      int64        `json:"to"`
	Ops     []history.Op `json:"ops,omitempty"` // who was part of it, at most ten
}

// Undecided is what a check could not say, and why.
type Undecided struct {
	Check string `json:"check"`
	Key   string `json:"key,omitempty"`
	Text  string `json:"text"`
}

// Looked says how much was looked at, so that no violations are no violations
// of something.
type Looked struct {
	Attempts int `json:"attempts"` // to get a lock
	Granted  int `json:"granted"`
	Sure     int `json:"sure"`   // grants that were certainly believed in for a time
	Pairs    int `json:"pairs"`  // of beliefs that exclude each other, one after the other
	Tokens   int `json:"tokens"` // grants that certainly came after one that they exclude
	Writes   int `json:"writes"` // of exclusive holders
	Stale    int `json:"stale"`  // of these: what does not check tokens took them all the same

	Parts   int `json:"parts"`   // pieces of the histories of keys that porcupine looked at
	PartOps int `json:"partOps"` // the acquisitions and ends in them

	Waiters int           `json:"waiters"` // that waited when all was whole
	Idle    time.Duration `json:"idle"`    // the longest that one of them waited while nobody held the lock
	Refused int           `json:"refused"` // attempts that were refused when all was whole
	Counted int           `json:"counted"` // keys whose permits were counted in the end

	Admits  int `json:"admits"`  // by a limiter
	Windows int `json:"windows"` // stretches of time in which they were counted

	Replayed int `json:"replayed"` // decisions, in the order of the store's clock

	Lost   int     `json:"lost"`   // leases that ended before their release
	Shares int     `json:"shares"` // stretches in which more was asked of a limit than there was
	Share  float64 `json:"share"`  // the least of it that was served in one of them
	Passed int     `json:"passed"` // the most turns of one other process that a waiter stood by, for each of its own process

	// Lag is the most by which a belief outlived the begin of the next that it
	// excludes, and LapsedLag the same of leases that were not released: less
	// than zero if all ended before, by that much. Both are zero if there was no
	// such pair.
	Lag       time.Duration `json:"lag"`
	LapsedLag time.Duration `json:"lapsedLag"`
}

// Run looks at a history, which it does not change, with all checks. It takes a few
// seconds for 200 000 holds, and gives up on what takes longer than a minute.
func Run(h *history.History, r Rules) Findings {
	f := Findings{}
	keys := byKey(h, &f)
	f.overlap(keys)
	f.tokens(keys, r)
	f.writes(h)
	f.linear(keys, maxPart, patience)
	f.windows(h, r.Limits)
	f.counts(h, r.Limits)
	f.lost(h, keys, r)
	f.lively(h, keys, r)
	slices.SortFunc(f.Violations, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Check, b.Check), cmp.Compare(a.Text, b.Text))
	})
	return f
}

// lively runs the checks of what is owed when all is whole.
func (f *Findings) lively(h *history.History, keys []locked, r Rules) {
	if len(keys) == 0 {
		return
	}
	w := &world{Rules: r, healed: h.Mark(history.Healed), drains: h.Mark(history.Drains), ends: h.Mark(history.Ends), killed: h.Killed()}
	if w.healed == 0 || w.drains == 0 || w.ends == 0 {
		f.undecided("waiting", "", "the history has not all of the marks %q, %q and %q", history.Healed, history.Drains, history.Ends)
		return
	}
	f.waiting(w, keys)
	f.refused(w, keys)
	f.served(w, h)
	f.permits(w, keys)
	if r.Order {
		f.overtaken(w, keys)
	}
	// Who waits for ever keeps the run from its end. Then it is broken, and not
	// undecided.
	if slices.ContainsFunc(f.Violations, func(v Violation) bool { return v.Promise == Lively }) {
		f.Undecided = slices.DeleteFunc(f.Undecided, func(u Undecided) bool { return u.Check == "waiting" || u.Check == "permits" })
	}
}

// A locked is a key and the attempts to lock it, in the order of Called.
type locked struct {
	key   string
	holds []*history.Hold
}

// byKey sorts the holds, and the keys by their names.
func byKey(h *history.History, f *Findings) []locked {
	var all []locked
	at := make(map[string]int)
	seen := make(map[history.Op]bool, len(h.Holds))
	for i := range h.Holds {
		o := &h.Holds[i]
		f.Looked.Attempts++
		if o.Result == history.Granted {
			f.Looked.Granted++
		}
		if seen[o.Op] {
			f.undecided("history", o.Key, "two attempts are both %v", o.Op)
		}
		seen[o.Op] = true
		k, ok := at[o.Key]
		if !ok {
			k = len(all)
			at[o.Key] = k
			all = append(all, locked{key: o.Key})
		}
		all[k].holds = append(all[k].holds, o)
	}
	for _, k := range all {
		slices.SortStableFunc(k.holds, func(a, b *history.Hold) int { return cmp.Compare(a.Called, b.Called) })
	}
	slices.SortFunc(all, func(a, b locked) int { return cmp.Compare(a.key, b.key) })
	return all
}

// granted returns those of the holds that were granted, in the same order.
func (k locked) granted() []*history.Hold {
	var g []*history.Hold
	for _, o := range k.holds {
		if o.Result == history.Granted {
			g = append(g, o)
		}
	}
	return g
}

// excludes reports whether two holds of one key can never be together. That more
// than two can be too many is another matter.
func excludes(a, b *history.Hold) bool {
	switch {
	case a.Mode == history.Exclusive || b.Mode == history.Exclusive || a.Mode != b.Mode:
		return true
	case a.Mode == history.Permits:
		return a.Of != b.Of || a.Weight+b.Weight > a.Of
	}
	return false
}

func (f *Findings) violation(v Violation, format string, args ...any) {
	v.Text = fmt.Sprintf(format, args...)
	if len(v.Ops) > 10 {
		v.Ops = v.Ops[:10]
	}
	if f.told == nil {
		f.told = make(map[[2]string]int)
	}
	if at := [2]string{v.Check, v.Key}; f.told[at] < enough {
		f.told[at]++
		f.Violations = append(f.Violations, v)
	}
}

func (f *Findings) undecided(check, key, format string, args ...any) {
	f.Undecided = append(f.Undecided, Undecided{check, key, fmt.Sprintf(format, args...)})
}

// who names a hold in a sentence.
func who(o *history.Hold) string { return name(o.Op) }

func name(op history.Op) string { return fmt.Sprintf("client %d (operation %d)", op.Client, op.Number) }
