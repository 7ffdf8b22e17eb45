package pgstore

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
)

// tracer counts the queries that are sent on the goroutine of theCaller, and others.
type tracer struct{ here, elsewhere int }

func (r *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	r.count()
	return ctx
}
func (*tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (r *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	r.count()
	return ctx
}
func (*tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (r *tracer) count() {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, ".theCaller") {
			r.here++
			return
		}
		if !more {
			r.elsewhere++
			return
		}
	}
}

//go:noinline
func theCaller(f func()) { f() }

// When nothing else is under way a request runs on its caller's goroutine, whatever its
// context: handing it to another one takes a large part of the time that it needs.
func TestRequestsRunOnTheirCallersGoroutine(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	var r tracer
	s := openOn(t, newPool(t, url, likeOpen, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &r }), func(o *options) { o.sweep = time.Hour })
	c := hold(t, s, writer("k"))
	for name, f := range map[string]func(){
		"renew":   func() { mustBe(t, s, c, driver.Held) },
		"limit":   func() { mustTake(t, s, take(window(5), 1, "k")) },
		"look":    func() { mustTake(t, s, take(window(5), 0, "k")) },
		"acquire": func() { release(t, s, hold(t, s, writer("another"))) },
	} {
		f() // now connections and statements are there
		r = tracer{}
		theCaller(f)
		if r.here == 0 || r.elsewhere > 0 {
			t.Errorf("%s: %d queries by the caller, %d on other goroutines", name, r.here, r.elsewhere)
		}
	}
}
