package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/open"
)

// Exit codes: first those of sysexits(3), then those of timeout(1) and of shells.
const (
	ExitUsage       = 64
	ExitUnavailable = 69
	ExitNotAcquired = 75
	ExitConfig      = 78
	ExitLost        = 79

	ExitFailed = 125
	ExitSignal = 128 // plus the number of the signal
)

// Exit is an error with the exit code of the process. With a nil Err the message was
// already printed.
type Exit struct {
	Code int
	Err  error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Exit) Unwrap() error { return e.Err }

// Usage is an error about the arguments.
func Usage(format string, args ...any) error {
	return &Exit{ExitUsage, Wrong(format, args...)}
}

func CodeOf(err error) int {
	switch own := (*Exit)(nil); {
	case err == nil:
		return 0
	case errors.As(err, &own):
		return own.Code
	case errors.As(err, new(*open.URLError)):
		return ExitConfig
	case errors.As(err, new(*baton.KeyError)):
		return ExitUsage
	case errors.As(err, new(*baton.ConfigError)), errors.As(err, new(*baton.CapacityError)), errors.As(err, new(*baton.NotLockError)),
		errors.Is(err, baton.ErrUnsupported), errors.Is(err, driver.ErrDenied):
		return ExitConfig
	case errors.Is(err, baton.ErrLost), errors.Is(err, driver.ErrLost):
		return ExitLost
	case errors.Is(err, baton.ErrUnavailable), errors.Is(err, baton.ErrUnknown):
		return ExitUnavailable
	case errors.Is(err, baton.ErrHeld):
		return ExitNotAcquired
	case errors.Is(err, context.DeadlineExceeded):
		return ExitUnavailable
	}
	return ExitFailed
}
