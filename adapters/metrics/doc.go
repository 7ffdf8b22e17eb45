// Package metrics makes counters, gauges and histograms of the events of Baton's
// packages. It depends on no library for metrics: a Meter makes the instruments. Two
// modules have one, for Prometheus and for OpenTelemetry:
//
//	told, err := batonprometheus.New(prometheus.DefaultRegisterer, metrics.Config{})
//	stop := guard.Observe(told.Guard)
//	store = observe.Locks(store, told.Store)
//	locks, err := baton.New(store, baton.Config{Events: told.Locks})
//	limiter, err := ratelimit.New(limitStore, limit, ratelimit.Observe(told.Limits))
//	runner, err := once.New(store, once.Config{Events: told.Once, Lock: baton.Config{Events: told.Locks}})
//	candidate := &election.Candidate{Locks: locks, Name: "scheduler", Events: told.Elections}
//
// # What is measured
//
// Instruments is the list; docs/metrics.md shows it. Names and units follow
// OpenTelemetry, and the names in Prometheus follow from them.
//
// No label has a key as its value, so the number of series does not grow with the number
// of keys. Config.Class sorts keys into classes.
//
// Counts agree: in each store and class, the acquired locks are the released ones, the
// lost ones, and those that baton.lock.held counts.
package metrics
