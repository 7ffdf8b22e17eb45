package check

import (
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
)

const (
	// MaxResult is the greatest length of an operation's result, in bytes.
	MaxResult = 256 << 10

	// MaxFailure is the greatest length of the result of a failed attempt that may be
	// repeated, in bytes.
	MaxFailure = 4 << 10

	// MinRecordKeep and MaxRecordKeep bound the time for which a record is kept.
	MinRecordKeep = time.Second
	MaxRecordKeep = 10 * 365 * 24 * time.Hour
)

// Begin returns the error that BeginAttempt must give before it does anything:
// *driver.KeyError, *driver.RequestError, or nil.
func Begin(a driver.Attempt, keep time.Duration) error {
	if err := checkAttempt(a, keep); err != nil {
		return err
	}
	return checkOwner(a.Key, a.Owner)
}

// Finish is Begin for FinishAttempt.
func Finish(a driver.Attempt, o driver.Outcome, keep time.Duration) error {
	if err := checkAttempt(a, keep); err != nil {
		return err
	}
	switch n := len(o.Result); {
	case o.Failed && o.Retry:
		return bad(a.Key, "outcome", "it is final, or another attempt may begin, not both")
	case o.Retry && n > MaxFailure:
		return bad(a.Key, "result", fmt.Sprintf("how an attempt failed has %d bytes, at most %d can be kept", n, MaxFailure))
	case n > MaxResult:
		return bad(a.Key, "result", fmt.Sprintf("it has %d bytes, at most %d can be kept: keep it elsewhere and record where", n, MaxResult))
	}
	return nil
}

func checkAttempt(a driver.Attempt, keep time.Duration) error {
	if err := Key(a.Key); err != nil {
		return err
	}
	switch {
	case a.Token <= 0:
		return bad(a.Key, "token", fmt.Sprintf("%d is not positive", a.Token))
	case keep < MinRecordKeep || keep > MaxRecordKeep:
		return bad(a.Key, "keep", fmt.Sprintf("%v is not within %v and %v", keep, MinRecordKeep, MaxRecordKeep))
	}
	return nil
}
