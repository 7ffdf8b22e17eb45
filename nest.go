package baton

import (
	"context"
)

type nestKey struct{}

// leaseContext is a context that ends with a lease and refers to it. Contexts
// within contexts make a chain of all leases that their user holds: Go has no other
// way to say "the same caller".
type leaseContext struct {
	context.Context
	lease  *Lease
	outer  *leaseContext
	cancel context.CancelCauseFunc
	forget func() bool // stops the function that removes the context from its lease
}

// contexts are the contexts of one lease, each under itself. Under nil is the one
// that all contexts share whose parents never end.
type contexts map[*leaseContext]*leaseContext

// endless has the values of a parent that never ends, and ends with the lease.
// Value asks the lease's own context first: package context finds by a value which
// context ends.
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

// end ends all of them. cause is nil when the lease was unlocked.
func (cs contexts) end(cause error) {
	for _, c := range cs {
		if c.forget != nil {
			c.forget()
		}
		c.cancel(cause)
	}
}

// Err looks at the clock, so that it is right even before the end of the lease, or
// of a lease that it is nested in, was noticed.
func (c *leaseContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	for o := c; o != nil; o = o.outer {
		o.look()
	}
	return c.Context.Err()
}

// look ends the context if its lease has ended.
func (c *leaseContext) look() {
	_ = c.lease.Err() // notices it
	t := c.lease
	t.keeper.mu.Lock()
	over, cause := t.over(), t.ended()
	t.keeper.mu.Unlock()
	if over { // the goroutine that noticed may not have ended the contexts yet
		c.cancel(contextCause(cause))
	}
}

func (c *leaseContext) Value(key any) any {
	if key == (nestKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// enclosing finds the lease on key that ctx belongs to.
func (l *Locker) enclosing(ctx context.Context, key string) *Lease {
	c, _ := ctx.Value(nestKey{}).(*leaseContext)
	for ; c != nil; c = c.outer {
		if c.lease.keeper.locker == l && c.lease.Key() == key {
			return c.lease
		}
	}
	return nil
}

// nest answers a request for the key of this lease that comes with its context.
// Both results are nil if the lease has ended.
func (t *Lease) nest(a *ask) (*Lease, error) {
	_ = t.Err() // ends it if its time is up
	k := t.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if t.over() {
		return nil, nil
	}
	if err := k.acq.Nest(a.reentrant, a.weight, a.capacity); err != nil {
		return nil, fail("lock", k.key(), err)
	}
	return &Lease{keeper: k, token: t.token, since: t.since, outer: t}, nil
}
