package batonprometheus_test

import (
	"log"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	batonprometheus "github.com/batonhq/baton/adapters/prometheus"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
)

// docs/metrics.md shows it.
func Example() {
	told, err := batonprometheus.New(prometheus.DefaultRegisterer, metrics.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard.Observe(told.Guard)
	http.Handle("/metrics", promhttp.Handler())

	redis := connect() // such as open.Limits(ctx, "redis://localhost")
	store := observe.Locks(redis, told.Store)
	locks, err := baton.New(store, baton.Config{Events: told.Locks})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(observe.Limits(redis, told.Store),
		ratelimit.TokenBucket(10, time.Second, 20).Named("user"), ratelimit.Observe(told.Limits))
	if err != nil {
		log.Fatal(err)
	}
	payments, err := once.New(store, once.Config{Events: told.Once, Lock: baton.Config{Events: told.Locks}})
	if err != nil {
		log.Fatal(err)
	}
	scheduler := &election.Candidate{Locks: locks, Name: "scheduler", Events: told.Elections}
	serve(locks, limiter, payments, scheduler)
}
