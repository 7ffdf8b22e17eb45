package sqlstore

import (
	"context"
	"time"
)

// Grace is how long a request goes on when its caller has left. Most are
// answered by then.
const Grace = 250 * time.Millisecond

// Outlive returns a context that ends a little later than ctx. The answer to a
// request that was sent is about to come, as a rule. Who left without it would
// release over another connection, and that could be served first: it would
// find nothing, and what the request then leaves would stay until it expires.
func Outlive(ctx context.Context, grace time.Duration) (later context.Context, stop func()) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unwatch := AfterGrace(ctx, grace, cancel)
	return later, func() { unwatch(); cancel() }
}

// AfterGrace has f called that much later than ctx ends, on a goroutine of its own.
// stop reports whether it will not be.
func AfterGrace(ctx context.Context, grace time.Duration, f func()) (stop func() bool) {
	return context.AfterFunc(ctx, func() { time.AfterFunc(grace, f) })
}
