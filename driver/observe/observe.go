// Package observe reports each request to a store, on any store. It wraps the store:
//
//	store := observe.Locks(redis, observe.Events{Request: func(ctx context.Context, e observe.RequestEvent) { … }})
//	locks, err := baton.New(store, baton.Config{})
//	limiter, err := ratelimit.New(observe.Limits(redis, events), …)
//
// The wrapped store answers as the store itself does, and has the same abilities:
// package once finds its records, for example. What is found by driver.As and is not
// about requests, such as driver.Watcher, goes past the wrapper.
package observe

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// Events receives what a store does. A nil function is not called.
type Events struct {
	// Request is called after each request, by the goroutine that made it and with
	// its context, several at a time. It returns soon and does not panic.
	Request func(context.Context, RequestEvent)
}

// A RequestEvent is one request to a store, from the call of a method to its answer.
// What a store does to answer, such as a second attempt at a script, is part of it.
type RequestEvent struct {
	Store     string        // its short name: "redis"
	Operation string        // one of the constants below
	Claims    int           // how many claims or keys it carried; of a list, how many it returned
	Took      time.Duration // without the time that the caller of a list took for what was listed
	Err       error         // of a renewal, the first of its answers that has one
	Class     string        // of Err, as Class says; "" without an error
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
	Held        = "held"        // the lock is held: an answer, and no failure of the store
	Missing     = "missing"     // there is no such record: an answer, and no failure of the store
	Lost        = "lost"        // the claim is not valid any more, or another attempt superseded this one
	Unavailable = "unavailable" // the store could not be asked, and nothing was done
	Unknown     = "unknown"     // the store did not answer; it may have done it
	Canceled    = "canceled"    // the caller's context ended
	Refused     = "refused"     // all other errors: the request is not legal, or cannot be granted
)

// Class returns the class of an error of a store, or of one of another package that wraps
// it, or "" for nil. A *baton.LostError without the error of a store is Refused. A context
// that ended while the store was silent is Unknown if the error says so, and Canceled
// otherwise.
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

// Locks wraps a store for locks, with all other abilities that it has. It returns l
// itself if e has no function.
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

// Limits wraps a store for limits. If it is one for locks, too, what Limits returns
// is as well. It returns s itself if e has no function.
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

// teller makes the events of one store.
type teller struct {
	store string
	told  func(context.Context, RequestEvent)
}

func (t *teller) tell(ctx context.Context, operation string, claims int, sent time.Time, err error) {
	t.told(ctx, RequestEvent{
		Store: t.store, Operation: operation, Claims: claims, Took: time.Since(sent), Err: err, Class: Class(err),
	})
}

// locks is what all wrapped stores have. Each optional ability is a type of its own
// that has it, too, because the wrapped store may lack the ability.
type locks struct {
	*teller
	inner driver.Locks
}

func (s *locks) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	sent := time.Now()
	g, err := s.inner.Acquire(ctx, r)
	s.tell(ctx, Acquire, 1, sent, err)
	return g, err
}

func (s *locks) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	sent := time.Now()
	answers := s.inner.Renew(ctx, claims, ttl)
	var err error
	for i := range answers {
		if err = answers[i].Err; err != nil {
			break
		}
	}
	s.tell(ctx, Renew, len(claims), sent, err)
	return answers
}

func (s *locks) Release(ctx context.Context, c driver.Claim) error {
	sent := time.Now()
	err := s.inner.Release(ctx, c)
	s.tell(ctx, Release, 1, sent, err)
	return err
}

func (s *locks) Traits() driver.Traits { return s.inner.Traits() }

// Unwrap shows the abilities that As does not give.
func (s *locks) Unwrap() driver.Locks { return s.inner }

// As gives the abilities that make requests, if the wrapped store has them.
func (s *locks) As(target any) bool {
	switch target := target.(type) {
	case *driver.Store:
		return give(s, target, func(in driver.Store) driver.Store { return closing{s, in} })
	case *driver.Together:
		return give(s, target, func(in driver.Together) driver.Together { return together{s, in} })
	case *driver.Downgrader:
		return give(s, target, func(in driver.Downgrader) driver.Downgrader { return downgrader{s, in} })
	case *driver.Mover:
		return give(s, target, func(in driver.Mover) driver.Mover { return mover{s, in} })
	case *driver.Renamer:
		return give(s, target, func(in driver.Renamer) driver.Renamer { return renamer{s, in} })
	case *driver.RecordLister:
		return give(s, target, func(in driver.RecordLister) driver.RecordLister { return lister{s, in} })
	case *driver.Inspector:
		return give(s, target, func(in driver.Inspector) driver.Inspector { return inspector{s, in} })
	case *driver.Records:
		return give(s, target, func(in driver.Records) driver.Records { return records{s, in} })
	case *driver.Examiner:
		return give(s, target, func(in driver.Examiner) driver.Examiner { return examiner{s, in} })
	case *driver.Clock:
		return give(s, target, func(in driver.Clock) driver.Clock { return clock{s, in} })
	case *limits.Store:
		return give(s, target, func(in limits.Store) limits.Store { return limited{s, in} })
	case *limits.Overrider:
		return give(s, target, func(in limits.Overrider) limits.Overrider { return overrider{s.teller, in} })
	case *limits.Lister:
		return give(s, target, func(in limits.Lister) limits.Lister { return stateLister{s.teller, in} })
	}
	return false
}

func give[T any](s *locks, target *T, wrapped func(inner T) T) bool {
	inner, ok := driver.As[T](s.inner)
	if ok {
		*target = wrapped(inner)
	}
	return ok
}

type closing struct {
	*locks
	store driver.Store
}

func (s closing) Close() error { return s.store.Close() }
