// Package rate decides about rate limits: one pure state machine for each
// algorithm. It is what every store does, and what the scripts and statements
// of those that decide on their servers are compared with.
//
// Times are microseconds since 1970 and come as arguments. All numbers are
// integers, and every result is rounded so that a promise is never early: waits
// up, what remains down. All values that a decision computes stay below 2^53,
// so that a language whose only number is a double decides the same.
//
// A state is a list of integers, the same in every store; nil is that of a key
// that was never used. Nothing keeps it: a state that is dropped when its
// Status.Reset has passed is missed by nobody.
package rate

import (
	"fmt"

	"github.com/batonhq/baton/driver/limits"
)

// State is what an algorithm remembers of one key. The first number tells which
// algorithm's it is.
type State []int64

const (
	kindWindow = iota + 1
	kindApprox
	kindBucket
	kindSeveral
)

// An Algorithm is one of this package's, with its limits. Its methods expect a
// state that Settle returned for the same moment, change it in place, and
// return what has become of it.
type Algorithm interface {
	// Capacity is the largest cost that is ever allowed.
	Capacity() int64

	// Owns reports whether a state is of this way to count, whatever its numbers:
	// one that is not is nothing that Settle can use. See several.go.
	Owns(s State) bool

	// Settle brings a state to the present: it forgets what has expired, and
	// says what other limits have left in the terms of this one. Whatever was
	// consumed stays so, also beyond the capacity. To a clock that went back the
	// state is as the last moment that it saw left it, until the clock has caught
	// up; but one that went back by more than it takes to become fresh is
	// believed. A state that this algorithm does not own is fresh.
	//
	// It reports whether such a clock is believed: then the state must be kept,
	// or whoever is refused would see it so anew each time. Otherwise it need
	// not be, unless something is taken.
	Settle(s State, now int64) (State, bool)

	// Status describes the state.
	Status(s State, now int64) Status

	// Ask says whether cost, from 1 to the capacity, is allowed, if its turn
	// may be up to ahead µs from now. Windows and estimates have no turns.
	Ask(s State, now, cost, ahead int64) Answer

	// Take consumes a cost that Ask allowed.
	Take(s State, now, cost int64) State

	// Charge consumes cost, whether or not that is allowed. What it exceeds
	// the capacity by is debt, of at most one capacity.
	Charge(s State, now, cost int64) State

	// Give returns what was taken at a moment, for a turn that was so far from
	// it, as far as it still counts and nobody was promised what follows it,
	// and never more than was taken.
	Give(s State, now, cost, at, wait int64) State

	// Debt is how many µs it takes until no more is consumed than the capacity.
	Debt(s State, now int64) int64

	// Numbers are the parameters, for those who decide in another language.
	Numbers() []int64
}

// Status is what a state means.
type Status struct {
	Remaining int64 // the largest cost that is allowed now
	Next      int64 // µs until Remaining grows, 0 if it is the capacity
	Reset     int64 // µs until the state is that of a fresh key
}

// Answer is what an algorithm says of a cost.
type Answer struct {
	OK    bool
	Wait  int64 // if OK: µs until its turn
	Retry int64 // if not: the fewest µs after which it would be allowed if nothing else were
}

// exact is the end of the integers that a double holds.
const exact = 1 << 53

// latest is the end of the times that are expected, in 2096.
const latest = 4e15

func refuse(format string, args ...any) error {
	return &limits.Error{Reason: fmt.Sprintf(format, args...)}
}

// checkWindow refuses windows of limit per period.
func checkWindow(limit, period int64) error {
	switch {
	case limit < 1:
		return refuse("the limit is %d: it must be at least 1", limit)
	case limit >= exact/4:
		return refuse("the limit is %d: at most %d can be counted", limit, int64(exact/4-1))
	case period < 1:
		return refuse("the period is %d µs: it must be at least 1", period)
	case period >= exact-latest:
		return refuse("the period is %d µs: at most %d can be counted", period, int64(exact-latest-1))
	}
	return nil
}
