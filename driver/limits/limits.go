// Package limits is the contract between the limiter of package ratelimit and one kind of
// server. A store that implements it can keep rate limits.
//
// Package drivertest holds this contract as tests.
package limits

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// Store decides about rates. All methods are safe for concurrent use and obey their
// context. Errors are those of this package, context errors, or wrap
// driver.ErrUnavailable or driver.ErrUnknown.
type Store interface {
	// Take makes one atomic decision about all limits of r, by the clock of the store: it
	// takes from every limit or from none.
	//
	// A *driver.KeyError or an *Error refuses the request before anything is sent. A
	// refusal by a limit is no error: Taken.OK is false.
	Take(ctx context.Context, r Request) (Taken, error)
}

// Algorithm is a way to count.
type Algorithm uint8

const (
	// FixedWindow allows N in every window of a Period, or in each of Windows. Around a
	// boundary it allows up to 2·N within less than a window.
	FixedWindow Algorithm = iota + 1

	// SlidingWindow cuts the Period into Parts. It counts the present part together with
	// the Parts before it, so it never allows more than N within any Period; what was
	// taken comes back up to one part late. Classic counts one part less: what was taken
	// comes back up to one part early, and up to 2·N may be allowed within a Period.
	SlidingWindow

	// SlidingLog remembers the moment of every take: exactly N within any Period.
	SlidingLog

	// EstimatedWindow estimates a sliding window from the counts of this window and the
	// one before. It allows less than 2·N within any Period.
	EstimatedWindow

	// TokenBucket holds up to Burst tokens and is refilled with N per Period,
	// evenly. It allows at most Burst + N·t/Period within any time t.
	TokenBucket

	// LeakyBucket is a queue for at most Burst requests, which leave it at N per Period,
	// evenly: Decision.Wait is the time until a request's turn. The first Ahead requests
	// in the queue need not wait. See Request.TurnWithin.
	LeakyBucket

	endAlgorithms
)

var algorithmNames = [endAlgorithms]string{
	FixedWindow:     "fixed-window",
	SlidingWindow:   "sliding-window",
	SlidingLog:      "sliding-log",
	EstimatedWindow: "estimated-window",
	TokenBucket:     "token-bucket",
	LeakyBucket:     "leaky-bucket",
}

func (a Algorithm) String() string {
	if a == 0 || a >= endAlgorithms {
		return fmt.Sprintf("algorithm %d", uint8(a))
	}
	return algorithmNames[a]
}

// ParseAlgorithm is the inverse of Algorithm.String.
func ParseAlgorithm(name string) (Algorithm, bool) {
	for a := FixedWindow; a < endAlgorithms; a++ {
		if algorithmNames[a] == name {
			return a, true
		}
	}
	return 0, false
}

// A Limit is a rule: N per Period. It is comparable. Times are whole microseconds. A
// field that the algorithm does not use is zero.
type Limit struct {
	Algorithm Algorithm
	N         int64
	Period    time.Duration
	Burst     int64         // TokenBucket, LeakyBucket
	Ahead     int64         // LeakyBucket
	Parts     int64         // SlidingWindow
	Classic   bool          // SlidingWindow
	Offset    time.Duration // FixedWindow: when a window begins, from midnight of 1 January 1970, UTC

	// Windows are boundaries of a FixedWindow that a Period cannot describe, such as days
	// in a time zone, in microseconds since 1970: the beginnings of the previous, present
	// and next window, and the end of the next. Period is 0 then. A store whose clock is
	// in none of these windows answers with a *ClockError.
	Windows [4]int64
}

// Capacity is the largest cost that is ever allowed.
func (l Limit) Capacity() int64 {
	if l.Algorithm == TokenBucket || l.Algorithm == LeakyBucket {
		return l.Burst
	}
	return l.N
}

// MaxTakes is the greatest number of limits in one request.
const MaxTakes = 16

// A Take is the part of a request for one limit.
type Take struct {
	// Key is the key of the limit, legal for check.Key. Limits and locks are separate:
	// one key can be both. Changing a key's limit (its number, period or algorithm) does
	// not forget what was taken: it still counts until the old limit would have given it
	// back. A look, a refusal or another take does not change that. One exception: the
	// content of a bucket comes back at the rate of the last request that took something.
	Key string

	Limit Limit

	// Cost is how much to take. A request with 0 takes nothing and returns the state of
	// the limit.
	Cost int64
}

// Mode says what a request does.
type Mode uint8

const (
	// TakeIfAllowed takes the costs if all limits allow it, else nothing.
	TakeIfAllowed Mode = iota

	// TakeAnyway takes the costs whether or not they are allowed. The part above a
	// capacity is debt, of at most one more capacity.
	TakeAnyway

	// GiveBack returns what was taken at Request.At, as far as it still counts. A limit
	// never gets above its capacity.
	GiveBack

	// Forget deletes the state of the keys.
	Forget
)

// A Request asks for one decision.
type Request struct {
	Takes []Take // 1 to MaxTakes, each with another key
	Mode  Mode

	// MaxWait lets a TokenBucket promise tokens that it does not have yet: it allows a
	// cost whose turn is at most that far ahead, and Decision.Wait is the time until the
	// turn. Other algorithms ignore MaxWait.
	MaxWait time.Duration

	// TurnWithin makes a LeakyBucket refuse a turn that is further ahead, and take
	// nothing: Decision.Retry is the time until a turn is near enough. With 0 it gives
	// any turn that its queue has. It is cut to whole microseconds: with a nanosecond
	// only a turn that has come is near enough.
	TurnWithin time.Duration

	// ID makes TakeIfAllowed and TakeAnyway idempotent: for Keep, an allowed request with
	// the same ID and first key takes nothing again and gets the earlier answer, with
	// Repeated. The caller draws a new ID (driver.NewID) for each request, not for each
	// attempt. Without an ID the store remembers nothing.
	ID   string
	Keep time.Duration

	// At and Wait are the Taken.At and Taken.Wait of what GiveBack returns. A promised
	// turn is never moved: a bucket takes a request's tokens back entirely if no promise
	// comes after it, else not at all. Part of them would be a second turn beside another
	// request's. With an At of 0, GiveBack returns the oldest of what still counts, so
	// that no window ever allows more than its limit; a bucket with promised turns or
	// debt then takes nothing back.
	At   int64
	Wait time.Duration

	// Now is the present, in microseconds since 1970 and not after 2096, for tests and
	// simulations. With 0 the store uses its clock. The store keeps the state that a
	// request with Now leaves for at least ReplayTTL by its own clock.
	Now int64
}

// Never is the Decision.Retry of a cost above the capacity.
const Never time.Duration = math.MaxInt64

// Taken is a decision. Decisions that take something are in the order of At. A decision
// that takes nothing sees everything that was answered before its request, and nothing
// that was decided after At. It may miss a decision before At whose answer is still under
// way.
type Taken struct {
	OK       bool
	Repeated bool          // the answer is that of an earlier request with the same ID; all of Limits have its Wait
	Wait     time.Duration // if OK: until the request's turn, the latest of all limits
	Retry    time.Duration // if not OK: the longest of the limits that refused
	At       int64         // when it was decided, in microseconds since 1970 by the store's clock
	Limits   []Decision    // in the order of the request
}

// Decision is the answer and the new state of one limit. Waits are rounded up to
// microseconds, so that no promise is early.
type Decision struct {
	OK        bool
	Remaining int64 // the largest cost that is allowed at once

	// Wait, if OK, is the time until the request's turn; for TakeAnyway, the time until
	// what exceeds the capacity has come back.
	Wait time.Duration

	// Retry, if not OK, is the time until the same cost is allowed if nothing else is
	// taken. If other algorithms have taken from the key, it may be allowed later than
	// that. Retry is Never for a cost above the capacity.
	Retry time.Duration

	Next  time.Duration // until Remaining grows; 0 if it is the capacity
	Reset time.Duration // until all that was taken has come back
}

// An Error refuses a limit, or a request to one, before anything is sent.
type Error struct {
	Key    string // "" if it is about the limit itself
	Reason string
}

func (e *Error) Error() string {
	if e.Key == "" {
		return "bad limit: " + e.Reason
	}
	return fmt.Sprintf("bad request to limit %q: %s", e.Key, e.Reason)
}

// ClockError says that the clocks of this machine and of the store differ too much for
// the request. Nothing was changed.
type ClockError struct {
	Store string
	Ahead time.Duration // of the store's clock; negative if it is behind
}

func (e *ClockError) Error() string {
	how := "ahead of"
	if e.Ahead < 0 {
		how = "behind"
	}
	return fmt.Sprintf("the clock of the %s store is %v %s that of this machine: set the one that is wrong", e.Store, e.Ahead.Abs().Round(time.Millisecond), how)
}

// abilityOf is driver.As for a store that may have limits only.
func abilityOf[T any](s Store) (T, bool) {
	if t, ok := s.(T); ok {
		return t, true
	}
	var t T
	if wrapper, ok := s.(interface{ As(target any) bool }); ok && wrapper.As(&t) {
		return t, true
	}
	locks, _ := s.(driver.Locks)
	return driver.As[T](locks)
}

// ReplayTTL is the least time for which a store keeps the state left by a request with
// Now, even if by the store's clock the state has no effect any more.
const ReplayTTL = 10 * time.Minute

// latest is the greatest Now of a request, in 2096.
const latest = 4_000_000_000_000_000

// MaxKeep is the greatest Request.Keep.
const MaxKeep = 24 * time.Hour

// Check returns the error that Take must give for r before it does anything. It does not
// check what only an algorithm knows.
func Check(r Request) error {
	if n := len(r.Takes); n < 1 || n > MaxTakes {
		return &Error{"", fmt.Sprintf("%d limits in one request: there can be 1 to %d", n, MaxTakes)}
	}
	first := r.Takes[0].Key
	for i, t := range r.Takes {
		if err := check.Key(t.Key); err != nil {
			return err
		}
		for _, other := range r.Takes[:i] {
			if other.Key == t.Key {
				return &Error{t.Key, "it is asked twice: each limit of a request needs a key of its own"}
			}
		}
		if t.Cost < 0 {
			return &Error{t.Key, fmt.Sprintf("a cost of %d: it must not be negative", t.Cost)}
		}
	}
	switch {
	case r.Mode > Forget:
		return &Error{first, fmt.Sprintf("mode %d is none", r.Mode)}
	case r.MaxWait < 0:
		return &Error{first, fmt.Sprintf("a wait of %v: it must not be negative", r.MaxWait)}
	case r.TurnWithin < 0:
		return &Error{first, fmt.Sprintf("a turn within %v: it must not be negative", r.TurnWithin)}
	case r.Now < 0 || r.At < 0 || r.Wait < 0:
		return &Error{first, "a time that is negative"}
	case r.Now > latest || r.At > latest:
		return &Error{first, "a time after 2096"}
	case r.ID == "":
		return nil
	case r.Mode > TakeAnyway:
		return &Error{first, "only what is taken has an ID"}
	case r.Keep <= 0 || r.Keep > MaxKeep:
		return &Error{first, fmt.Sprintf("its ID is to be kept for %v: that must be positive and at most %v", r.Keep, MaxKeep)}
	}
	return check.Claim(driver.Claim{Key: first, ID: r.ID})
}
