// Package rate decides about rate limits: one pure state machine for each algorithm. It
// is the reference for all stores: the scripts of Redis and the statements of MySQL that
// decide on their own are compared with it.
//
// Times are microseconds since 1970 and are arguments. All numbers are integers. Results
// are rounded so that a promise is never early: waits up, remaining numbers down. All
// computed values stay below 2^53, so that a language with only doubles decides the same.
//
// A state is a list of integers, the same in every store; nil is that of a new key. A
// store may drop a state when its Status.Reset has passed: that changes no decision.
package rate

import (
	"fmt"

	"github.com/batonhq/baton/driver/limits"
)

// State is an algorithm's memory of one key. The first number is the kind of the
// algorithm.
type State []int64

const (
	kindWindow = iota + 1
	kindApprox
	kindBucket
	kindSeveral
)

// An Algorithm is an algorithm with its parameters. Its methods expect a state that
// Settle returned for the same moment, change it in place, and return the new one.
type Algorithm interface {
	// Capacity is the largest cost that is ever allowed.
	Capacity() int64

	// Owns reports whether a state is of this kind, with any numbers. Settle can use only
	// such a state. See several.go.
	Owns(s State) bool

	// Settle brings a state to the present: it drops what has expired, and converts what
	// other limits have left into the terms of this one. What was consumed stays
	// consumed, also beyond the capacity. If the clock was set back, the state stays as
	// at its latest moment until the clock has caught up. A clock that was set back by
	// more than the state's reset is accepted instead. A state that this algorithm does
	// not own counts as that of a new key.
	//
	// The result says whether such a clock was accepted: then the state must be kept, or
	// every refused request would accept the clock again. Otherwise it need not be,
	// unless something is taken.
	Settle(s State, now int64) (State, bool)

	// Status describes the state.
	Status(s State, now int64) Status

	// Ask decides about cost, from 1 to the capacity, with a turn up to ahead µs from
	// now. Windows and estimates have no turns.
	Ask(s State, now, cost, ahead int64) Answer

	// Take consumes a cost that Ask has allowed.
	Take(s State, now, cost int64) State

	// Charge consumes cost even if that is not allowed. What exceeds the capacity is
	// debt, of at most one capacity.
	Charge(s State, now, cost int64) State

	// Give returns what was taken at at, for a turn wait µs later, as far as it still
	// counts and no later turn was promised, never more than was taken. With an at of 0
	// it returns the oldest.
	Give(s State, now, cost, at, wait int64) State

	// Debt is the time in µs until no more than the capacity is consumed.
	Debt(s State, now int64) int64

	// Numbers are the parameters, for code in another language.
	Numbers() []int64
}

type Status struct {
	Remaining int64 // the largest cost that is allowed now
	Next      int64 // µs until Remaining grows, 0 if it is the capacity
	Reset     int64 // µs until the state has no effect any more
}

type Answer struct {
	OK    bool
	Wait  int64 // if OK: µs until the turn
	Retry int64 // if not OK: the shortest time in µs until it is allowed if nothing else is taken
}

// exact bounds the integers that a double represents exactly.
const exact = 1 << 53

// latest bounds the expected times; it is in 2096.
const latest = 4e15

func refuse(format string, args ...any) error {
	return &limits.Error{Reason: fmt.Sprintf(format, args...)}
}

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
