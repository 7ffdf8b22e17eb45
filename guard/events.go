package guard

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// Events are told what the guards of this process do: see Observe. A function may be
// nil. The goroutine that does the work calls it, with no mutex of this package
// locked, and waits for it: it should return soon and must not panic.
type Events struct {
	// Refused is called exactly once for each write that a guard of this process
	// refuses with a *StaleError: by SQL, RaisePgx, Redis, WriteFile or Memory, also
	// behind a Gate or HTTP. The context is that of the refused call, for HTTP that
	// of the request. The call returns after that: the transaction of SQL or
	// RaisePgx is still open, and Refused must not wait for its database.
	//
	// Who refuses is told, not who asked: a client of HTTP gets the refusal as a
	// response, and Refused, the function, only reads it. Nor is what a program
	// refuses in Marks of its own told, or by RedisScript without Redis.
	Refused func(context.Context, RefusedEvent)
}

// A RefusedEvent is a write that was refused.
type RefusedEvent struct {
	Store string      // where the mark is: "memory", "file", "redis", "sqlite", "postgres" or "mysql"
	Err   *StaleError // what the call returns: resource, token and last token. Do not change it
}

// observers are those of the process, replaced as a whole by Observe and stop, one
// at a time.
var (
	observers atomic.Pointer[[]*Events]
	observing sync.Mutex
)

// Observe tells e what the guards of this process do from now on, until stop is
// called. There may be several observers; they are called in the order of their
// Observe. stop does not wait for functions that are running, and those that began
// to tell may call a function once more. A second call of it does nothing. Both are
// safe for concurrent use, also within a function of Events.
//
// It is one for the whole process because guards are functions and have no field for
// it. It is for a program's main function, not for a library. A guard that admits
// does not look whether anybody observes.
func Observe(e Events) (stop func()) {
	change(func(all []*Events) []*Events { return append(all, &e) })
	return func() {
		change(func(all []*Events) []*Events {
			return slices.DeleteFunc(all, func(other *Events) bool { return other == &e })
		})
	}
}

// change replaces the observers by what f makes of a copy of them.
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

// refuse makes the error of a pass that is refused, and tells the observers.
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
