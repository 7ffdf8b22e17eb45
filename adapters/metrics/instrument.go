package metrics

import (
	"context"
	"strings"
)

// Kind is what an Instrument does with its values.
type Kind uint8

const (
	Counter   Kind = iota + 1 // a sum that only grows
	Gauge                     // a sum that grows and shrinks: a present number
	Histogram                 // how often a value had about that size
	Sampled                   // a gauge whose values are computed at each reading
)

func (k Kind) String() string {
	return [...]string{"", "counter", "gauge", "histogram", "gauge"}[min(k, Sampled)]
}

// An Instrument is one measured quantity. It has a series for each combination of the
// values of its labels.
type Instrument struct {
	Name    string // in OpenTelemetry: "baton.lock.wait"
	Kind    Kind
	Unit    string // "s", or the counted thing in braces: "{lock}"
	Help    string
	Labels  []Label
	Buckets []float64 // of a Histogram: the upper bounds, without the infinite one
}

// A Label distinguishes the series of an Instrument.
type Label struct {
	Name string // in OpenTelemetry: "baton.store"
	Help string
}

// Prometheus is the instrument's name in Prometheus, with its unit:
// "baton_lock_wait_seconds".
func (i Instrument) Prometheus() string {
	name := strings.ReplaceAll(i.Name, ".", "_")
	if i.Unit == "s" {
		name += "_seconds"
	}
	if i.Kind == Counter {
		name += "_total"
	}
	return name
}

// Prometheus is the label's name in Prometheus: "store" for "baton.store", "error_type"
// for "error.type".
func (l Label) Prometheus() string {
	return strings.ReplaceAll(strings.TrimPrefix(l.Name, "baton."), ".", "_")
}

// A Meter makes instruments in a library for metrics. New calls it once for each
// instrument of Instruments.
type Meter interface {
	// Make makes an instrument. It fails, for example, if there is one of that name
	// already.
	Make(Instrument) (Vector, error)

	// Sample makes an instrument of the kind Sampled. At each reading the Meter calls
	// look, which calls series for each present series. Both return soon; look is safe
	// for concurrent use. Its error is like that of Make.
	Sample(i Instrument, look func(series func(value float64, values ...string))) error
}

// A Vector returns the series of an instrument with these values of its labels, in their
// order. An empty value means that the series does not have the label. It is called once
// for each series, and safe for concurrent use.
type Vector func(values ...string) Series

// A Series adds a value to a Counter or a Gauge, or records it in a Histogram. The
// context is that of the event. It is safe for concurrent use.
type Series func(ctx context.Context, value float64)
