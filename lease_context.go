package baton

import (
	"context"
	"errors"
)

// Context returns a copy of parent that ends when the lease does. If the lease was lost,
// context.Cause returns the *LostError. The context's Err looks at the clock, as
// Lease.Err does. A Lock call with this context knows that it is nested in the lease.
//
// The lease keeps each context until parent or the lease ends. All contexts of parents
// that never end, such as context.Background(), share one entry.
func (l *Lease) Context(parent context.Context) context.Context {
	t := l.root()
	c := &leaseContext{lease: t}
	c.outer, _ = parent.Value(nestKey{}).(*leaseContext)

	t.keeper.mu.Lock()
	defer t.keeper.mu.Unlock()
	err := l.ended()
	if err == nil && t.contexts == nil {
		t.contexts = make(contexts)
	}
	if err == nil && parent.Done() == nil {
		shared := t.contexts[nil]
		if shared == nil {
			shared = &leaseContext{}
			shared.Context, shared.cancel = context.WithCancelCause(context.Background())
			t.contexts[nil] = shared
		}
		c.Context, c.cancel = &endless{shared.Context, parent}, shared.cancel
		return c
	}
	c.Context, c.cancel = context.WithCancelCause(parent)
	if err != nil {
		c.cancel(contextCause(err))
		return c
	}
	t.contexts[c] = c
	c.forget = context.AfterFunc(c.Context, func() { // a lease may outlive many contexts
		t.keeper.mu.Lock()
		delete(t.contexts, c)
		t.keeper.mu.Unlock()
	})
	return c
}

type nestKey struct{}

// leaseContext is a context that ends with a lease and refers to it. Nested contexts form
// a chain of the leases that their caller holds; a caller is "the same" if its chain has
// the lease.
type leaseContext struct {
	context.Context
	lease  *Lease
	outer  *leaseContext
	cancel context.CancelCauseFunc
	forget func() bool
}

// contexts are the contexts of one lease, each keyed by itself. The key nil is the one
// shared by all parents that never end.
type contexts map[*leaseContext]*leaseContext

// endless has the values of a parent that never ends, and ends with the lease.
// Value asks the lease's own context first, because package context finds the
// cancellable parent by a value.
type endless struct {
	context.Context
	parent context.Context
}

func (e *endless) Value(key any) any {
	if v := e.Context.Value(key); v != nil {
		return v
	}
	return e.parent.Value(key)
}

// end ends all contexts. cause is nil if the lease was unlocked.
func (cs contexts) end(cause error) {
	for _, c := range cs {
		if c.forget != nil {
			c.forget()
		}
		c.cancel(cause)
	}
}

// Err looks at the clock: the end of the lease, or of its outer lease, may not have been
// noticed yet.
func (c *leaseContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	for o := c; o != nil; o = o.outer {
		o.look()
	}
	return c.Context.Err()
}

func (c *leaseContext) look() {
	_ = c.lease.Err() // notices an end
	t := c.lease
	t.keeper.mu.Lock()
	over, cause := t.over(), t.ended()
	t.keeper.mu.Unlock()
	if over { // the goroutine that noticed the end may not have ended the contexts yet
		c.cancel(contextCause(cause))
	}
}

func (c *leaseContext) Value(key any) any {
	if key == (nestKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// contextCause is what context.Cause returns after the end of a lease.
func contextCause(err error) error {
	var lost *LostError
	if errors.As(err, &lost) && lost.Cause == Released {
		return nil
	}
	return err
}
