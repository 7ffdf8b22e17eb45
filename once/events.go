package once

import (
	"context"
	"time"
)

// Events is told what happens to the operations of a Runner. Any function may be
// nil; a nil Events and a nil function cost nothing. The goroutine that called Do or
// TryDo calls them, with that call's context. They should return soon and must not
// panic: the next attempt waits meanwhile.
//
// A call tells either nothing, or Replayed, or Began and then Finished or
// Superseded. It tells nothing if it fails before its function ran: its input is
// bad, another attempt is under way, its context ends while it waits, the key
// belongs to another request, the lease is lost too early, or the store is out of
// reach. What happens to the lock of the operation, Config.Lock can tell.
//
// Every Began is followed by exactly one Finished or Superseded, also if the
// function panics, so that Began less Finished and Superseded is what is under way
// in this process. A process that crashes tells no more. Within a process an
// attempt's Finished or Superseded comes before the next attempt's Began, unless
// its lease was lost.
type Events struct {
	// Began is called when the store has noted the attempt, before its function
	// runs.
	Began func(context.Context, OperationEvent)

	// Replayed is called when a call gets what was recorded, at once or after it
	// has waited for the attempt that recorded it. Its function does not run.
	Replayed func(context.Context, OperationEvent)

	// Finished is called when the attempt is over and, as far as is known, no other
	// has followed it. OperationEvent.Recorded tells whether its outcome is recorded.
	// It is not if the function returned an error that is not final or did not
	// return, if its result is too long, or if the store stayed out of reach.
	Finished func(context.Context, OperationEvent)

	// Superseded is called when the function has returned an outcome and the store
	// refused it: another attempt had begun, or the record was forgotten.
	Superseded func(context.Context, OperationEvent)
}

// OperationEvent is what an Events function is told. Fields that do not belong to
// the event are zero.
type OperationEvent struct {
	Store string // the short name of the store: "redis"
	Key   string // of the operation

	// Token is that of the attempt; for Replayed, of the one that was recorded.
	Token int64

	// Attempts is the number of attempts that had begun, including that one.
	Attempts int64

	// Waited, of Began and Replayed, is the time since the call.
	Waited time.Duration

	// Took, of Finished and Superseded, is the time since Began, with that for
	// recording the outcome.
	Took time.Duration

	// Recorded, of Finished: the outcome is recorded, and later callers get it.
	Recorded bool

	// Failed, of Replayed, Finished and Superseded: the function has failed, for
	// good or not, or did not return.
	Failed bool

	// Err is what the call returns, nil for a success. If the function did not
	// return, it is an error that says so.
	Err error
}
