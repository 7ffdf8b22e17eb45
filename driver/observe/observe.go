// Package observe reports each request to a store, on any store. It wraps the store:
//
//	store := observe.Locks(redis, observe.Events{Request: func(ctx context.Context, e observe.RequestEvent) { … }})
//	locks, err := baton.New(store, baton.Config{})
//	limiter, err := ratelimit.New(observe.Limits(redis, events), …)
//
// The wrapped store behaves like the store itself and has the same abilities: package
// once finds its records, for example. Abilities that make no requests, such as
// driver.Watcher, bypass the wrapper.
package observe

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// Events receives the requests to a store. A nil function is not called.
type Events struct {
	// Request is called after each request, by the goroutine that made it and with its
	// context, several at a time. It must return soon and must not panic.
	Request func(context.Context, RequestEvent)
}

// A RequestEvent is one request to a store, from the call of a method to its answer. It
// includes further attempts of the store, such as a second one at a script.
type RequestEvent struct {
	Store     string        // its short name: "redis"
	Operation string        // one of the constants below
	Claims    int           // how many claims or keys it carried; of a list, how many it returned
	Took      time.Duration // without the time that the caller of a list spends in its loop
	Err       error         // of a renewal, the first of its answers that has one
	Class     string        // Class(Err)
}

// The operations of a RequestEvent.
const (
	Acquire    = "acquire"
	AcquireAll = "acquire-all"
	Renew      = "renew"
	Release    = "release"
	Downgrade  = "downgrade"
	Move       = "move"
	Rename     = "rename"
	Inspect    = "inspect"
	List       = "list"
	Break      = "break"
	Begin      = "begin"
	Finish     = "finish"
	Find       = "find"
	Forget     = "forget"
	Records    = "records"
	Take       = "take"
	Override   = "override"
	Overrides  = "overrides"
	States     = "states"
	Examine    = "examine"
	Time       = "time"
)

// The classes of errors.
const (
	Held        = "held"        // the lock is held: an answer, no failure of the store
	Missing     = "missing"     // there is no such record: an answer, no failure of the store
	Lost        = "lost"        // the claim is no longer valid, or another attempt superseded this one
	Unavailable = "unavailable" // the store could not be reached; the request had no effect
	Unknown     = "unknown"     // the store did not answer; the request may have had an effect
	Canceled    = "canceled"    // the caller's context ended
	Refused     = "refused"     // all other errors: the request is illegal, or cannot be granted
)

// Class returns the class of an error that is or wraps a store's error, "" for nil. A
// *baton.LostError without an error of the store is Refused. The end of a context while
// the store was silent is Unknown if the error says so, else Canceled.
func Class(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrQueueFull):
		return Held
	case errors.Is(err, driver.ErrNoRecord):
		return Missing
	case errors.Is(err, driver.ErrLost), errors.Is(err, driver.ErrSuperseded):
		return Lost
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, driver.ErrUnknown):
		return Unknown
	case errors.Is(err, driver.ErrUnavailable), errors.Is(err, driver.ErrDenied):
		return Unavailable
	case errors.Is(err, context.DeadlineExceeded):
		return Canceled
	}
	return Refused
}

// Locks wraps a store for locks, with all its other abilities. It returns l itself if e
// has no function.
func Locks(l driver.Locks, e Events) driver.Locks {
	if e.Request == nil {
		return l
	}
	return wrap(l, e)
}

// Store is Locks for a store with a Close.
func Store(s driver.Store, e Events) driver.Store {
	if e.Request == nil {
		return s
	}
	return closing{wrap(s, e), s}
}

// Limits wraps a store for limits. If s is a store for locks, too, so is the result. It
// returns s itself if e has no function.
func Limits(s limits.Store, e Events) limits.Store {
	if e.Request == nil {
		return s
	}
	if l, ok := s.(driver.Locks); ok {
		return limited{wrap(l, e), s}
	}
	return limitsAlone{&teller{told: e.Request}, s}
}

func wrap(l driver.Locks, e Events) *locks {
	return &locks{&teller{l.Traits().Store, e.Request}, l}
}

type teller struct {
	store string
	told  func(context.Context, RequestEvent)
}

func (t *teller) tell(ctx context.Context, operation string, claims int, sent time.Time, err *error) {
	t.told(ctx, RequestEvent{
		Store: t.store, Operation: operation, Claims: claims, Took: time.Since(sent), Err: *err, Class: Class(*err),
	})
}

// locks is the part that all wrapped stores share.
type locks struct {
	*teller
	inner driver.Locks
}

func (s *locks) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	defer s.tell(ctx, Acquire, 1, time.Now(), &err)
	return s.inner.Acquire(ctx, r)
}

func (s *locks) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	var err error
	defer s.tell(ctx, Renew, len(claims), time.Now(), &err)
	answers := s.inner.Renew(ctx, claims, ttl)
	for i := range answers {
		if err = answers[i].Err; err != nil {
			break
		}
	}
	return answers
}

func (s *locks) Release(ctx context.Context, c driver.Claim) (err error) {
	defer s.tell(ctx, Release, 1, time.Now(), &err)
	return s.inner.Release(ctx, c)
}

func (s *locks) Traits() driver.Traits { return s.inner.Traits() }

func (s *locks) Unwrap() driver.Locks { return s.inner }

// As sets target to an ability that makes requests, if the wrapped store has it.
func (s *locks) As(target any) bool {
	switch target := target.(type) {
	case *driver.Store:
		in, ok := driver.As[driver.Store](s.inner)
		if ok {
			*target = closing{s, in}
		}
		return ok
	case *limits.Store:
		in, ok := driver.As[limits.Store](s.inner)
		if ok {
			*target = limited{s, in}
		}
		return ok
	case *driver.Together:
		return ask(s.teller, s.inner, target)
	case *driver.Downgrader:
		return ask(s.teller, s.inner, target)
	case *driver.Mover:
		return ask(s.teller, s.inner, target)
	case *driver.Renamer:
		return ask(s.teller, s.inner, target)
	case *driver.RecordLister:
		return ask(s.teller, s.inner, target)
	case *driver.Inspector:
		return ask(s.teller, s.inner, target)
	case *driver.Records:
		return ask(s.teller, s.inner, target)
	case *driver.Examiner:
		return ask(s.teller, s.inner, target)
	case *driver.Clock:
		return ask(s.teller, s.inner, target)
	case *limits.Overrider:
		return ask(s.teller, s.inner, target)
	case *limits.Lister:
		return ask(s.teller, s.inner, target)
	}
	return false
}
