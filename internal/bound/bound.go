// Package bound limits how long a call may take: a call to a store, without a new context
// for each; and a call that ignores contexts.
package bound

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
)

// Contexts makes contexts that limit the time of a call. It reuses the last one for a
// while, for later calls with the same caller's context: a new context for each call
// costs up to a tenth of a call to a fast store. The zero Contexts is ready to use, and
// safe for concurrent use.
type Contexts struct{ last atomic.Pointer[Context] }

// Within returns a copy of the caller's context that ends after limit, or up to a quarter
// later. The caller releases it after the call.
func (b *Contexts) Within(caller context.Context, now time.Time, limit time.Duration) *Context {
	if c := b.last.Load(); c != nil && c.limit == limit && now.Before(c.until) && same(c.Context, caller) && c.done == caller.Done() && c.enter() {
		return c
	}
	c := &Context{Context: caller, done: caller.Done(), limit: limit, until: now.Add(limit / 4), end: time.Now().Add(limit + limit/4)}
	c.users.Store(2) // this call, and b.last
	if old := b.last.Swap(c); old != nil {
		old.Release()
	}
	return c
}

// ForOneTry reports whether the deadline of ctx comes from Within and not from its
// caller. Such a deadline bounds one try, which may end somewhat later.
func ForOneTry(ctx context.Context) bool {
	c, is := ctx.(*Context)
	if !is {
		return false
	}
	_, dated := c.Context.Deadline()
	return !dated
}

// enter adds a user, unless the last one has left.
func (c *Context) enter() bool {
	for n := c.users.Load(); n > 0; n = c.users.Load() {
		if c.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// same reports whether two contexts are one. It compares only pointers: other values may
// panic.
func same(a, b context.Context) bool {
	if a == context.Background() {
		return b == context.Background()
	}
	return reflect.TypeOf(a).Kind() == reflect.Pointer && reflect.TypeOf(b).Kind() == reflect.Pointer && a == b
}

// A Context is a caller's context with an end of its own. It makes the timer for that
// only when Done is called: most calls to a store return before.
type Context struct {
	context.Context                 // the caller's
	done            <-chan struct{} // the caller's: frameworks reuse a context object for several requests, so the pointer alone does not identify the call
	limit           time.Duration
	end             time.Time // of the call
	until           time.Time // then Within makes another one
	users           atomic.Int32

	once   sync.Once
	armed  atomic.Pointer[context.Context] // set by the first Done
	cancel context.CancelFunc
}

// Release removes a user. The last one stops the timer.
func (c *Context) Release() {
	if c.users.Add(-1) == 0 && c.armed.Load() != nil {
		c.cancel()
	}
}

func (c *Context) arm() context.Context {
	c.once.Do(func() {
		var inner context.Context
		inner, c.cancel = context.WithDeadline(c.Context, c.end)
		c.armed.Store(&inner)
	})
	return *c.armed.Load()
}

func (c *Context) Done() <-chan struct{} { return c.arm().Done() }

func (c *Context) Deadline() (time.Time, bool) {
	if d, ok := c.Context.Deadline(); ok && d.Before(c.end) {
		return d, true
	}
	return c.end, true
}

func (c *Context) Err() error {
	if inner := c.armed.Load(); inner != nil {
		return (*inner).Err()
	}
	if err := c.Context.Err(); err != nil {
		return err
	}
	if !time.Now().Before(c.end) {
		return context.DeadlineExceeded
	}
	return nil
}

// Value asks the context that has the timer, if any, so that derived contexts find their
// parent.
func (c *Context) Value(key any) any {
	if inner := c.armed.Load(); inner != nil {
		return (*inner).Value(key)
	}
	return c.Context.Value(key)
}
