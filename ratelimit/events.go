package ratelimit

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// Events are functions that a Limiter calls. Each may be nil. The goroutine that does the
// work calls them, several at a time, with no mutex of this package locked. They must
// return soon and must not panic.
type Events struct {
	// Decided is called at the end of each call of Allow, AllowN, Allowed, Reserve,
	// ReserveWithin, Wait, WaitN and WaitWithin, with a decision or an error. It is not
	// called if the error is a *KeyError or a *LimitError, nor for Peek, Forget, Commit
	// and Cancel.
	Decided func(context.Context, DecisionEvent)

	// Degraded is called when FailOpen, FailClosed or FailLocal begins to decide without
	// asking the store, for a key or for all keys. Exactly one Restored with the same Key
	// follows when the store answers a request of the Limiter again; without further
	// requests there is none. They are called one at a time, in the order of the events,
	// by the goroutine of a request. A single late answer that was replaced causes only
	// Decided, with its Result.By.
	Degraded, Restored func(context.Context, FallbackEvent)
}

// DecisionEvent is a decision or an error.
type DecisionEvent struct {
	Store     string // the short name of the store: "redis"
	Operation string // "allow", "reserve" or "wait"

	// Result is the decision, also that of a refused Wait. With an Err only its Key and
	// its Cost are set.
	Result Result

	Took time.Duration // the time of the call, with the waiting of a Wait
	Err  error         // the store could not be asked, or the context ended; nil for a refusal
}

// FallbackEvent is the beginning or the end of decisions in place of a store that fails.
type FallbackEvent struct {
	Store string // the short name of the store: "redis"

	// Key is the key in the store, see Limiter, of the first limit of the requests that
	// failed; "" if the Limiter asks about no key.
	Key string

	By     Source        // what decides meanwhile: ByOpen, ByClosed or ByLocal
	Err    error         // Degraded: of the last failed request
	Lasted time.Duration // Restored: since Degraded
}

// Observe adds e to the Events that are called.
func Observe(e *Events) Option { return observing{events: e} }

// Logger writes to log. Warnings: another decides because the store fails; an override is
// ignored; overrides cannot be looked up. Information: the store answers again. Debug:
// each decision.
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

// watch calls Events and a logger. It is nil if there is neither.
type watch struct {
	store   string
	events  []*Events
	decides bool // one of events has Decided
	log     *slog.Logger
}

func newWatch(store limits.Store, c config) *watch {
	if c.events == nil && c.log == nil {
		return nil
	}
	w := &watch{events: c.events, log: c.log}
	if named, ok := store.(interface{ Traits() driver.Traits }); ok {
		w.store = named.Traits().Store
	}
	for _, e := range w.events {
		w.decides = w.decides || e.Decided != nil
	}
	return w
}

// begin is the present, for decided; zero if no decision is reported.
func (w *watch) begin(ctx context.Context) (began time.Time) {
	if w != nil && (w.decides || w.log != nil && w.log.Enabled(ctx, slog.LevelDebug)) {
		began = time.Now()
	}
	return began
}

// decided reports the end of a call.
func (w *watch) decided(ctx context.Context, began time.Time, operation, key string, n int64, r Result, err error) {
	switch {
	case began.IsZero(), err != nil && badInput(err):
		return
	case errors.Is(err, ErrRefused):
		err = nil
	case err != nil:
		r = Result{Key: key, Cost: n}
	}
	e := DecisionEvent{Store: w.store, Operation: operation, Result: r, Took: time.Since(began), Err: err}
	for _, to := range w.events {
		if to.Decided != nil {
			to.Decided(ctx, e)
		}
	}
	if w.log != nil && w.log.Enabled(ctx, slog.LevelDebug) {
		about := slog.Group("limit", "key", key, "cost", n, "name", r.Name, "store", w.store)
		if err != nil {
			w.log.DebugContext(ctx, "limit could not be decided", about, "operation", operation, "took", e.Took, "error", err)
		} else {
			w.log.DebugContext(ctx, "limit decided", about, "operation", operation, "took", e.Took,
				"ok", r.OK, "by", r.By.String(), "remaining", r.Remaining, "retryAfter", r.RetryAfter, "wouldRefuse", r.WouldRefuse)
		}
	}
}

func (w *watch) degraded(ctx context.Context, e FallbackEvent) {
	e.Store = w.store
	for _, to := range w.events {
		if to.Degraded != nil {
			to.Degraded(ctx, e)
		}
	}
	if w.log != nil {
		w.log.WarnContext(ctx, "limits are decided without the store, which does not answer", e.attr(), "error", e.Err)
	}
}

func (w *watch) restored(ctx context.Context, e FallbackEvent) {
	e.Store = w.store
	for _, to := range w.events {
		if to.Restored != nil {
			to.Restored(ctx, e)
		}
	}
	if w.log != nil {
		w.log.InfoContext(ctx, "limits are decided by the store again", e.attr(), "lasted", e.Lasted)
	}
}

// unheeded reports that an override is ignored because of err; with no key, that the
// overrides could not be looked up.
func (w *watch) unheeded(ctx context.Context, key string, err error) {
	switch {
	case w == nil || w.log == nil:
	case key == "":
		w.log.WarnContext(ctx, "overrides of limits cannot be looked up: those that are known go on to their end",
			slog.Group("limit", "store", w.store), "error", err)
	default:
		w.log.WarnContext(ctx, "an override is not obeyed: the limit cannot keep it", slog.Group("limit", "key", key, "store", w.store), "error", err)
	}
}

func (e FallbackEvent) attr() slog.Attr {
	return slog.Group("limit", "key", e.Key, "by", e.By.String(), "store", e.Store)
}
