package once

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

var (
	// ErrFinal is what errors.Is finds in every *FinalError.
	ErrFinal = errors.New("the operation has failed for good")

	// ErrNoRecord says that the store has no record of an operation.
	ErrNoRecord = driver.ErrNoRecord
)

// Final marks an error of the function that Do runs as the outcome of the operation: it
// is recorded, and every later caller gets its text. It may be wrapped further.
// Final(nil) is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &final{err}
}

type final struct{ err error }

func (e *final) Error() string { return e.err.Error() }
func (e *final) Unwrap() error { return e.err }

// isFinal looks for the mark of Final. A mark within a *FinalError belongs to another
// operation.
func isFinal(err error) bool {
	switch e := err.(type) {
	case *final:
		return true
	case *FinalError:
		return false
	case interface{ Unwrap() error }:
		return isFinal(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), isFinal)
	}
	return false
}

// FinalError is a recorded final error.
type FinalError struct {
	Key  string
	Text string // of the error; its first check.MaxResult bytes

	err error // for the caller whose function returned it
}

// Is makes errors.Is(err, ErrFinal) true.
func (e *FinalError) Is(target error) bool { return target == ErrFinal }

// Unwrap returns the error itself to the caller whose function returned it, nil to all
// other callers.
func (e *FinalError) Unwrap() error { return e.err }

func (e *FinalError) Error() string {
	return fmt.Sprintf("once: operation %q has failed for good: %s", e.Key, driver.Printable(e.Text))
}

// UnrecordedError says that the function has ended and that its outcome, as far as is
// known, was not recorded. The effects of the function stay; other callers get another
// answer.
//
// Err is the reason. It is driver.ErrSuperseded if another attempt has begun since, or
// the record was forgotten: Instead is the present record then. It is baton.ErrUnknown or
// baton.ErrUnavailable if the store could not be reached: the outcome may or may not have
// been recorded then, and another call of Do tells. It is a *driver.RequestError if the
// result is too long.
type UnrecordedError struct {
	Key   string
	Token int64 // of the attempt

	Result  []byte // of the function
	Failure error  // or its final error

	Instead *driver.Record // the present record; nil: there is none, or it is unknown
	Err     error
}

// Unwrap returns Err.
func (e *UnrecordedError) Unwrap() error { return e.Err }

func (e *UnrecordedError) Error() string {
	s := fmt.Sprintf("once: operation %q has run (token %d) and its outcome was not recorded: %v", e.Key, e.Token, e.Err)
	if e.Instead != nil && e.Instead.Done {
		s += "; what the other attempt left is recorded"
	}
	return s
}

// again reports whether another request to the store may help. A context error here is
// that of this package's bound of a call, not of the caller's context.
func again(err error) bool {
	return errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// ended is the error of an ended ctx. errors.Is finds the context's error and its cause
// in it.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// blame makes the error for the caller of Do, which does not know the bounds of single
// calls.
func blame(err error) error {
	if again(err) && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
		return fmt.Errorf("%w: no answer in time (%v)", baton.ErrUnknown, err)
	}
	return err
}

func fail(verb, key string, err error) error {
	return fmt.Errorf("once: %s %q: %w", verb, key, err)
}
