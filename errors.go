package baton

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

var (
	// ErrHeld says that another holder has the lock, or that it has waiters. The
	// error is a *HeldError. That of a Lock that waited until its context ended is
	// the context's, too.
	ErrHeld = driver.ErrHeld

	// ErrQueueFull says that as many wait for the lock as MaxWaiting allows. The error
	// is a *QueueFullError.
	ErrQueueFull = driver.ErrQueueFull

	// ErrLost says that a lease ended before its holder unlocked it. The
	// error is a *LostError, which knows the cause.
	ErrLost = errors.New("lease lost")

	// ErrNested says that the caller's context already holds a lease on
	// the key, so that waiting for the lock would be waiting for itself.
	ErrNested = acquire.ErrNested

	// ErrCountedOn says that a lease cannot be downgraded or detached, because
	// nested leases count on it or another call is changing it.
	ErrCountedOn = acquire.ErrCountedOn

	// ErrUnknown says that the answer was lost: what was asked for may or may not
	// have happened. What it may have left in the store ends within the TTL.
	ErrUnknown = driver.ErrUnknown

	// ErrUnavailable says that the store could not be reached or would not serve.
	ErrUnavailable = driver.ErrUnavailable

	// ErrDenied says that the store does not let this user in, or not do that: a password is
	// wrong, or a right is missing. To ask again does not help.
	ErrDenied = driver.ErrDenied

	// ErrUnsupported says that the store cannot do what was asked for.
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

	// NotLockError refuses a key under which the store has something else than a
	// lock.
	NotLockError = driver.NotLockError

	// KeyError refuses a key that no lock can have.
	KeyError = driver.KeyError
)

// Cause says why a lease ended.
type Cause uint8

const (
	// Expired: the lease could not be renewed in time. The store was down or
	// out of reach, or this process did not run.
	Expired = Cause(acquire.Expired)

	// Gone: the store does not know the lease any more. A person broke the lock or
	// deleted it, or the store forgot it.
	Gone = Cause(acquire.Gone)

	// Overheld: the lease was held for Config.MaxHold.
	Overheld = Cause(acquire.Overheld)

	// Detached: the lease was detached, so that Attach can take it up elsewhere.
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

// LostError says that a lease has ended and why. It is the context.Cause of
// contexts from Lease.Context, unless the lease was unlocked.
type LostError struct {
	Key   string
	Token int64
	Cause Cause

	// Err is the last error of the store before the lease expired, if there was
	// any.
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

// whyEnded says why ctx has ended. errors.Is finds the context's error and its
// cause.
func whyEnded(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// blame turns the error of a call to the store into the caller's error. If the
// caller's ctx has ended, that is the reason. If only a bound of this package has
// ended, the context error is hidden, because it is not the caller's.
func blame(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return whyEnded(ctx)
	case acquire.IsContext(err):
		return fmt.Errorf("%w: no answer in time (%v)", ErrUnknown, err)
	}
	return err
}

// explain adds the store's last error to err, the reason why a caller's context has ended.
// Without it an outage looks like a lock that is held. said may be nil.
func explain(ctx context.Context, err, said error) error {
	if ctx.Err() == nil || said == nil {
		return err
	}
	return fmt.Errorf("%w; the store said last: %v", err, said)
}
