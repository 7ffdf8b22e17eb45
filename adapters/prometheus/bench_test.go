package batonprometheus_test

import (
	"testing"

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
