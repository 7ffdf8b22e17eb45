package served

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

var errUnsupported = errors.ErrUnsupported

// plain are the errors without details.
var plain = map[string]error{
	"lost": driver.ErrLost, "unavailable": driver.ErrUnavailable, "unknown": driver.ErrUnknown, "closed": driver.ErrClosed,
	"unsupported": errors.ErrUnsupported, "canceled": context.Canceled, "deadline": context.DeadlineExceeded,
}

// A failure is an error in an answer.
type failure struct {
	Text     string
	Plain    string
	Held     *driver.HeldError
	Full     *driver.QueueFullError
	Capacity *driver.CapacityError
	NotLock  *driver.NotLockError
	Key      *driver.KeyError
	Request  *driver.RequestError
	Limit    *limits.Error
	Clock    *limits.ClockError
}

func pack(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	for name, e := range plain {
		if errors.Is(err, e) {
			f.Plain = name
		}
	}
	errors.As(err, &f.Held)
	errors.As(err, &f.Full)
	errors.As(err, &f.Capacity)
	errors.As(err, &f.NotLock)
	errors.As(err, &f.Key)
	errors.As(err, &f.Request)
	errors.As(err, &f.Limit)
	errors.As(err, &f.Clock)
	return f
}

func (f *failure) unpack() error {
	switch {
	case f == nil:
		return nil
	case f.Held != nil:
		return f.Held
	case f.Full != nil:
		return f.Full
	case f.Capacity != nil:
		return f.Capacity
	case f.NotLock != nil:
		return f.NotLock
	case f.Key != nil:
		return f.Key
	case f.Request != nil:
		return f.Request
	case f.Limit != nil:
		return f.Limit
	case f.Clock != nil:
		return f.Clock
	case plain[f.Plain] != nil && plain[f.Plain].Error() == f.Text:
		return plain[f.Plain]
	case plain[f.Plain] != nil:
		return fmt.Errorf("%s: %w", f.Text, plain[f.Plain])
	}
	return errors.New(f.Text)
}
