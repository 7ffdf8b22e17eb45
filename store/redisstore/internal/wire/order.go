package wire

import (
	"context"
	"sync"
	"sync/atomic"
)

// An Order delays calls of a client with several connections behind abandoned calls for
// the same locks. Otherwise a clean-up could overtake an abandoned call on another
// connection, and would find nothing yet. The zero Order is ready for use.
type Order struct {
	mu    sync.Mutex
	late  map[string]chan struct{} // abandoned calls by lock; closed when they ended
	known atomic.Int32             // len(late)
}

// Late reports whether an abandoned call may be under way.
func (o *Order) Late() bool { return o.known.Load() > 0 }

// Run runs f for the call c and stops waiting for it when ctx ends. f continues then, as
// long as it likes.
func (o *Order) Run(ctx context.Context, c Call, f func() Result) Result {
	if !c.Loose {
		if err := o.await(ctx, c.locks()); err != nil {
			return Result{Err: NotSent(err)}
		}
	}
	if err := ctx.Err(); err != nil {
		return Result{Err: NotSent(err)}
	}
	if ctx.Done() == nil {
		return f()
	}
	var r Result
	done := make(chan struct{})
	go func() {
		defer close(done)
		r = f()
	}()
	select {
	case <-done:
		return r
	case <-ctx.Done():
		o.Abandon(c, done)
		return Result{Err: ctx.Err()}
	}
}

// Obey runs f, which answers n calls, and stops waiting for it when ctx ends. f then ends
// by the client's own timeouts.
func Obey(ctx context.Context, n int, f func(context.Context) []Result) []Result {
	fail := func(err error) []Result {
		out := make([]Result, n)
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	if err := ctx.Err(); err != nil {
		return fail(NotSent(err))
	}
	if ctx.Done() == nil {
		return f(ctx)
	}
	done := make(chan []Result, 1)
	go func() { done <- f(ctx) }()
	select {
	case out := <-done:
		return out
	case <-ctx.Done():
		return fail(ctx.Err())
	}
}

// await returns when no abandoned call for one of these locks is under way.
func (o *Order) await(ctx context.Context, locks []string) error {
	for {
		var ended chan struct{}
		o.mu.Lock()
		for i := 0; i < len(locks) && ended == nil; i++ {
			ended = o.late[locks[i]]
		}
		o.mu.Unlock()
		if ended == nil {
			return nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Abandon notes an abandoned call until done is closed, at its end.
func (o *Order) Abandon(c Call, done <-chan struct{}) {
	if c.Loose {
		return
	}
	locks := c.locks()
	ended := make(chan struct{})
	before := make([]chan struct{}, len(locks)) // abandoned calls that were sent before or with this one
	o.mu.Lock()
	if o.late == nil {
		o.late = map[string]chan struct{}{}
	}
	for i, lock := range locks {
		before[i], o.late[lock] = o.late[lock], ended
	}
	o.known.Store(int32(len(o.late)))
	o.mu.Unlock()
	go func() {
		<-done
		for _, b := range before {
			if b != nil && b != ended { // c may name one lock twice
				<-b
			}
		}
		o.mu.Lock()
		for _, lock := range locks {
			if o.late[lock] == ended {
				delete(o.late, lock)
			}
		}
		o.known.Store(int32(len(o.late)))
		o.mu.Unlock()
		close(ended)
	}()
}
