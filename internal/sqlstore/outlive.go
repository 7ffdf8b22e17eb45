package sqlstore

import (
	"context"
	"time"
)

// Grace is how long a request goes on when its caller has given up. Most are answered
// by then.
const Grace = 250 * time.Millisecond

// Outlive returns a context that ends a little later than ctx. The answer to a request
// that was sent mostly comes by then. A caller that gave up without it would release
// over another connection, and the server could execute that first: it would find
// nothing, and what the request then leaves would stay until it expires.
func Outlive(ctx context.Context, grace time.Duration) (later context.Context, stop func()) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unwatch := AfterGrace(ctx, grace, cancel)
	return later, func() { unwatch(); cancel() }
}

// AfterGrace calls f that much later than ctx ends, on a goroutine of its own. stop
// reports whether it has prevented that.
func AfterGrace(ctx context.Context, grace time.Duration, f func()) (stop func() bool) {
	return context.AfterFunc(ctx, func() { time.AfterFunc(grace, f) })
}
