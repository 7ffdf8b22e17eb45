package batonotel_test

import (
	"log"

	"go.opentelemetry.io/otel"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	batonotel "github.com/batonhq/baton/adapters/otel"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/store/memstore"
)

func connect() *memstore.Store { return memstore.New() }

// serve stands for the program.
func serve(*baton.Locker) {}

// docs/metrics.md shows it.
func Example() {
	told, err := batonotel.Metrics(otel.GetMeterProvider(), metrics.Config{})
	if err != nil {
		log.Fatal(err)
	}
	told = metrics.Join(told, batonotel.Spans(otel.GetTracerProvider(), batonotel.SpanConfig{}))
	guard.Observe(told.Guard)

	store := observe.Locks(connect(), told.Store)
	locks, err := baton.New(store, baton.Config{Events: told.Locks})
	if err != nil {
		log.Fatal(err)
	}
	serve(locks) // limits, operations and elections as with Prometheus
}
