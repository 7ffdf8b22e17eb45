package ratelimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// Never is the RetryAfter of a cost that is never allowed.
const Never = limits.Never

// A Result is a decision, and the state of the key after it. Waits are rounded up to
// microseconds, so that none is early.
type Result struct {
	OK bool

	// Near says that a limit is used up to the share of its Warn. It is false if By is a
	// Fallback, because the use is unknown then.
	Near bool

	// WouldRefuse says that a limit which is a Shadow would have refused: see Limits. OK
	// does not depend on it.
	WouldRefuse bool

	Key  string
	Cost int64
	By   Source    // who decided
	At   time.Time // by the clock of the store

	// Wait is how long to wait before acting on an OK. It is above 0 only under a
	// LeakyBucket, and 0 after Limiter.Wait, which has waited.
	Wait time.Duration

	// RetryAfter is when the same cost will be allowed if nothing else is taken
	// meanwhile; Never if it is above a limit; 0 if OK.
	RetryAfter time.Duration

	// ResetAfter is when all that was taken has come back.
	ResetAfter time.Duration

	// Name, Limit, Period, Remaining and NextAfter are those of the tightest limit: the
	// one that refuses for longest, else the one with the least remaining. See
	// LimitResult. Shadows do not count; the fields are zero if all limits are shadows.
	Name      string
	Limit     int64
	Period    time.Duration
	Remaining int64
	NextAfter time.Duration

	limits []LimitResult // nil if there is only one
}

// Limits are the results of the limits, in the order of New. The caller must not change
// the slice.
func (r Result) Limits() []LimitResult {
	if r.limits != nil {
		return r.limits
	}
	return []LimitResult{{
		Name: r.Name, OK: r.OK, Near: r.Near, Limit: r.Limit, Period: r.Period, Remaining: r.Remaining,
		Wait: r.Wait, RetryAfter: r.RetryAfter, NextAfter: r.NextAfter, ResetAfter: r.ResetAfter,
	}}
}

// LimitResult is the result of one limit.
type LimitResult struct {
	Name       string
	OK         bool          // for a Shadow: whether it would have allowed it
	Shadow     bool          // it refuses nothing
	Near       bool          // used up to the share of its Warn
	Overridden bool          // an override replaces its numbers: see Overridable
	Limit      int64         // the largest cost that is ever allowed: the burst of a bucket
	Period     time.Duration // the length of the window; the time to fill an empty bucket
	Remaining  int64         // the largest cost that is allowed now
	Wait       time.Duration

	RetryAfter time.Duration // 0 if OK
	NextAfter  time.Duration // until Remaining grows; 0 if it is Limit
	ResetAfter time.Duration // until all that was taken has come back
}

// Source says who decided.
type Source uint8

const (
	ByStore  Source = iota // the store, exactly
	ByOpen                 // FailOpen, because the store failed
	ByClosed               // FailClosed, because the store failed
	ByLocal                // FailLocal, because the store failed: this process, about its share
	ByBatch                // InBatches: this process, from a batch
)

// Fallback reports whether the store failed and an option decided: the result then has no
// figures, or those of one share.
func (s Source) Fallback() bool { return s == ByOpen || s == ByClosed || s == ByLocal }

func (s Source) String() string {
	return [...]string{"store", "open", "closed", "local", "batch"}[min(s, ByBatch)]
}

// Errors of package driver, for programs that do not import it.
type (
	// KeyError refuses a key.
	KeyError = driver.KeyError
	// LimitError refuses a limit or a cost.
	LimitError = limits.Error
	// ClockError says that the clocks of this machine and of the store differ too much
	// for windows of a calendar.
	ClockError = limits.ClockError
)

var (
	// ErrUnavailable says that the store could not be reached, and nothing was taken.
	ErrUnavailable = driver.ErrUnavailable

	// ErrUnknown says that the request may have been counted.
	ErrUnknown = driver.ErrUnknown

	// ErrRefused is what errors.Is finds in every *RefusedError.
	ErrRefused = errors.New("above the limit")

	// ErrSettled says that a Reservation was committed or cancelled before.
	ErrSettled = errors.New("the reservation was settled before")
)

// RefusedError says that Wait gave up because Result.RetryAfter is after the deadline, or
// Never.
type RefusedError struct{ Result Result }

// Is makes errors.Is(err, ErrRefused) true.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

func (e *RefusedError) Error() string {
	r := e.Result
	name := ""
	if r.Name != "" {
		name = " by " + r.Name
	}
	switch {
	case r.By == ByClosed:
		return fmt.Sprintf("ratelimit: %q: the store is out of reach, and nothing is allowed without it", r.Key)
	case r.RetryAfter == Never:
		return fmt.Sprintf("ratelimit: a cost of %d for %q is refused%s: more than %d is never allowed", r.Cost, r.Key, name, r.Limit)
	}
	return fmt.Sprintf("ratelimit: a cost of %d for %q is refused%s: %d of %d remain, retry after %v", r.Cost, r.Key, name, r.Remaining, r.Limit, r.RetryAfter)
}
