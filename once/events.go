package once

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/batonhq/baton/driver"
)

// Events are functions that a Runner calls when something happens to its operations, for
// metrics, traces and tests. Any of them may be nil and then costs nothing. The goroutine
// that called Do or TryDo calls them, several at a time, with the context of that call.
// They must return soon and must not panic: others wait for the operation meanwhile.
//
// A call causes either Replayed; or Began and then Finished or Superseded; or GaveUp.
// With an illegal key it causes none. The events of the lock, whose key is LockPrefix and
// the operation's, are those of Config.Lock.
//
// Every Began is followed by exactly one Finished or Superseded, even if the function
// panics: the number under way in this process is Began less those two. In one process,
// the Finished or Superseded of an attempt comes before the Began of the next one, unless
// its lease was lost.
type Events struct {
	// Began is called when the store has noted the attempt, before its function runs.
	Began func(context.Context, OperationEvent)

	// Replayed is called when a call gets a recorded outcome, at once or after waiting
	// for the attempt that recorded it. Its function does not run.
	Replayed func(context.Context, OperationEvent)

	// Finished is called when the attempt is over and was not refused by the store.
	// OperationEvent.Recorded tells whether its outcome was recorded. It was not if the
	// function returned an error that is not final or did not return, or if its result is
	// too long. If the store stayed out of reach this is unknown, and Recorded is false.
	Finished func(context.Context, OperationEvent)

	// Superseded is called when the function has returned an outcome and the store
	// refused it: another attempt had begun, or the record was forgotten.
	Superseded func(context.Context, OperationEvent)

	// GaveUp is called when a call ends without a result, and its function did not run:
	// TryDo finds another attempt under way, the context ends before the call's turn, the
	// key belongs to another request, the lease is lost before the function begins, or
	// the store is out of reach.
	GaveUp func(context.Context, OperationEvent)
}

// An OperationEvent is one event of one operation. Fields that do not belong to it are
// zero. Fields may be added.
type OperationEvent struct {
	Store string // the short name of the store: "redis"
	Key   string // of the operation

	// Token is that of the attempt; for Replayed, of the recorded one; for GaveUp 0.
	Token int64

	// Attempts is the number of attempts that had begun, including this one; for GaveUp
	// 0.
	Attempts int64

	// Waited, of Began, Replayed and GaveUp, is the time since the call.
	Waited time.Duration

	// Took, of Finished and Superseded, is the time since Began, with that for recording
	// the outcome.
	Took time.Duration

	// Recorded, of Finished: the outcome is recorded, and later callers get it.
	Recorded bool

	// Failed, of Replayed, Finished and Superseded: the function has failed, finally or
	// not, or did not return.
	Failed bool

	// Err is the error of the call, nil for a success. If the function did not return,
	// Err says so.
	Err error
}

// errNoReturn is the error of an attempt whose function panicked or ended its goroutine.
var errNoReturn = errors.New("once: the function did not return: it panicked or ended its goroutine")

// observed reports one call to the Events and the Logger. Its times are zero if no event
// has them.
type observed struct {
	runner        *Runner
	ctx           context.Context
	key           string
	call, attempt time.Time
	told          bool // the outcome of the call, or the beginning of its attempt, was reported
}

// asked starts the time.
func (o *observed) asked() {
	if e := o.runner.events; e.Began != nil || e.Replayed != nil || e.GaveUp != nil {
		o.call = time.Now()
	}
}

// replayed reports that the call gets a recorded outcome, and returns that.
func (o *observed) replayed(rec driver.Record) ([]byte, error) {
	o.told = true
	result, err := outcome(rec)
	if f := o.runner.events.Replayed; f != nil {
		f(o.ctx, OperationEvent{
			Store: o.runner.store, Key: o.key, Token: rec.Token, Attempts: rec.Attempts,
			Waited: time.Since(o.call), Failed: rec.Failed, Err: err,
		})
	}
	o.debug("operation replayed", rec.Token, rec.Attempts, err)
	return result, err
}

func (o *observed) begins(a Attempt) {
	o.told = true
	e := o.runner.events
	if e.Finished != nil || e.Superseded != nil {
		o.attempt = time.Now()
	}
	if e.Began != nil {
		e.Began(o.ctx, OperationEvent{Store: o.runner.store, Key: o.key, Token: a.Token, Attempts: a.Attempts, Waited: time.Since(o.call)})
	}
	o.debug("operation began", a.Token, a.Attempts, nil)
}

func (o *observed) ends(a Attempt, end OperationEvent, unrecorded *UnrecordedError) {
	f := o.runner.events.Finished
	superseded := unrecorded != nil && errors.Is(unrecorded.Err, driver.ErrSuperseded)
	if superseded {
		f = o.runner.events.Superseded
	}
	if f != nil {
		end.Store, end.Key, end.Token, end.Attempts = o.runner.store, o.key, a.Token, a.Attempts
		end.Took = time.Since(o.attempt)
		f(o.ctx, end)
	}
	if unrecorded != nil {
		o.runner.log.ErrorContext(o.ctx, "outcome not recorded", o.operation(a.Token, a.Attempts), "superseded", superseded, "error", end.Err)
		return
	}
	o.debug("operation ended", a.Token, a.Attempts, end.Err)
}

// gaveUp reports that the call ends with err without a run of its function.
func (o *observed) gaveUp(err error) {
	if f := o.runner.events.GaveUp; f != nil {
		f(o.ctx, OperationEvent{Store: o.runner.store, Key: o.key, Waited: time.Since(o.call), Err: err})
	}
	o.debug("operation given up", 0, 0, err)
}

func (o *observed) debug(message string, token, attempts int64, err error) {
	if o.runner.log.Enabled(o.ctx, slog.LevelDebug) {
		o.runner.log.DebugContext(o.ctx, message, o.operation(token, attempts), "error", err)
	}
}

func (o *observed) operation(token, attempts int64) slog.Attr {
	return slog.Group("operation", "key", o.key, "token", token, "attempts", attempts, "owner", o.runner.owner, "store", o.runner.store)
}
