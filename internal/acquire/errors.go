package acquire

import (
	"context"
	"errors"

	"github.com/batonhq/baton/driver"
)

// Package baton explains these errors.
var (
	ErrNested    = errors.New("this context holds the lock already: pass baton.Reentrant() if that is meant")
	ErrCountedOn = errors.New("nested locks count on the lease, or another call is changing it")
)

// A Cause says why a lease ended. The constants of package baton explain them.
type Cause uint8

const (
	Expired Cause = iota + 1
	Gone
	Overheld
	Detached
	Released
)

// A Loss is the end of a lease without an unlock.
type Loss struct {
	Token int64
	Cause Cause
	Err   error // the last error of the store before the end, if any
}

// Final reports that another request to the store cannot help.
func Final(err error) bool {
	return !errors.Is(err, driver.ErrUnavailable) && !Unknown(err)
}

// Unknown reports that the request may have taken effect.
func Unknown(err error) bool {
	return errors.Is(err, driver.ErrUnknown) || IsContext(err)
}

// IsContext reports that a context ended: the caller's, or one that bounds a call to the
// store.
func IsContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
