package sqlstore

import (
	"context"
	"time"
)

// Grace is how long a request continues after its caller has given up. Most requests are
// answered by then.
const Grace = 250 * time.Millisecond

// Outlive returns a context that ends grace after ctx, so that most sent requests are
// still answered. Otherwise the caller would release over another connection. The server
// could execute that first, find nothing, and the claim of the request would stay until
// it expires.
func Outlive(ctx context.Context, grace time.Duration) (later context.Context, stop func()) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unwatch := AfterGrace(ctx, grace, cancel)
	return later, func() { unwatch(); cancel() }
}

// AfterGrace calls f at grace after the end of ctx, on a goroutine of its own. stop
// reports whether it has prevented that.
func AfterGrace(ctx context.Context, grace time.Duration, f func()) (stop func() bool) {
	return context.AfterFunc(ctx, func() { time.AfterFunc(grace, f) })
}
