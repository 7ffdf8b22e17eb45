// Package check finds in a history what must never happen. A check is sound: it never reports
// a violation that a correct store could have caused. Events that a killed client may not have
// logged count neither way.
//
// It does not check whether waiters are granted in the order of their arrival: a client cannot
// see when another process joined the queue. The contract's tests check that on the store
// alone. Visible from outside is only a waiter that is passed over again and again.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// A Promise is one of GUARANTEES.md.
type Promise string

const (
	Exclusive Promise = "E" // no two clients trust their leases at the same instant
	Fenced    Promise = "F" // tokens rise; a resource that checks them accepts no stale write
	Lively    Promise = "L" // after the last fault every waiter is granted in time, and no resource leaks
	Bounded   Promise = "B" // a limiter allows exactly what its limit allows
)

// Rules are the rules of the run.
type Rules struct {
	TTL    time.Duration
	Bound  time.Duration // after Healed a waiter is granted within TTL + Bound
	Order  bool          // waiters are granted in the order of their arrival
	Limits map[string]Limit

	// EqualReaders allows readers with overlapping requests to have the same token, as
	// Redlock's may.
	EqualReaders bool

	// PerGrant is the least difference between the tokens of two of the store's grants. A
	// token between them belongs to a lease that was handed over inside a process. Zero if
	// there are none.
	PerGrant int64

	// Explains is how long after its end a fault explains the loss of a lease. Zero turns
	// the check for lost leases off. With Keeps the fault explains only the loss of leases
	// that were no older than Young when it began.
	Explains time.Duration
	Keeps    bool
	Young    time.Duration

	// Always says that waiters are owed a grant during the fault, too: it breaks only other
	// clients, and the killed ones hold locks for at most TTL.
	Always bool

	// Trust says that a client trusts a lease for at most TTL after it has sent the last
	// answered request.
	Trust bool
}

// A Limit is the rule for a limiter's key: at most Most in any time as long as Window.
type Limit struct {
	Most   int64
	Window time.Duration

	// The exact way of counting: a Bucket, or the window, at whose end, or up to Late
	// afterwards, the counted requests come back. With neither, the count is not replayed.
	Bucket *Bucket
	Late   time.Duration

	// Every is the interval of turns if requests wait for their turns, or give up. Such a
	// limit is checked for how much it served. Saved is how many turns are kept for later
	// without requests.
	Every time.Duration
	Saved int64
}

// Findings are the result of all checks.
type Findings struct {
	// Violations are in the order of From. A check reports at most a hundred for one key.
	Violations []Violation `json:"violations,omitempty"`
	// Undecided is what could not be checked. It makes a run invalid: neither passed nor
	// failed.
	Undecided []Undecided `json:"undecided,omitempty"`
	Looked    Looked      `json:"looked"`

	told map[[2]string]int // violations by check and key
}

// enough bounds the violations of one key that a check reports.
const enough = 100

// A Violation is one event that must not happen.
type Violation struct {
	Promise Promise      `json:"promise"`
	Check   string       `json:"check"` // which check found it
	Key     string       `json:"key"`
	Text    string       `json:"text"` // one sentence
	From    int64        `json:"from"` // on the history's clock
	To      int64        `json:"to"`
	Ops     []history.Op `json:"ops,omitempty"` // the operations that were part of it, at most ten
}

// Undecided is a question that a check could not decide, and the reason.
type Undecided struct {
	Check string `json:"check"`
	Key   string `json:"key,omitempty"`
	Text  string `json:"text"`
}

// Looked is how much was checked: without it "no violations" means little.
type Looked struct {
	Attempts int `json:"attempts"` // to get a lock
	Granted  int `json:"granted"`
	Sure     int `json:"sure"`   // grants whose leases were certainly trusted for a time
	Pairs    int `json:"pairs"`  // of trusted leases that exclude each other, one after the other
	Tokens   int `json:"tokens"` // grants that certainly came after another one that they exclude
	Writes   int `json:"writes"` // of exclusive holders
	Stale    int `json:"stale"`  // of these, stale ones, which only a resource without token checks accepts

	Parts   int `json:"parts"`   // pieces of keys' histories that porcupine checked
	PartOps int `json:"partOps"` // the acquisitions and ends in them

	Waiters int           `json:"waiters"` // that waited without a fault
	Idle    time.Duration `json:"idle"`    // the longest wait of one of them while no client held the lock
	Refused int           `json:"refused"` // attempts that were refused without a fault
	Counted int           `json:"counted"` // keys whose permits were counted at the end

	Admits  int `json:"admits"`  // requests that a limiter allowed
	Windows int `json:"windows"` // intervals in which they were counted

	Replayed int `json:"replayed"` // decisions, in the order of the store's clock

	Silenced int `json:"silenced,omitempty"` // leases that were trusted when their client's requests were no longer answered

	Lost   int     `json:"lost"`   // leases that ended before their release
	Shares int     `json:"shares"` // times in which the demand exceeded a limit
	Share  float64 `json:"share"`  // the smallest part that was served in one of them
	Passed int     `json:"passed"` // the most turns of one other process that a waiter saw, for each turn of its own process

	// Lag is the longest time from the start of a trusted lease to the end of an earlier one
	// that it excludes, and LapsedLag the same for leases that were not released. They are
	// negative if all ended earlier, by that much, and zero if there was no such pair.
	Lag       time.Duration `json:"lag"`
	LapsedLag time.Duration `json:"lapsedLag"`
}

// Run applies all checks to a history, which it does not change. It takes a few seconds for
// 200 000 holds, and gives up a check that takes longer than a minute.
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
	f.trust(h, keys, r)
	f.lively(h, keys, r)
	slices.SortFunc(f.Violations, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Check, b.Check), cmp.Compare(a.Text, b.Text))
	})
	return f
}

// lively runs the checks of liveness, which is owed without faults.
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
	// A waiter that waits forever keeps the run from its end. Then the promise is broken,
	// and not undecided.
	if slices.ContainsFunc(f.Violations, func(v Violation) bool { return v.Promise == Lively }) {
		f.Undecided = slices.DeleteFunc(f.Undecided, func(u Undecided) bool { return slices.Contains([]string{"waiting", "permits", "share"}, u.Check) })
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

// granted returns the granted holds, in the same order.
func (k locked) granted() []*history.Hold {
	var g []*history.Hold
	for _, o := range k.holds {
		if o.Result == history.Granted {
			g = append(g, o)
		}
	}
	return g
}

// excludes reports whether two holds of one key can never be together. Three or more that do
// not exclude each other may still be too many.
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

// who names a hold's client in a sentence.
func who(o *history.Hold) string { return name(o.Op) }

func name(op history.Op) string { return fmt.Sprintf("client %d (operation %d)", op.Client, op.Number) }
