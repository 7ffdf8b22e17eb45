// Package check finds in a history what must never happen. A check is sound: it reports
// as a violation nothing that a correct store could have done, and what a client that
// was killed may not have written down counts neither way.
//
// It does not check whether waiters are granted in the order in which they came: no
// client can see when another process joined the queue. The contract's tests check that
// on the store alone. What shows from outside is a waiter that is passed over again and
// again.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// A Promise is a promise that can be broken, in the words of GUARANTEES.md.
type Promise string

const (
	Exclusive Promise = "E" // no two clients believe at the same instant
	Fenced    Promise = "F" // tokens rise; a resource that checks them takes no stale write
	Lively    Promise = "L" // after the last fault every waiter is granted in time, and nothing leaks
	Bounded   Promise = "B" // a limiter admits what its limit allows, no more and no less
)

// Rules are what the run had to keep.
type Rules struct {
	TTL    time.Duration
	Bound  time.Duration // after Healed a waiter is granted within TTL + Bound
	Order  bool          // waiters are granted in the order in which they came
	Limits map[string]Limit

	// EqualReaders allows readers that were asked for at the same time to have
	// the same token, as Redlock's may.
	EqualReaders bool

	// PerGrant is the least difference between the tokens of two of the store's grants.
	// A token between them belongs to a lease that was handed over inside a process.
	// Zero if there are none.
	PerGrant int64

	// Explains is how long after its end a fault explains the loss of a lease. Zero
	// turns the check for lost leases off. With Keeps the fault explains only the loss
	// of leases that were no older than Young when it began.
	Explains time.Duration
	Keeps    bool
	Young    time.Duration

	// Always says that waiters are owed a grant while the fault lasts, too: it breaks
	// other clients only, and those that it kills hold nothing for longer than TTL.
	Always bool

	// Trust says that a client trusts a lease for at most TTL after it has sent the last
	// request that was answered.
	Trust bool
}

// A Limit is the rule for a limiter's key: at most Most in any time as long as Window.
type Limit struct {
	Most   int64
	Window time.Duration

	// How it counts, exactly: by a Bucket, or by the window, where what was taken comes
	// back at its end or up to Late afterwards. With neither the count is not replayed.
	Bucket *Bucket
	Late   time.Duration

	// Every is how often a turn comes, where requests wait for their turns or hang up.
	// Such a limit is checked for how much it served. Saved is how many of its turns
	// are kept for later while nobody asks.
	Every time.Duration
	Saved int64
}

// Findings are the result of all checks.
type Findings struct {
	// Violations are in the order of From. A check reports at most a hundred for one
	// key.
	Violations []Violation `json:"violations,omitempty"`
	// Undecided is what could not be checked. A run that has any is invalid: it has
	// neither passed nor failed.
	Undecided []Undecided `json:"undecided,omitempty"`
	Looked    Looked      `json:"looked"`

	told map[[2]string]int // violations by check and key
}

// enough is how many violations of one key a check reports.
const enough = 100

// A Violation is one thing that must not have happened.
type Violation struct {
	Promise Promise      `json:"promise"`
	Check   string       `json:"check"` // which check found it
	Key     string       `json:"key"`
	Text    string       `json:"text"` // one sentence
	From    int64        `json:"from"` // when it happened, on the history's clock
	To      int64        `json:"to"`
	Ops     []history.Op `json:"ops,omitempty"` // those that were part of it, at most ten
}

// Undecided is what a check could not decide, and why.
type Undecided struct {
	Check string `json:"check"`
	Key   string `json:"key,omitempty"`
	Text  string `json:"text"`
}

// Looked says how much was checked, so that a reader sees what "no violations" means.
type Looked struct {
	Attempts int `json:"attempts"` // to get a lock
	Granted  int `json:"granted"`
	Sure     int `json:"sure"`   // grants that certainly were believed in for a time
	Pairs    int `json:"pairs"`  // of beliefs that exclude each other, one after the other
	Tokens   int `json:"tokens"` // grants that certainly came after one that they exclude
	Writes   int `json:"writes"` // of exclusive holders
	Stale    int `json:"stale"`  // of these: the resource that does not check tokens took them

	Parts   int `json:"parts"`   // pieces of the histories of keys that porcupine looked at
	PartOps int `json:"partOps"` // the acquisitions and ends in them

	Waiters int           `json:"waiters"` // that waited when nothing was broken
	Idle    time.Duration `json:"idle"`    // the longest that one of them waited while no client held the lock
	Refused int           `json:"refused"` // attempts that were refused when nothing was broken
	Counted int           `json:"counted"` // keys whose permits were counted at the end

	Admits  int `json:"admits"`  // of a limiter
	Windows int `json:"windows"` // stretches of time in which they were counted

	Replayed int `json:"replayed"` // decisions, in the order of the store's clock

	Silenced int `json:"silenced,omitempty"` // leases that were trusted when the requests of their client were no longer answered

	Lost   int     `json:"lost"`   // leases that ended before their release
	Shares int     `json:"shares"` // times in which more was asked of a limit than it had
	Share  float64 `json:"share"`  // the least part that was served in one of them
	Passed int     `json:"passed"` // the most turns of one other process that a waiter saw, for each turn of its own process

	// Lag is the longest time for which a belief outlived the start of the next belief
	// that it excludes, and LapsedLag the same for leases that were not released. They
	// are negative if all ended before, by that much, and zero if there was no such
	// pair.
	Lag       time.Duration `json:"lag"`
	LapsedLag time.Duration `json:"lapsedLag"`
}

// Run applies all checks to a history, which it does not change. It takes a few seconds
// for 200 000 holds, and gives up on what takes longer than a minute.
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

// lively runs the checks of liveness, which is owed when nothing is broken.
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
	// A waiter that waits for ever keeps the run from its end. Then the promise is
	// broken, and not undecided.
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

// excludes reports whether two holds of one key can never be together. More than two
// may still be too many together.
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

// who names the client of a hold in a sentence.
func who(o *history.Hold) string { return name(o.Op) }

func name(op history.Op) string { return fmt.Sprintf("client %d (operation %d)", op.Client, op.Number) }
