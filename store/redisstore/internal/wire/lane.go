package wire

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/internal/settling"
)

// A Lane runs calls on their callers' goroutines, which saves a goroutine and two
// switches for each call. A caller cannot leave such a call when its context is
// cancelled: the call ends with its deadline, by the client's own timeouts, or by its
// answer. So after a call without an answer, calls run on goroutines of their own, which
// their callers can leave, until one of them is answered, and for at least a second.
// Otherwise, with callers that give up sooner than the server answers, each call would
// cost a connection.
type Lane struct {
	Order

	// troubles counts the calls without an answer; over is how many of them came before a
	// call that was answered.
	troubles, over atomic.Uint64
	last           settling.Mark // set by the last of them
}

// Run runs f for the call c: on this goroutine if obeys says that f ends with the
// deadline of ctx, and if calls are not known to hang. apart tells f that it runs on
// another goroutine.
func (l *Lane) Run(ctx context.Context, c Call, obeys bool, f func(apart bool) Result) Result {
	if err := ctx.Err(); err != nil {
		return Result{Err: NotSent(err)}
	}
	if obeys && l.calm() {
		r := f(false)
		if !Answered(r.Err) {
			l.trouble()
			if end := ended(ctx); end != nil && !errors.Is(r.Err, ErrNotSent) {
				r.Err = end
			}
		}
		return r
	}
	return l.Order.Run(ctx, c, func() Result {
		troubles := l.troubles.Load()
		r := f(true)
		if Answered(r.Err) {
			l.settle(troubles)
		}
		return r
	})
}

// trouble notes that calls may hang from now on.
func (l *Lane) trouble() {
	l.last.Set()
	l.troubles.Add(1)
}

// calm reports whether calls are not known to hang and no abandoned call is under way.
func (l *Lane) calm() bool {
	return l.troubles.Load() == l.over.Load() && !l.Late() && !l.last.Recent()
}

// settle notes that this number of troubles is over.
func (l *Lane) settle(troubles uint64) {
	for {
		over := l.over.Load()
		if over >= troubles || l.over.CompareAndSwap(over, troubles) {
			return
		}
	}
}

// ended is the error of a context that has ended, or whose deadline has passed: a
// connection may notice that before the context.
func ended(ctx context.Context) error {
	if end, dated := ctx.Deadline(); dated && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}
