package limits

import (
	"context"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver/check"
)

const (
	// MaxOverrides is the greatest number of overrides that a store keeps. Several that
	// are set at the same moment may exceed it by their number.
	MaxOverrides = 1000

	// MaxOverrideKeep is the longest time for which an override is kept.
	MaxOverrideKeep = 30 * 24 * time.Hour
)

// Overrider is implemented by stores of limits that keep overrides: other numbers for the
// limit of one key, for a while. Take does not apply them, because limits come with the
// requests. The caller of Take looks the overrides up and asks for the limit that they
// describe.
//
// Both methods are safe for concurrent use, are one attempt, and obey their context.
// Errors are those named here, context errors, or wrap driver.ErrUnavailable or
// driver.ErrUnknown; an error that wraps errors.ErrUnsupported says that the store's
// tables are older than overrides. Overrides are separate from other data with the same
// key: no mode of Take changes them.
type Overrider interface {
	// SetOverride makes o the override of its key, for keep from now by the store's
	// clock, in place of an earlier one. With a keep of 0 it removes the override, if
	// there is one; of o only the Key counts then. Override.Left is ignored. SetOverride
	// is idempotent.
	//
	// The errors of CheckOverride refuse the request before anything is sent. An
	// *OverridesFullError refuses the override of a further key.
	SetOverride(ctx context.Context, o Override, keep time.Duration) error

	// Overrides returns all overrides that are in force, in no particular order. It
	// includes all that were set before the call, and may include those that ended in the
	// last few seconds.
	Overrides(ctx context.Context) ([]Override, error)
}

// An Override replaces the numbers of a limit.
type Override struct {
	// Key is that of the limit in the store: see Take.Key.
	Key string

	// N per Period is the rate; an N of 0 allows nothing. Period is whole microseconds;
	// with 0 the limit keeps its own.
	N      int64
	Period time.Duration

	// Burst is that of a TokenBucket. With 0 it changes in proportion to the rate.
	Burst int64

	// Left is the rest of the time in force. Overrides sets it; a store without a clock
	// of its own estimates it.
	Left time.Duration
}

// MaxNumber is greater than any number that a limit can count to.
const MaxNumber = 1 << 51

// CheckOverride returns the *driver.KeyError or the *Error that SetOverride must give
// before it does anything. Whether a limit can have the numbers is checked when it is
// asked.
func CheckOverride(o Override, keep time.Duration) error {
	if err := check.Key(o.Key); err != nil {
		return err
	}
	refuse := func(format string, args ...any) error {
		return &Error{o.Key, "an override " + fmt.Sprintf(format, args...)}
	}
	switch {
	case keep < 0:
		return refuse("for %v: the time must not be negative", keep)
	case keep > MaxOverrideKeep:
		return refuse("for %v: it can stand for at most %v, a lasting change belongs into the program's limits", keep, MaxOverrideKeep)
	case keep == 0:
		return nil
	case o.N < 0 || o.N >= MaxNumber:
		return refuse("of %d: it allows at least 0, which blocks the key, and at most %d", o.N, int64(MaxNumber-1))
	case o.Period < 0 || o.Period%time.Microsecond != 0:
		return refuse("with a period of %v: that is whole microseconds, and not negative", o.Period)
	case o.Burst < 0 || o.Burst >= MaxNumber:
		return refuse("with a burst of %d: it is at least 1 and at most %d, or 0 to change as the rate does", o.Burst, int64(MaxNumber-1))
	}
	return nil
}

// OverriderOf returns s, or a store that s wraps, as an Overrider, if it is one: see
// driver.As.
func OverriderOf(s Store) (Overrider, bool) { return abilityOf[Overrider](s) }

// OverridesFullError refuses an override because the store has MaxOverrides already.
// Nothing was changed.
type OverridesFullError struct {
	Key   string
	Store string // its short name: "redis"
}

func (e *OverridesFullError) Error() string {
	return fmt.Sprintf("an override of limit %q: the %s store keeps at most %d overrides, and as many stand: remove one that is not needed, or change the program's limits",
		e.Key, e.Store, MaxOverrides)
}
