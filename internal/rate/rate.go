// Package rate decides about rate limits: one pure state machine for each algorithm.
// Every store does what it does, and what Redis and, in simple cases, MySQL decide on
// their servers is compared with it.
//
// Times are microseconds since 1970 and come as arguments. All numbers are integers,
// and every result is rounded so that a promise is never early: waits up, what remains
// down. All values that a decision computes stay below 2^53, so that a language whose
// only number is a double decides the same.
//
// A state is a list of integers, the same in every store; nil is that of a key that was
// never used. A store may drop a state when its Status.Reset has passed: that changes
// no decision.
package rate

import (
	"fmt"

	"github.com/batonhq/baton/driver/limits"
)

// State is what an algorithm remembers of one key. The first number is the kind of the
// algorithm.
type State []int64

const (
	kindWindow = iota + 1
	kindApprox
	kindBucket
	kindSeveral
)

// An Algorithm is one of this package's, with its parameters. Its methods expect a
// state that Settle returned for the same moment, change it in place, and return the
// new one.
type Algorithm interface {
	// Capacity is the largest cost that is ever allowed.
	Capacity() int64

	// Owns reports whether a state is of this way to count, whatever its numbers:
	// Settle can use no other. See several.go.
	Owns(s State) bool

	// Settle brings a state to the present: it forgets what has expired, and expresses
	// what other limits have left in the terms of this one. Whatever was consumed stays
	// consumed, also beyond the capacity. If the clock went back, the state stays as at
	// the last moment that it saw, until the clock has caught up; but a clock that went
	// back by more than the state takes to become fresh is believed. A state that this
	// algorithm does not own is fresh.
	//
	// It reports whether such a clock is believed: then the state must be kept, or
	// every refused request would believe the clock again. Otherwise it need not be,
	// unless something is taken.
	Settle(s State, now int64) (State, bool)

	// Status describes the state.
	Status(s State, now int64) Status

	// Ask says whether cost, from 1 to the capacity, is allowed, if its turn
	// may be up to ahead µs from now. Windows and estimates have no turns.
	Ask(s State, now, cost, ahead int64) Answer

	// Take consumes a cost that Ask allowed.
	Take(s State, now, cost int64) State

	// Charge consumes cost, whether or not that is allowed. What exceeds the capacity
	// is debt, of at most one capacity.
	Charge(s State, now, cost int64) State

	// Give returns what was taken at at, for a turn wait µs later, as far as it still
	// counts and no other request was promised the turn behind it, and never more than
	// was taken. With an at of 0 it returns what was taken first.
	Give(s State, now, cost, at, wait int64) State

	// Debt is how many µs it takes until no more is consumed than the capacity.
	Debt(s State, now int64) int64

	// Numbers are the parameters, for code that decides in another language.
	Numbers() []int64
}

// Status describes a state.
type Status struct {
	Remaining int64 // the largest cost that is allowed now
	Next      int64 // µs until Remaining grows, 0 if it is the capacity
	Reset     int64 // µs until the state is that of a fresh key
}

// Answer is whether a cost is allowed, and when.
type Answer struct {
	OK    bool
	Wait  int64 // if OK: µs until its turn
	Retry int64 // if not: the fewest µs after which it is allowed if nothing else is taken meanwhile
}

// exact bounds the integers that a double holds exactly.
const exact = 1 << 53

// latest bounds the times that are expected; it is in 2096.
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
