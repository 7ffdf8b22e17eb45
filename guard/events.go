package guard

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// Events are functions that the guards of this process call: see Observe. A function may
// be nil. The goroutine that does the work calls it, with no mutex of this package
// locked, and waits for it: it must return soon and must not panic.
type Events struct {
	// Refused is called exactly once for each write that a guard of this process refuses
	// with a *StaleError: by SQL, RaisePgx, Redis, WriteFile or Memory, also within a
	// Gate or HTTP. The context is that of the refused call, for HTTP that of the
	// request. The call returns after that: the transaction of SQL or RaisePgx is still
	// open, and Refused must not wait for its database.
	//
	// The refusing process calls it, not the one that asked: a client of HTTP gets the
	// refusal as a response, and the function Refused only reads it. It is not called for
	// refusals of a program's own Marks, or of RedisScript without Redis.
	Refused func(context.Context, RefusedEvent)
}

// A RefusedEvent is a refused write.
type RefusedEvent struct {
	Store string      // of the mark: "memory", "file", "redis", "sqlite", "postgres" or "mysql"
	Err   *StaleError // the error of the call: resource, token and last token. Do not change it
}

// observers are those of the process. Observe and stop replace the slice, one at a time.
var (
	observers atomic.Pointer[[]*Events]
	observing sync.Mutex
)

// Observe calls e for the guards of this process from now on, until stop is called.
// Several observers are called in the order of their Observe. stop does not wait for
// running functions, and a call that has begun may still call one. A second call of stop
// does nothing. Both are safe for concurrent use, even within a function of Events.
//
// There is one registry for the process because guards are functions without a field for
// it. It is for a program's main function, not for a library. A guard that admits does
// not look at it.
func Observe(e Events) (stop func()) {
	change(func(all []*Events) []*Events { return append(all, &e) })
	return func() {
		change(func(all []*Events) []*Events {
			return slices.DeleteFunc(all, func(other *Events) bool { return other == &e })
		})
	}
}

// change replaces the observers by the result of f for a copy of them.
func change(f func([]*Events) []*Events) {
	observing.Lock()
	defer observing.Unlock()
	var all []*Events
	if now := observers.Load(); now != nil {
		all = slices.Clone(*now)
	}
	all = f(all)
	observers.Store(&all)
}

// refuse makes the error of a refused pass, and calls the observers.
func refuse(ctx context.Context, store, resource string, p Pass, last int64) error {
	err := &StaleError{resource, p.Token, last}
	if all := observers.Load(); all != nil {
		for _, e := range *all {
			if e.Refused != nil {
				e.Refused(ctx, RefusedEvent{store, err})
			}
		}
	}
	return err
}
