// Package telemetry tests what no adapter can alone: Prometheus, OpenTelemetry and a logger
// that are told of the same locks at once.
package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	batonotel "github.com/batonhq/baton/adapters/otel"
	batonprometheus "github.com/batonhq/baton/adapters/prometheus"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// told is a program with all there is: both adapters' metrics, and spans.
type told struct {
	metrics.Events
	registry *prometheus.Registry
	reader   *metric.ManualReader
	tracer   trace.Tracer
	spans    *tracetest.InMemoryExporter
}

func newTold(t *testing.T) told {
	t.Helper()
	all := told{registry: prometheus.NewRegistry(), reader: metric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	there := must(batonprometheus.New(all.registry, metrics.Config{}))
	here := must(batonotel.Metrics(metric.NewMeterProvider(metric.WithReader(all.reader)), metrics.Config{}))
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSyncer(all.spans))
	all.tracer = tracing.Tracer("test")
	spans := batonotel.Spans(tracing, batonotel.SpanConfig{})
	all.Events = metrics.Join(there, here, spans)
	return all
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// shown is a series: its name in Prometheus with the labels that it has, and its value;
// of a histogram how many values there were, and their sum.
type shown map[string][2]float64

// prometheus is what a server would scrape, without what is 0.
func (a told) prometheus() shown {
	all := shown{}
	for _, f := range must(a.registry.Gather()) {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			value := [2]float64{m.GetCounter().GetValue() + m.GetGauge().GetValue()}
			if h := m.GetHistogram(); h != nil {
				value = [2]float64{float64(h.GetSampleCount()), h.GetSampleSum()}
			}
			all.add(f.GetName(), labels, value)
		}
	}
	return all
}

// otel is what a collector would get, under the names of Prometheus.
func (a told) otel(ctx context.Context) shown {
	var got metricdata.ResourceMetrics
	if err := a.reader.Collect(ctx, &got); err != nil {
		panic(err)
	}
	all := shown{}
	for _, m := range got.ScopeMetrics[0].Metrics {
		at := slices.IndexFunc(metrics.Instruments(), func(i metrics.Instrument) bool { return i.Name == m.Name })
		name := metrics.Instruments()[at].Prometheus()
		labels := func(set attribute.Set) (labels []string) {
			for _, l := range set.ToSlice() {
				labels = append(labels, metrics.Label{Name: string(l.Key)}.Prometheus()+"="+l.Value.AsString())
			}
			return labels
		}
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range d.DataPoints {
				all.add(name, labels(p.Attributes), [2]float64{float64(p.Value)})
			}
		case metricdata.Gauge[float64]:
			for _, p := range d.DataPoints {
				all.add(name, labels(p.Attributes), [2]float64{p.Value})
			}
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				all.add(name, labels(p.Attributes), [2]float64{float64(p.Count), p.Sum})
			}
		default:
			panic(fmt.Sprintf("%s is %T", m.Name, d))
		}
	}
	return all
}

func (s shown) add(name string, labels []string, value [2]float64) {
	if value == [2]float64{} {
		return
	}
	slices.Sort(labels)
	s[name+"{"+strings.Join(labels, ",")+"}"] = value
}

// sum adds up what begins so.
func (s shown) sum(prefix string) (n float64) {
	for name, value := range s {
		if strings.HasPrefix(name, prefix) {
			n += value[0]
		}
	}
	return n
}

// Both adapters, the spans and the logger tell the same story, each of all of it.
func TestAllTellTheSame(t *testing.T) {
	testserver.Long(t)
	synctest.Test(t, func(t *testing.T) {
		all := newTold(t)
		var log bytes.Buffer // a Handler writes one line at a time
		logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		ctx, span := all.tracer.Start(t.Context(), "request") // what has none is not traced
		work(ctx, t, all.Events, logger)
		span.End()
		blocked, stop := context.WithCancel(t.Context())
		hung := hang(blocked, t, all.Events)
		time.Sleep(7 * time.Second)

		there, here := all.prometheus(), all.otel(t.Context())
		for name, value := range there {
			if other := here[name]; other[0] != value[0] || math.Abs(other[1]-value[1]) > 1e-6 {
				t.Errorf("%s is %v in Prometheus and %v in OpenTelemetry", name, value, other)
			}
		}
		for name := range here {
			if _, ok := there[name]; !ok {
				t.Errorf("%s is only in OpenTelemetry", name)
			}
		}
		lines, spans := map[string]float64{}, map[string]float64{}
		for line := range bytes.Lines(log.Bytes()) {
			var l struct{ Msg string }
			if err := json.Unmarshal(line, &l); err != nil {
				t.Errorf("%v: %s", err, line)
			}
			lines[l.Msg]++
		}
		for _, s := range all.spans.GetSpans() {
			spans[s.Name]++
		}
		for _, c := range []struct {
			what      string
			got, want float64
		}{
			{"locks lost", there.sum("baton_lock_lost_total{cause=gone"), 1},
			{"locks held now", there.sum("baton_lock_held"), 0},
			{"calls that wait now", there.sum("baton_lock_waiting{"), 1},
			{"seconds of the oldest wait", there.sum("baton_lock_waiting_oldest_seconds"), 7},
			{"locks of orders", there.sum("baton_lock_acquired_total{class=order"), goroutines * rounds},
			{"locks released or lost", there.sum("baton_lock_released_total") + there.sum("baton_lock_lost_total"), there.sum("baton_lock_acquired_total")},
			{"lines of locks acquired", lines["lock acquired"], there.sum("baton_lock_acquired_total")},
			{"lines of locks released", lines["lock released"], there.sum("baton_lock_released_total")},
			{"lines of locks lost", lines["lock lost"], 1},
			{"spans of waits", spans["lock.wait"], there.sum("baton_lock_wait_seconds")},
			{"spans of holds", spans["lock.hold"], there.sum("baton_lock_hold_seconds")},
			{"decisions", there.sum("baton_limit_decisions_total"), 3},
			{"refusals", there.sum("baton_limit_decisions_total{by=store,limit=user,outcome=refused"), 1},
			{"lines of decisions", lines["limit decided"], 3},
			{"operations", there.sum("baton_once_calls_total{class=redeem,outcome=succeeded"), 1},
			{"replays", there.sum("baton_once_calls_total{class=redeem,outcome=replayed"), 1},
			{"spans of operations", spans["once.run"], 1},
			{"terms", there.sum("baton_election_elected_total"), 1},
			{"leaders now", there.sum("baton_election_leading"), 0},
			{"stale writes", there.sum("baton_guard_refused_total"), 1},
		} {
			if c.got != c.want {
				t.Errorf("%v %s, want %v", c.got, c.what, c.want)
			}
		}
		if t.Failed() {
			t.Log(there, lines, spans)
		}
		stop()
		<-hung
	})
}

const goroutines, rounds = 8, 25

// work does something with each part of Baton.
func work(ctx context.Context, t *testing.T, e metrics.Events, logger *slog.Logger) {
	t.Helper()
	defer guard.Observe(e.Guard)()
	memory := memstore.New()
	defer memory.Close()
	store := observe.Locks(memory, e.Store)
	cfg := baton.Config{Events: e.Locks, Logger: logger}

	locks := must(baton.New(store, cfg))
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range rounds {
				lease := must(locks.Lock(ctx, fmt.Sprint("order/", (g+i)%3)))
				time.Sleep(time.Millisecond) // it works, in the time of the bubble
				must(0, lease.Unlock())
			}
		})
	}
	all.Wait()
	lease := must(locks.Lock(ctx, "invoice/1"))
	time.Sleep(time.Minute) // of the bubble, for many renewals
	must(locks.Break(ctx, "invoice/1"))
	<-lease.Done()
	lease.Unlock() // returns that it is lost

	limiter := must(ratelimit.New(observe.Limits(memory, e.Store), ratelimit.SlidingLog(2, time.Minute).Named("user"), ratelimit.Observe(e.Limits), ratelimit.Logger(logger)))
	for range 3 {
		must(limiter.Allow(ctx, "7"))
	}

	runner := must(once.New(store, once.Config{Events: e.Once, Lock: cfg}))
	for range 2 {
		must(runner.Do(ctx, "redeem/7", func(context.Context, once.Attempt) ([]byte, error) { return nil, nil }))
	}

	c := &election.Candidate{Locks: locks, Name: "scheduler", Events: e.Elections, Logger: logger}
	leading, stop := context.WithCancel(ctx)
	if err := c.Run(leading, func(ctx context.Context, _ *election.Leadership) error {
		stop()
		<-ctx.Done()
		return nil
	}); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	// The lock was broken, and its next holder writes first.
	next := must(locks.Lock(ctx, "invoice/1"))
	var gate guard.Gate
	write := func() error { return nil }
	must(0, gate.Do(ctx, "invoice/1", guard.Of(next), write))
	if err := gate.Do(ctx, "invoice/1", guard.Of(lease), write); !errors.Is(err, guard.ErrStale) {
		t.Error(err)
	}
	must(0, next.Unlock())
	synctest.Wait()
}

// hang waits for a lock that nobody releases, until ctx ends.
func hang(ctx context.Context, t *testing.T, e metrics.Events) (ended chan struct{}) {
	t.Helper()
	store := memstore.New()
	must(must(baton.New(store, baton.Config{})).Lock(ctx, "stuck/1"))
	locks, ended := must(baton.New(store, baton.Config{Events: &baton.Events{Waiting: e.Locks.Waiting, Failed: e.Locks.Failed}})), make(chan struct{})
	go func() {
		defer close(ended)
		defer store.Close()
		if _, err := locks.Lock(ctx, "stuck/1"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	return ended
}

// The number of series does not grow with the number of keys, in neither library.
func TestMillionKeysMakeNoSeries(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const keys = 1_000_000
	all, ctx := newTold(t), t.Context()
	parts := []func(key string){
		func(key string) {
			e := baton.LockEvent{Store: "memory", Key: key, Waited: time.Millisecond, Held: time.Second}
			all.Locks.Acquired(ctx, e)
			all.Locks.Released(ctx, e)
		},
		func(key string) {
			all.Once.Finished(ctx, once.OperationEvent{Store: "memory", Key: key, Recorded: true, Took: time.Second})
		},
		func(key string) {
			all.Elections.Ended(ctx, election.LeadershipEvent{Store: "memory", Name: key, Led: time.Second})
		},
		func(key string) {
			all.Guard.Refused(ctx, guard.RefusedEvent{Store: "memory", Err: &guard.StaleError{Resource: key}})
		},
	}
	for i := range metrics.MaxClasses + 1 {
		for _, tell := range parts {
			tell(fmt.Sprint("class", i, "/7"))
		}
	}
	there, here := len(all.prometheus()), len(all.otel(ctx))
	for i := range keys {
		n := i / len(parts)
		parts[i%len(parts)](fmt.Sprint("class", n%(2*metrics.MaxClasses), "/", n))
	}
	shown := all.prometheus()
	if len(shown) != there || len(all.otel(ctx)) != here || there != here {
		t.Errorf("%d and %d series became %d and %d", there, here, len(shown), len(all.otel(ctx)))
	}
	for _, name := range []string{"baton_lock_acquired_total", "baton_once_calls_total", "baton_election_term_seconds", "baton_guard_refused_total"} {
		if n := shown.sum(name); n != keys/4+metrics.MaxClasses+1 {
			t.Errorf("%s counts %v", name, n)
		}
	}
	t.Log(there, "series, without those that are 0")
}
