// Package check finds in a history what must never happen. A check is sound: it
// calls nothing a violation that a correct store could have done, and what a
// client did not live to see counts for nobody.
package check

import (
	"time"

	"github.com/batonhq/baton/verify/history"
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
}

// A Limit is what holds for a limiter's key: at most Most in any stretch of Window.
type Limit struct {
	Most   int64
	Window time.Duration
}

// A Violation is one thing that must not have happened.
type Violation struct {
	Promise Promise      `json:"promise"`
	Check   string       `json:"check"` // which check found it
	Key     string       `json:"key"`
	Text    string       `json:"text"` // one sentence
	From    int64        `json:"from"` // when it happened, on the history's clock
	To      int64        `json:"to"`
	Ops     []history.Op `json:"ops,omitempty"` // who was part of it
}
