package wire

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/internal/settling"
)

// A Lane runs calls on their callers' goroutines, which spares a goroutine and two
// switches for each call. A caller cannot leave a call there when its context is
// cancelled: the call ends with its deadline, by the client's own timeouts, or by its
// answer. So after a call that was not answered the calls run on goroutines of their
// own, which their callers leave when they wish, until one of them is answered, and for
// at least a second: where callers give up sooner than the server answers, each call here
// would cost a connection.
//
// The zero Lane is ready for use.
type Lane struct {
	Order

	// troubles counts the calls that were not answered; over is how many of these came
	// before a call that was answered.
	troubles, over atomic.Uint64
	last           settling.Mark // of the last one
}

// Run runs f for the call c: here if obeys says that f ends with the deadline of ctx, and
// if nothing is known that may make it hang. It tells f whether it runs apart from its
// caller.
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

// calm reports whether nothing is known that may make a call hang, and no call that
// was abandoned may be under way.
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
// connection may notice that first.
func ended(ctx context.Context) error {
	if end, dated := ctx.Deadline(); dated && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}
