package batonprometheus_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/memstore"
)

// What a pair of Lock and Unlock costs more if it is counted: two events.
func BenchmarkPair(b *testing.B) {
	for name, cfg := range map[string]baton.Config{
		"without":    {},
		"prometheus": {Events: newEvents(b, prometheus.NewRegistry()).Locks},
	} {
		b.Run(name, func(b *testing.B) {
			locks, err := baton.New(memstore.New(), cfg)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				lease, err := locks.Lock(b.Context(), "order/4711")
				if err != nil {
					b.Fatal(err)
				}
				lease.Unlock()
			}
		})
	}
}

// What one event costs: of a lock that came at once, and of one that others were before.
func BenchmarkEvent(b *testing.B) {
	e, ctx := newEvents(b, prometheus.NewRegistry()).Locks, b.Context()
	event := baton.LockEvent{Store: "redis", Key: "order/4711"}
	b.Run("at once", func(b *testing.B) {
		for b.Loop() {
			e.Acquired(ctx, event)
			e.Released(ctx, event)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/event")
	})
	b.Run("after a wait", func(b *testing.B) {
		for b.Loop() {
			waits := event
			waits.Queued, waits.Since = true, time.Now()
			e.Waiting(ctx, waits)
			e.Acquired(ctx, waits)
			e.Released(ctx, event)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(3*b.N), "ns/event")
	})
}
