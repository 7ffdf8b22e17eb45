package election

import (
	"context"
	"errors"
	"time"
)

// Events are functions that a Candidate calls. Any function may be nil. The goroutines
// that do the work call them, with no mutex of this package locked. They must return soon
// and must not panic.
//
// Every Elected is followed by exactly one Ended, even if lead panics or calls
// runtime.Goexit, before the next Elected of the same Run. Calls of Late come between the
// two. A leadership that was over before lead could be called has neither.
type Events struct {
	// Elected is called before lead is called, with the context that lead gets. If
	// the leadership ends meanwhile, lead is not called.
	Elected func(context.Context, LeadershipEvent)

	// Late is called when lead, or Elected, still runs after lead's context ended: after
	// a second, and then in growing periods of at most a minute, on a goroutine of its
	// own. If the leadership was lost there may be another leader. Otherwise no other
	// candidate can be elected until lead returns. The context has the values of Run's
	// context and does not end.
	Late func(context.Context, LeadershipEvent)

	// Ended is called when lead has returned and the leadership was given up. Another
	// candidate, even one of this process, may be elected just before it. The context has
	// the values of Run's context and does not end.
	Ended func(context.Context, LeadershipEvent)

	// Failed is called, with Run's context, when the store was out of reach for about a
	// TTL. The candidate tries again. It is not called for an error that Run returns.
	Failed func(context.Context, LeadershipEvent)
}

// A LeadershipEvent is one event. Fields that do not belong to it are zero.
type LeadershipEvent struct {
	Store string // always: the short name of the store, such as "redis"
	Name  string // always: of the election

	Token      int64       // Elected, Late, Ended: the fencing token
	Leadership *Leadership // Elected, Late, Ended

	// Led, of Late and Ended, is the time from the election to the end of lead's context,
	// or to the return of lead if that came first. Since, of Late and Ended, is how long
	// lead ran, or has run, after that: 0 if it returned first. This process measures
	// both; its clock may not count suspension of the machine.
	Led, Since time.Duration

	// Cause, of Late and Ended, is why the leadership was over before lead returned, see
	// Leadership.Err: a *baton.LostError, ErrResigned or the cause of the end of Run's
	// context. It is nil if lead returned first.
	Cause error

	// Err, of Ended, is the result of lead, or ErrNoReturn. Err, of Failed, is the error
	// of the store.
	Err error
}

// ErrNoReturn is the Err of Ended if lead panicked or called runtime.Goexit. Run does not
// return then.
var ErrNoReturn = errors.New("election: lead panicked, or called runtime.Goexit")

const (
	// lateAfter is how long lead may run after the end of its context before the first
	// report.
	lateAfter = time.Second

	// lateEvery is the longest time between two reports.
	lateEvery = time.Minute
)

// A watch reports a lead that runs after the end of its context, and measures how long.
type watch struct {
	c *Candidate
	l *Leadership

	began time.Time
	ended time.Time // when lead's context ended; used by the goroutine until stopped is closed

	done, stopped chan struct{}
}

func (c *Candidate) watch(ctx context.Context, l *Leadership) *watch {
	w := &watch{c: c, l: l, began: time.Now(), done: make(chan struct{}), stopped: make(chan struct{})}
	go w.run(context.WithoutCancel(ctx))
	return w
}

func (w *watch) run(ctx context.Context) {
	defer close(w.stopped)
	select {
	case <-w.l.ctx.Done():
	case <-w.done:
		return
	}
	w.ended = time.Now()
	for pause := lateAfter; ; pause = min(2*pause, lateEvery) {
		select {
		case <-time.After(pause):
		case <-w.done:
			return
		}
		e := w.event(time.Now(), w.l.Err(), nil)
		w.c.logger().Error("leader goes on after its context has ended", w.c.attr(w.l), "since", e.Since, "cause", e.Cause)
		if f := w.c.events().Late; f != nil {
			f(ctx, e)
		}
	}
}

// event is the event of Late and Ended; of Ended after the goroutine has ended. now is
// when lead returned, if it has.
func (w *watch) event(now time.Time, cause, err error) LeadershipEvent {
	e := w.c.event(w.l)
	e.Cause, e.Err = cause, err
	if w.ended.IsZero() {
		e.Led = now.Sub(w.began)
	} else {
		e.Led, e.Since = w.ended.Sub(w.began), now.Sub(w.ended)
	}
	return e
}

// event has the common fields. l is nil for Failed.
func (c *Candidate) event(l *Leadership) LeadershipEvent {
	e := LeadershipEvent{Store: c.Locks.Traits().Store, Name: c.Name, Leadership: l}
	if l != nil {
		e.Token = l.Token()
	}
	return e
}
