package wire

import (
	"context"
	"sync"
)

// An Order keeps the calls of a client with several connections in order where
// it matters: what comes after a call that was abandoned, with one of the same
// locks, is not sent before that call has ended. Otherwise it might overtake it on
// another connection, and what is to clean up would find nothing yet. The zero
// Order is ready for use.
type Order struct {
	mu   sync.Mutex
	late map[string]chan struct{} // by lock, calls that were abandoned; closed when they ended
}

// Run runs f for the call c and stops waiting for it when ctx ends. f is then
// not disturbed: whether it goes on and how long is for f to say.
func (o *Order) Run(ctx context.Context, c Call, f func() Result) Result {
	if err := o.await(ctx, c.locks()); err != nil {
		return Result{Err: NotSent(err)}
	}
	if ctx.Done() == nil {
		return f()
	}
	if err := ctx.Err(); err != nil {
		return Result{Err: NotSent(err)}
	}
	done := make(chan Result, 1)
	go func() { done <- f() }()
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
		o.abandon(c.locks(), done)
		return Result{Err: ctx.Err()}
	}
}

// await returns when no abandoned call with one of these locks is under way.
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

// abandon notes a call until it has ended.
func (o *Order) abandon(locks []string, done <-chan Result) {
	ended := make(chan struct{})
	before := make([]chan struct{}, len(locks)) // sent at the same time as this one, and abandoned first
	o.mu.Lock()
	if o.late == nil {
		o.late = map[string]chan struct{}{}
	}
	for i, lock := range locks {
		before[i], o.late[lock] = o.late[lock], ended
	}
	o.mu.Unlock()
	go func() {
		<-done
		for _, b := range before {
			if b != nil && b != ended { // one lock may be named twice
				<-b
			}
		}
		o.mu.Lock()
		for _, lock := range locks {
			if o.late[lock] == ended {
				delete(o.late, lock)
			}
		}
		o.mu.Unlock()
		close(ended)
	}()
}
