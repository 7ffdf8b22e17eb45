package limits

import (
	"context"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver/check"
)

const (
	// MaxOverrides is how many overrides a store keeps at most. If several are set
	// at the same moment there may be as many more.
	MaxOverrides = 1000

	// MaxOverrideKeep is the longest time for which an override is kept.
	MaxOverrideKeep = 30 * 24 * time.Hour
)

// Overrider is implemented by stores of limits that keep overrides: other numbers for
// the limit of one key, for a while. The store only keeps them: Take does not obey them,
// because limits come with the requests. The caller of Take looks the overrides up
// first, and asks for the limit that they describe.
//
// Both methods are safe for concurrent use, are one attempt, and obey their context.
// Errors are those named here, context errors, or wrap one of driver.ErrUnavailable and
// driver.ErrUnknown. A store whose tables are older than overrides answers with an error
// that wraps errors.ErrUnsupported. Overrides are separate from all else that has the
// same key: neither Forget nor any other mode of Take touches them.
type Overrider interface {
	// SetOverride makes o the override of its key, for keep from now by the store's
	// clock, whatever override the key had. With a keep of 0 the key has none
	// afterwards, and of o only the Key counts; that there was none is no error. It
	// ignores Override.Left. Repeating it does no harm.
	//
	// What CheckOverride returns refuses the request before anything is sent. An
	// *OverridesFullError refuses the override of a further key.
	SetOverride(ctx context.Context, o Override, keep time.Duration) error

	// Overrides returns all overrides that are in force, in no particular order. What was set
	// before the call is among them; one that has ended may be for a few seconds more.
	Overrides(ctx context.Context) ([]Override, error)
}

// An Override replaces the numbers of a limit.
type Override struct {
	// Key is that of the limit in the store: see Take.Key.
	Key string

	// N per Period is the rate; an N of 0 allows nothing. With a Period of 0 the limit keeps its own. It is in
	// whole microseconds.
	N      int64
	Period time.Duration

	// Burst is that of a TokenBucket. With 0 it changes as the rate does.
	Burst int64

	// Left is how much longer the override is in force. Overrides sets it; a store without a
	// clock of its own estimates it.
	Left time.Duration
}

// MaxNumber is more than any limit can count.
const MaxNumber = 1 << 51

// CheckOverride returns the *driver.KeyError or the *Error that SetOverride must give
// before it does anything. Whether a limit can keep the numbers only that limit can
// tell.
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

// OverridesFullError refuses an override because the store has as many as it keeps.
// Nothing was changed.
type OverridesFullError struct {
	Key   string
	Store string // its short name: "redis"
}

func (e *OverridesFullError) Error() string {
	return fmt.Sprintf("an override of limit %q: the %s store keeps at most %d overrides, and as many stand: remove one that is not needed, or change the program's limits",
		e.Key, e.Store, MaxOverrides)
}
