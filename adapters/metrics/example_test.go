package metrics_test

import (
	"context"
	"fmt"
	"log"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/store/memstore"
)

// printer is a Meter: it prints what is counted. Adapters for Prometheus and OpenTelemetry
// are there.
type printer struct{}

func (printer) Make(i metrics.Instrument) (metrics.Vector, error) {
	return func(values ...string) metrics.Series {
		return func(_ context.Context, value float64) {
			if i.Kind == metrics.Counter {
				fmt.Println(i.Name, values, value)
			}
		}
	}, nil
}

func (printer) Sample(metrics.Instrument, func(func(value float64, values ...string))) error {
	return nil // nobody reads
}

func ExampleNew() {
	events, err := metrics.New(printer{}, metrics.Config{})
	if err != nil {
		log.Fatal(err)
	}
	locks, err := baton.New(memstore.New(), baton.Config{Events: events.Locks})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := locks.TryLock(context.Background(), "order/42")
	if err != nil {
		log.Fatal(err)
	}
	if err := lease.Unlock(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// baton.lock.acquired [memory order exclusive] 1
	// baton.lock.released [memory order ] 1
}
