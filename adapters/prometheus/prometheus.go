// Package batonprometheus reports what Baton does to Prometheus.
//
//	told, err := batonprometheus.New(prometheus.DefaultRegisterer, metrics.Config{})
//	locks, err := baton.New(store, baton.Config{Events: told.Locks})
//
// docs/metrics.md lists the metrics. No label has keys: see metrics.Config.Class.
package batonprometheus

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/batonhq/baton/adapters/metrics"
)

// New registers the metrics of Baton and returns the Events that feed them. Call it once
// for a Registerer; the Events serve the whole program. Wrap the Registerer for a prefix
// or for constant labels. The error is that of the Registerer, such as a
// prometheus.AlreadyRegisteredError; no metric is registered then.
//
// Histograms have the buckets in docs/metrics.md, and are native ones, too, for servers
// that ask for these.
func New(reg prometheus.Registerer, cfg metrics.Config) (metrics.Events, error) {
	if reg == nil {
		return metrics.Events{}, errors.New("batonprometheus: no Registerer: use prometheus.DefaultRegisterer, or prometheus.NewRegistry()")
	}
	var m meter
	events, err := metrics.New(&m, cfg)
	if err != nil {
		return metrics.Events{}, err
	}
	if err := reg.Register(&m); err != nil {
		return metrics.Events{}, err
	}
	return events, nil
}

// meter is a metrics.Meter, and the collector of all its instruments, so that all or none
// of them are registered.
type meter struct{ made []prometheus.Collector }

// sampled is an instrument whose values are computed when it is collected.
type sampled struct {
	desc *prometheus.Desc
	look func(series func(value float64, values ...string))
}

func (s sampled) Describe(to chan<- *prometheus.Desc) { to <- s.desc }

func (s sampled) Collect(to chan<- prometheus.Metric) {
	s.look(func(value float64, values ...string) {
		to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, value, values...)
	})
}

func (m *meter) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.made {
		c.Describe(to)
	}
}

func (m *meter) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.made {
		c.Collect(to)
	}
}

// Make implements metrics.Meter.
func (m *meter) Make(i metrics.Instrument) (metrics.Vector, error) {
	labels := labelsOf(i)
	opts := prometheus.Opts{Name: i.Prometheus(), Help: i.Help}
	switch i.Kind {
	case metrics.Counter:
		v := prometheus.NewCounterVec(prometheus.CounterOpts(opts), labels)
		return add(m, v, func(values []string) metrics.Series {
			s := v.WithLabelValues(values...)
			return func(_ context.Context, value float64) { s.Add(value) }
		}), nil
	case metrics.Gauge:
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts(opts), labels)
		return add(m, v, func(values []string) metrics.Series {
			s := v.WithLabelValues(values...)
			return func(_ context.Context, value float64) { s.Add(value) }
		}), nil
	}
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: opts.Name, Help: opts.Help, Buckets: i.Buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}, labels)
	return add(m, v, func(values []string) metrics.Series {
		s := v.WithLabelValues(values...)
		return func(_ context.Context, value float64) { s.Observe(value) }
	}), nil
}

// Sample implements metrics.Meter.
func (m *meter) Sample(i metrics.Instrument, look func(series func(value float64, values ...string))) error {
	m.made = append(m.made, sampled{prometheus.NewDesc(i.Prometheus(), i.Help, labelsOf(i), nil), look})
	return nil
}

func labelsOf(i metrics.Instrument) []string {
	labels := make([]string, len(i.Labels))
	for n, l := range i.Labels {
		labels[n] = l.Prometheus()
	}
	return labels
}

func add(m *meter, c prometheus.Collector, series func(values []string) metrics.Series) metrics.Vector {
	m.made = append(m.made, c)
	return func(values ...string) metrics.Series { return series(values) }
}
