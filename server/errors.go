package server

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/lockfeed"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/internal/handle"
)

// A busyError says that a bound of a caller is reached.
type busyError struct{ reason string }

func (e *busyError) Error() string { return e.reason }

// bad returns the error of a call that makes no sense.
func bad(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

// failure returns the client's error for an error. The text of a store's error may show
// the store's address, so only the log gets it.
func (s *Server) failure(what string, err error) error {
	if known := new(connect.Error); errors.As(err, &known) {
		return known
	}
	as := func(code connect.Code, err error) error {
		return connect.NewError(code, errors.New(driver.Printable(err.Error())))
	}
	switch {
	case errors.Is(err, driver.ErrLost):
		return as(connect.CodeNotFound, errors.New("the lease has ended: it expired, was released, or broken"))
	case errors.Is(err, errEnded), errors.Is(err, driver.ErrSuperseded):
		return as(connect.CodeAborted, err)
	case errors.Is(err, errStopping):
		return as(connect.CodeUnavailable, err)
	case errors.Is(err, errors.ErrUnsupported):
		return as(connect.CodeUnimplemented, err)
	case errors.As(err, new(*busyError)), errors.As(err, new(*lockfeed.TooManyError)):
		return as(connect.CodeResourceExhausted, err)
	case errors.Is(err, handle.Err), errors.As(err, new(*driver.KeyError)), errors.As(err, new(*driver.RequestError)),
		errors.As(err, new(*rules.UnknownError)), errors.As(err, new(*rules.RequestError)), errors.As(err, new(*limits.Error)):
		return as(connect.CodeInvalidArgument, err)
	case errors.As(err, new(*driver.CapacityError)), errors.As(err, new(*driver.NotLockError)):
		return as(connect.CodeFailedPrecondition, err)
	case errors.Is(err, errGone):
		return as(connect.CodeCanceled, err)
	}
	s.cfg.Logger.Warn("the store has not answered", "store", s.traits.Store, "call", what, "error", driver.Printable(err.Error()))
	why := s.reason(err)
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrDenied) {
		return as(connect.CodeUnavailable, fmt.Errorf("%s, and nothing was done: call again", why))
	}
	return as(connect.CodeUnavailable, fmt.Errorf("%s, and what was asked for may have been done: call again", why))
}

// reason returns why the store has not done a request, for clients: the store's own
// answer, but no error of the network, which may show its address.
func (s *Server) reason(err error) string {
	said, answered := driver.AnswerOf(err)
	switch {
	case answered:
		return fmt.Sprintf("store %s refuses: %s", s.traits.Store, said)
	case errors.Is(err, driver.ErrDenied):
		return fmt.Sprintf("store %s denies this server access", s.traits.Store)
	case errors.Is(err, driver.ErrUnavailable):
		return fmt.Sprintf("store %s is out of reach", s.traits.Store)
	}
	return fmt.Sprintf("store %s has not answered", s.traits.Store)
}
