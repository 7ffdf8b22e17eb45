package ratelimit

import (
	"context"
	"log/slog"
	"time"
)

// Events are functions that a Limiter tells what happens. Each may be nil. The
// goroutine that does the work calls them, several at a time, with no mutex of this
// package locked. They should return soon and must not panic.
type Events struct {
	// Decided is called once for each call of Allow, AllowN, Allowed, Reserve,
	// ReserveWithin, Wait, WaitN and WaitWithin, when it ends: with a decision, or
	// with an error. It is not called for a call that was refused for bad input,
	// with a *KeyError or a *LimitError, nor for Peek, Forget, Commit and Cancel.
	Decided func(context.Context, DecisionEvent)

	// Degraded is called when FailOpen, FailClosed or FailLocal begins to decide
	// without asking the store, for a key or for all. Exactly one Restored with the
	// same Key follows when the store answers again. A request that was decided in
	// place of the store before that, because the answer to it was late, is told by
	// Decided only: by its Result.By.
	Degraded, Restored func(context.Context, FallbackEvent)
}

// DecisionEvent is a decision, or the failure to get one.
type DecisionEvent struct {
	Store     string // the short name of the store: "redis"
	Operation string // "allow", "reserve" or "wait"

	// Result is the decision, also of a Wait that was refused. With an Err only its
	// Key and its Cost are set.
	Result Result

	Took time.Duration // the call, with the time that a Wait has waited
	Err  error         // the store could not be asked, or the context ended; nil for a refusal
}

// FallbackEvent is the begin, or the end, of decisions in place of a store that
// fails.
type FallbackEvent struct {
	Store string // the short name of the store: "redis"

	// Key is the key in the store, as Limiter describes it, of the first limit of
	// the requests that failed: "" if the Limiter does not ask about any key.
	Key string

	By     Source        // what decides meanwhile: ByOpen, ByClosed or ByLocal
	Err    error         // of the last request that failed
	Lasted time.Duration // Restored: since Degraded
}

// Observe tells e what happens. With several of these options each is told.
func Observe(e *Events) Option { return observing{events: e} }

// Logger writes what happens to log: a store that fails, so that something else
// decides, as a warning; its return as information; each decision at the debug
// level.
func Logger(log *slog.Logger) Option { return observing{log: log} }

type observing struct {
	events *Events
	log    *slog.Logger
}

func (o observing) option(c *config) {
	if o.events != nil {
		c.events = append(c.events, o.events)
	}
	if o.log != nil {
		c.log = o.log
	}
}
