package batonotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
)

// SpanConfig is the settings of Spans. The zero SpanConfig is ready to use.
type SpanConfig struct {
	// Keys adds the attribute baton.key with the key of the lock or the operation, the
	// name of the election or the resource of the guard, and the texts of errors, which
	// contain keys. Keys often name people or orders.
	Keys bool
}

// Spans returns Events that make a span at the end of each of these, as a child of the
// span of the call's context:
//
//	lock.wait      a call for a lock, until it had it or failed
//	lock.hold      a lock, until it was released or lost
//	limit.wait     a call of Limiter.Wait
//	once.run       an operation, until its outcome was recorded
//	election.lead  a leadership
//
// The events limit.decision, limit.degraded, limit.restored, once.replayed and
// guard.refused become events of that span. A call without a sampled span in its context
// makes none. Neither do renewals and requests to stores.
//
// The span of a loss, or of a failure of the store, has the status Error.
func Spans(tp trace.TracerProvider, cfg SpanConfig) metrics.Events {
	s := spans{tp.Tracer(scope), cfg.Keys}
	return metrics.Events{
		Locks:     &baton.Events{Acquired: sampled(s.acquired), Failed: sampled(s.failed), Lost: sampled(s.held), Released: sampled(s.held)},
		Limits:    &ratelimit.Events{Decided: sampled(s.decided), Degraded: sampled(s.degraded), Restored: sampled(s.restored)},
		Once:      &once.Events{Replayed: sampled(s.replayed), Finished: sampled(s.finished), Superseded: sampled(s.superseded)},
		Elections: &election.Events{Ended: sampled(s.led)},
		Guard:     guard.Events{Refused: sampled(s.refused)},
	}
}

// sampled calls f only if the call has a sampled span.
func sampled[T any](f func(context.Context, T)) func(context.Context, T) {
	return func(ctx context.Context, e T) {
		if trace.SpanContextFromContext(ctx).IsSampled() {
			f(ctx, e)
		}
	}
}

type spans struct {
	tracer trace.Tracer
	keys   bool
}

// about are the attributes of an event about a key.
func (s spans) about(store, key string, more ...attribute.KeyValue) []attribute.KeyValue {
	all := append(more, attribute.String("baton.store", store))
	if s.keys {
		all = append(all, attribute.String("baton.key", key))
	}
	return all
}

// span makes a span that ends now. It has the status Error if class is that of a failure.
func (s spans) span(ctx context.Context, name string, took time.Duration, err error, class string, all []attribute.KeyValue) {
	now := time.Now()
	if class != "" {
		all = append(all, attribute.String("error.type", class))
	}
	_, span := s.tracer.Start(ctx, name, trace.WithTimestamp(now.Add(-took)), trace.WithAttributes(all...))
	switch class {
	case "", observe.Held, observe.Canceled, "detached":
	default:
		span.SetStatus(codes.Error, s.text(err, class))
	}
	span.End(trace.WithTimestamp(now))
}

func (s spans) text(err error, class string) string {
	if s.keys && err != nil {
		return err.Error()
	}
	return class
}

func (s spans) event(ctx context.Context, name string, all []attribute.KeyValue) {
	trace.SpanFromContext(ctx).AddEvent(name, trace.WithAttributes(all...))
}

func token(t int64) attribute.KeyValue { return attribute.Int64("baton.token", t) }

func (s spans) acquired(ctx context.Context, e baton.LockEvent) {
	s.span(ctx, "lock.wait", e.Waited, nil, "", s.about(e.Store, e.Key, token(e.Token), mode(e)))
}

func (s spans) failed(ctx context.Context, e baton.LockEvent) {
	s.span(ctx, "lock.wait", e.Waited, e.Err, metrics.ErrorClass(e.Err), s.about(e.Store, e.Key, mode(e)))
}

// held makes the span of a lost or released lock.
func (s spans) held(ctx context.Context, e baton.LockEvent) {
	s.span(ctx, "lock.hold", e.Held, e.Err, metrics.ErrorClass(e.Err), s.about(e.Store, e.Key, token(e.Token), mode(e)))
}

func mode(e baton.LockEvent) attribute.KeyValue {
	return attribute.String("baton.mode", metrics.Mode(e))
}

func (s spans) decided(ctx context.Context, e ratelimit.DecisionEvent) {
	all := s.about(e.Store, e.Result.Key, attribute.String("baton.operation", e.Operation), attribute.String("baton.by", e.Result.By.String()))
	if e.Result.Name != "" {
		all = append(all, attribute.String("baton.limit", e.Result.Name))
	}
	if e.Err == nil {
		all = append(all, attribute.Bool("baton.allowed", e.Result.OK), attribute.Int64("baton.remaining", e.Result.Remaining))
	}
	class := metrics.ErrorClass(e.Err)
	if e.Operation == "wait" {
		s.span(ctx, "limit.wait", e.Took, e.Err, class, all)
		return
	}
	if class != "" {
		all = append(all, attribute.String("error.type", class))
	}
	s.event(ctx, "limit.decision", all)
}

func (s spans) degraded(ctx context.Context, e ratelimit.FallbackEvent) {
	s.event(ctx, "limit.degraded", s.fallback(e, attribute.String("error.type", metrics.ErrorClass(e.Err))))
}

func (s spans) restored(ctx context.Context, e ratelimit.FallbackEvent) {
	s.event(ctx, "limit.restored", s.fallback(e, attribute.Float64("baton.lasted", e.Lasted.Seconds())))
}

func (s spans) fallback(e ratelimit.FallbackEvent, more attribute.KeyValue) []attribute.KeyValue {
	return s.about(e.Store, e.Key, attribute.String("baton.by", e.By.String()), more)
}

func (s spans) replayed(ctx context.Context, e once.OperationEvent) {
	s.event(ctx, "once.replayed", s.operation(e))
}

func (s spans) finished(ctx context.Context, e once.OperationEvent) {
	class := metrics.ErrorClass(e.Err)
	if e.Failed && e.Err != nil && class == observe.Refused {
		class = "failed" // an error of the function's own
	}
	s.span(ctx, "once.run", e.Took, e.Err, class, s.operation(e, attribute.Bool("baton.recorded", e.Recorded)))
}

func (s spans) superseded(ctx context.Context, e once.OperationEvent) {
	s.span(ctx, "once.run", e.Took, e.Err, "superseded", s.operation(e, attribute.Bool("baton.recorded", false)))
}

func (s spans) operation(e once.OperationEvent, more ...attribute.KeyValue) []attribute.KeyValue {
	return s.about(e.Store, e.Key, append(more, token(e.Token), attribute.Int64("baton.attempts", e.Attempts))...)
}

func (s spans) led(ctx context.Context, e election.LeadershipEvent) {
	class := ""
	if errors.Is(e.Cause, baton.ErrLost) { // a candidate may resign, and a program may end
		class = metrics.ErrorClass(e.Cause)
	}
	s.span(ctx, "election.lead", e.Led+e.Since, e.Cause, class, s.about(e.Store, e.Name, token(e.Token)))
}

func (s spans) refused(ctx context.Context, e guard.RefusedEvent) {
	s.event(ctx, "guard.refused", s.about(e.Store, e.Err.Resource, token(e.Err.Token), attribute.Int64("baton.last_token", e.Err.Last)))
}
