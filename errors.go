package baton

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

var (
	// ErrHeld says that another holder has the lock, or that it has waiters. The error is
	// a *HeldError. A Lock that waited until its context ended returns both the context's
	// error and, if the holder is known, this one.
	ErrHeld = driver.ErrHeld

	// ErrQueueFull says that MaxWaiting callers wait already. The error is a
	// *QueueFullError.
	ErrQueueFull = driver.ErrQueueFull

	// ErrLost says that a lease ended before its holder unlocked it. The
	// error is a *LostError, which knows the cause.
	ErrLost = errors.New("lease lost")

	// ErrNested says that the caller's context holds a lease on the key, so the call
	// would wait for itself.
	ErrNested = acquire.ErrNested

	// ErrCountedOn says that a lease cannot be downgraded or detached, because nested
	// leases need it or another call is changing it.
	ErrCountedOn = acquire.ErrCountedOn

	// ErrUnknown says that the answer was lost: the request may or may not have taken
	// effect. What it may have left in the store ends within the TTL.
	ErrUnknown = driver.ErrUnknown

	// ErrUnavailable says that the store could not be reached or would not serve.
	ErrUnavailable = driver.ErrUnavailable

	// ErrDenied says that the store denies access: a password is wrong, or a right is
	// missing. Another try does not help.
	ErrDenied = driver.ErrDenied

	// ErrUnsupported says that the store lacks the ability.
	ErrUnsupported = errors.ErrUnsupported
)

// Errors that a store's contract defines.
type (
	// HeldError refuses a TryLock and says who holds the lock. The error of a Lock
	// whose deadline passed contains it if the holder is known.
	HeldError = driver.HeldError

	// QueueFullError refuses a Lock with MaxWaiting and says how many wait: goroutines
	// of this process if Local is set, else waiters in the store.
	QueueFullError = driver.QueueFullError

	// CapacityError refuses a lock whose key is in use with another number
	// of permits.
	CapacityError = driver.CapacityError

	// NotLockError refuses a key under which the store has something other than a lock.
	NotLockError = driver.NotLockError

	// KeyError refuses a key that is not legal.
	KeyError = driver.KeyError
)

// Cause says why a lease ended.
type Cause uint8

const (
	// Expired: the lease could not be renewed in time. The store was down or
	// out of reach, or this process did not run.
	Expired = Cause(acquire.Expired)

	// Gone: the store does not know the lease any more. It was broken or deleted, or the
	// store lost its data.
	Gone = Cause(acquire.Gone)

	// Overheld: the lease was held for Config.MaxHold.
	Overheld = Cause(acquire.Overheld)

	// Detached: the lease was detached; Attach can continue it.
	Detached = Cause(acquire.Detached)

	// Released: the lease was unlocked.
	Released = Cause(acquire.Released)
)

func (c Cause) String() string {
	switch c {
	case Expired:
		return "it could not be renewed in time"
	case Gone:
		return "the store does not know it any more (broken, deleted, or forgotten)"
	case Overheld:
		return "it was held for the longest time allowed"
	case Detached:
		return "it was detached"
	case Released:
		return "it was unlocked"
	}
	return "unknown cause"
}

// LostError says that a lease has ended and why. It is the context.Cause of contexts from
// Lease.Context, unless the lease was unlocked.
type LostError struct {
	Key   string
	Token int64
	Cause Cause

	// Err is the last error of the store before the lease expired, if any.
	Err error
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("baton: lease on %q (token %d) has ended: %v", e.Key, e.Token, e.Cause)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is makes errors.Is(err, ErrLost) true.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns Err.
func (e *LostError) Unwrap() error { return e.Err }

func fail(verb, key string, err error) error {
	return fmt.Errorf("baton: %s %q: %w", verb, key, err)
}

// whyEnded returns the reason for the end of ctx. errors.Is finds the context's error and
// its cause in it.
func whyEnded(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// blame makes the caller's error of the error of a call to the store. If the caller's ctx
// has ended, that is the reason. The end of a context of this package is hidden: it is
// not the caller's.
func blame(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return whyEnded(ctx)
	case acquire.IsContext(err):
		return fmt.Errorf("%w: no answer in time (%v)", ErrUnknown, err)
	}
	return err
}

// explain adds the store's last error, which may be nil, to err, the reason for the end
// of ctx. Without it an outage looks like a lock that is held.
func explain(ctx context.Context, err, said error) error {
	if ctx.Err() == nil || said == nil {
		return err
	}
	return fmt.Errorf("%w; the store said last: %v", err, said)
}
