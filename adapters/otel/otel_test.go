package batonotel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	batonotel "github.com/batonhq/baton/adapters/otel"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// Instruments have the names, units and attributes of the table, and an empty label is
// none.
func TestMetrics(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	mp := metric.NewMeterProvider(metric.WithReader(reader))
	events, err := batonotel.Metrics(mp, metrics.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	e := baton.LockEvent{Store: "redis", Key: "order/7", Waited: 20 * time.Millisecond, Held: 2 * time.Second}
	events.Locks.Acquired(ctx, e)
	events.Locks.Acquired(ctx, e)
	events.Locks.Released(ctx, e)
	e.Err = driver.ErrUnavailable
	events.Locks.Failed(ctx, e)
	e.Since = time.Now().Add(-time.Hour)
	events.Locks.Waiting(ctx, e)

	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		t.Fatal(err)
	}
	var got []string
	add := func(m metricdata.Metrics, set attribute.Set, value any) {
		got = append(got, fmt.Sprintf("%s [%s] %s %v", m.Name, m.Unit, set.Encoded(attribute.DefaultEncoder()), value))
	}
	if len(all.ScopeMetrics) != 1 || all.ScopeMetrics[0].Scope.Name != "github.com/batonhq/baton" {
		t.Fatalf("%+v", all.ScopeMetrics)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range d.DataPoints {
				add(m, p.Attributes, fmt.Sprint(p.Value, " ", d.IsMonotonic))
			}
		case metricdata.Gauge[float64]:
			for _, p := range d.DataPoints {
				add(m, p.Attributes, fmt.Sprint("about ", time.Duration(p.Value*float64(time.Second)).Round(time.Hour)))
			}
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				add(m, p.Attributes, fmt.Sprint(p.Count, " ", p.Sum, " ", len(p.Bounds)))
			}
		default:
			t.Errorf("%s is %T", m.Name, d)
		}
	}
	slices.Sort(got)
	want := []string{
		"baton.lock.acquired [{lock}] baton.class=order,baton.mode=exclusive,baton.store=redis 2 true",
		"baton.lock.failed [{call}] baton.class=order,baton.mode=exclusive,baton.store=redis,error.type=unavailable 1 true",
		"baton.lock.held [{lock}] baton.class=order,baton.store=redis 1 false",
		"baton.lock.hold [s] baton.class=order,baton.store=redis 1 2 12",
		"baton.lock.released [{lock}] baton.class=order,baton.store=redis 1 true",
		"baton.lock.wait [s] baton.class=order,baton.mode=exclusive,baton.store=redis 2 0.04 13",
		"baton.lock.wait [s] baton.class=order,baton.mode=exclusive,baton.store=redis,error.type=unavailable 1 0.02 13",
		"baton.lock.waiting [{call}] baton.class=order,baton.store=redis 1 false",
		"baton.lock.waiting.oldest [s] baton.class=order,baton.store=redis about 1h0m0s",
	}
	var recorded []string // the library shows those that were never used, too
	for _, line := range got {
		if !strings.HasSuffix(line, " 0 true") {
			recorded = append(recorded, line)
		}
	}
	if !slices.Equal(recorded, want) {
		t.Errorf("recorded\n%s\nwant\n%s", strings.Join(recorded, "\n"), strings.Join(want, "\n"))
	}
}

// traced runs f within a span and returns all spans that f led to, and the text of
// each: its name, how long it took, its attributes, its status and its events.
func traced(t *testing.T, cfg batonotel.SpanConfig, f func(ctx context.Context, told metrics.Events)) (texts []string) {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	tp := trace.NewTracerProvider(trace.WithSyncer(kept))
	told := batonotel.Spans(tp, cfg)
	ctx, span := tp.Tracer("test").Start(t.Context(), "request")
	f(ctx, told)
	span.End()
	for _, s := range kept.GetSpans() {
		if s.Name != "request" && (s.Parent.SpanID() != span.SpanContext().SpanID() || s.SpanContext.TraceID() != span.SpanContext().TraceID()) {
			t.Errorf("%s is no child of the caller's span", s.Name)
		}
		text := fmt.Sprint(s.Name, " ", s.EndTime.Sub(s.StartTime).Round(100*time.Millisecond), " ", list(s.Attributes))
		if s.Status.Code == codes.Error {
			text += " error: " + s.Status.Description
		}
		for _, e := range s.Events {
			text += fmt.Sprint(" ", e.Name, " ", list(e.Attributes))
		}
		texts = append(texts, text)
	}
	return texts
}

func list(all []attribute.KeyValue) []string {
	var texts []string
	for _, a := range all {
		if a.Key == "baton.token" && a.Value.AsInt64() > 0 { // another at each run
			a.Value = attribute.StringValue("T")
		}
		texts = append(texts, string(a.Key)+"="+a.Value.String())
	}
	slices.Sort(texts)
	return texts
}

func compare(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("made\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A lock that waits and is held is two spans with times that are right.
func TestLockSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := traced(t, batonotel.SpanConfig{}, func(ctx context.Context, told metrics.Events) {
			store := memstore.New()
			defer store.Close()
			locks, other := must(baton.New(store, baton.Config{Events: told.Locks})), must(baton.New(store, baton.Config{}))
			first := must(other.Lock(ctx, "k"))
			time.AfterFunc(3*time.Second, func() { first.Unlock() })
			lease := must(locks.Lock(ctx, "k"))
			if _, err := locks.TryLock(ctx, "k"); !errors.Is(err, baton.ErrHeld) {
				t.Error(err)
			}
			time.Sleep(2 * time.Second)
			if err := lease.Unlock(); err != nil {
				t.Error(err)
			}
			lease = must(locks.Lock(ctx, "k", baton.Shared()))
			must(locks.Break(ctx, "k"))
			<-lease.Done()
			lease.Unlock()
			if _, err := locks.TryLock(context.Background(), "without a span"); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		})
		compare(t, got,
			"lock.wait 3s [baton.mode=exclusive baton.store=memory baton.token=T]",
			"lock.wait 0s [baton.mode=exclusive baton.store=memory error.type=held]",
			"lock.hold 2s [baton.mode=exclusive baton.store=memory baton.token=T]",
			"lock.wait 0s [baton.mode=shared baton.store=memory baton.token=T]",
			"lock.hold 0s [baton.mode=shared baton.store=memory baton.token=T error.type=gone] error: gone",
			"request 5s []",
		)
	})
}

// What takes no time is an event of the caller's span; what does is a span.
func TestOtherSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := traced(t, batonotel.SpanConfig{}, func(ctx context.Context, told metrics.Events) {
			store := memstore.New()
			defer store.Close()
			limiter := must(ratelimit.New(store, ratelimit.SlidingLog(1, time.Second).Named("user"), ratelimit.Observe(told.Limits)))
			must(limiter.Allow(ctx, "k"))
			must(limiter.Allow(ctx, "k"))
			must(limiter.Wait(ctx, "k"))

			runner := must(once.New(store, once.Config{Events: told.Once}))
			for range 2 {
				must(runner.Do(ctx, "o", func(context.Context, once.Attempt) ([]byte, error) {
					time.Sleep(time.Second)
					return nil, nil
				}))
			}
			failure := errors.New("it is broken")
			if _, err := runner.Do(ctx, "p", func(context.Context, once.Attempt) ([]byte, error) { return nil, failure }); !errors.Is(err, failure) {
				t.Error(err)
			}

			locks := must(baton.New(store, baton.Config{}))
			c := &election.Candidate{Locks: locks, Name: "scheduler", Events: told.Elections}
			leading, stop := context.WithCancel(ctx)
			if err := c.Run(leading, func(ctx context.Context, _ *election.Leadership) error {
				time.Sleep(time.Minute)
				stop()
				<-ctx.Done()
				return nil
			}); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}

			told.Guard.Refused(ctx, guard.RefusedEvent{Store: "postgres", Err: &guard.StaleError{Resource: "r", Token: 6, Last: 7}})
		})
		compare(t, got,
			"limit.wait 1s [baton.allowed=true baton.by=store baton.limit=user baton.operation=wait baton.remaining=0 baton.store=memory]",
			"once.run 1s [baton.attempts=1 baton.recorded=true baton.store=memory baton.token=T]",
			"once.run 0s [baton.attempts=1 baton.recorded=false baton.store=memory baton.token=T error.type=failed] error: failed",
			"election.lead 1m0s [baton.store=memory baton.token=T]",
			"request 1m2s []"+
				" limit.decision [baton.allowed=true baton.by=store baton.limit=user baton.operation=allow baton.remaining=0 baton.store=memory]"+
				" limit.decision [baton.allowed=false baton.by=store baton.limit=user baton.operation=allow baton.remaining=0 baton.store=memory]"+
				" once.replayed [baton.attempts=1 baton.store=memory baton.token=T]"+
				" guard.refused [baton.last_token=7 baton.store=postgres baton.token=T]",
		)
	})
}

// Keys, and errors that contain them, are shown only if that is asked for.
func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, keys := range []bool{false, true} {
			got := strings.Join(traced(t, batonotel.SpanConfig{Keys: keys}, func(ctx context.Context, told metrics.Events) {
				lost := &baton.LostError{Key: "patient/7", Cause: baton.Gone}
				stale := &guard.StaleError{Resource: "patient/7"}
				told.Locks.Acquired(ctx, baton.LockEvent{Key: "patient/7"})
				told.Locks.Failed(ctx, baton.LockEvent{Key: "patient/7", Err: &driver.NotLockError{Key: "patient/7"}})
				told.Locks.Lost(ctx, baton.LockEvent{Key: "patient/7", Err: lost})
				told.Locks.Released(ctx, baton.LockEvent{Key: "patient/7"})
				told.Limits.Decided(ctx, ratelimit.DecisionEvent{Operation: "allow", Result: ratelimit.Result{Key: "patient/7"}, Err: fmt.Errorf("patient/7: %w", driver.ErrUnknown)})
				told.Limits.Decided(ctx, ratelimit.DecisionEvent{Operation: "wait", Result: ratelimit.Result{Key: "patient/7"}, Err: fmt.Errorf("patient/7: %w", driver.ErrUnknown)})
				told.Limits.Degraded(ctx, ratelimit.FallbackEvent{Key: "patient/7", Err: fmt.Errorf("patient/7: %w", driver.ErrUnknown)})
				told.Limits.Restored(ctx, ratelimit.FallbackEvent{Key: "patient/7"})
				told.Once.Replayed(ctx, once.OperationEvent{Key: "patient/7"})
				told.Once.Finished(ctx, once.OperationEvent{Key: "patient/7", Failed: true, Err: fmt.Errorf("patient/7")})
				told.Once.Superseded(ctx, once.OperationEvent{Key: "patient/7", Err: &driver.SupersededError{Key: "patient/7"}})
				told.Elections.Ended(ctx, election.LeadershipEvent{Name: "patient/7", Cause: lost})
				told.Guard.Refused(ctx, guard.RefusedEvent{Err: stale})
			}), "\n")
			// 13 attributes, and the texts of 6 errors.
			if n, want := strings.Count(got, "patient/7"), map[bool]int{false: 0, true: 19}[keys]; n != want {
				t.Errorf("Keys is %t, and a key is shown %d times, want %d:\n%s", keys, n, want, got)
			}
		}
	})
}
