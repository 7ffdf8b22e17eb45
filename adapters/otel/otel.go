// Package batonotel reports what Baton does to OpenTelemetry: Metrics as instruments,
// Spans as spans.
//
//	told, err := batonotel.Metrics(otel.GetMeterProvider(), metrics.Config{})
//	told = metrics.Join(told, batonotel.Spans(otel.GetTracerProvider(), batonotel.SpanConfig{}))
//	locks, err := baton.New(store, baton.Config{Events: told.Locks})
//
// docs/metrics.md lists both. Neither shows keys, unless SpanConfig.Keys asks for it.
package batonotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/batonhq/baton/adapters/metrics"
)

// scope is the name of the meters and tracers.
const scope = "github.com/batonhq/baton"

// Metrics makes the instruments of Baton and returns the Events that feed them. Call it
// once for a MeterProvider; the Events serve the whole program.
func Metrics(mp metric.MeterProvider, cfg metrics.Config) (metrics.Events, error) {
	return metrics.New(meter{mp.Meter(scope)}, cfg)
}

type meter struct{ metric.Meter }

// Make implements metrics.Meter.
func (m meter) Make(i metrics.Instrument) (metrics.Vector, error) {
	unit, help := metric.WithUnit(i.Unit), metric.WithDescription(i.Help)
	switch i.Kind {
	case metrics.Counter:
		c, err := m.Int64Counter(i.Name, unit, help)
		if err != nil {
			return nil, err
		}
		return func(values ...string) metrics.Series {
			with := []metric.AddOption{attributes(i, values)}
			return func(ctx context.Context, value float64) { c.Add(ctx, int64(value), with...) }
		}, nil
	case metrics.Gauge:
		c, err := m.Int64UpDownCounter(i.Name, unit, help)
		if err != nil {
			return nil, err
		}
		return func(values ...string) metrics.Series {
			with := []metric.AddOption{attributes(i, values)}
			return func(ctx context.Context, value float64) { c.Add(ctx, int64(value), with...) }
		}, nil
	}
	h, err := m.Float64Histogram(i.Name, unit, help, metric.WithExplicitBucketBoundaries(i.Buckets...))
	if err != nil {
		return nil, err
	}
	return func(values ...string) metrics.Series {
		with := []metric.RecordOption{attributes(i, values)}
		return func(ctx context.Context, value float64) { h.Record(ctx, value, with...) }
	}, nil
}

// Sample implements metrics.Meter.
func (m meter) Sample(i metrics.Instrument, look func(series func(value float64, values ...string))) error {
	_, err := m.Float64ObservableGauge(i.Name, metric.WithUnit(i.Unit), metric.WithDescription(i.Help),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			look(func(value float64, values ...string) { o.Observe(value, attributes(i, values)) })
			return nil
		}))
	return err
}

func attributes(i metrics.Instrument, values []string) metric.MeasurementOption {
	var all []attribute.KeyValue
	for n, l := range i.Labels {
		if values[n] != "" {
			all = append(all, attribute.String(l.Name, values[n]))
		}
	}
	return metric.WithAttributeSet(attribute.NewSet(all...))
}
