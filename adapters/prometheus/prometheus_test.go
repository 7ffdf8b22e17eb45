package batonprometheus_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	batonprometheus "github.com/batonhq/baton/adapters/prometheus"
)

func newEvents(t testing.TB, reg prometheus.Registerer) metrics.Events {
	t.Helper()
	events, err := batonprometheus.New(reg, metrics.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// Counters, gauges and histograms have the names, labels and buckets of the table.
func TestExposition(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	events, ctx := newEvents(t, reg), t.Context()
	e := baton.LockEvent{Store: "redis", Key: "order/7", Waited: 20 * time.Millisecond, Held: 2 * time.Second}
	events.Locks.Acquired(ctx, e)
	e.Queued, e.Since = true, time.Now()
	events.Locks.Waiting(ctx, e)
	events.Locks.Acquired(ctx, e)
	events.Locks.Released(ctx, e)
	const want = `
# HELP baton_lock_acquired_total Locks that were acquired.
# TYPE baton_lock_acquired_total counter
baton_lock_acquired_total{class="order",mode="exclusive",store="redis"} 2
# HELP baton_lock_held Locks that this process holds.
# TYPE baton_lock_held gauge
baton_lock_held{class="order",store="redis"} 1
# HELP baton_lock_waiting_oldest_seconds For how long the oldest of these calls has waited: 0 if none waits.
# TYPE baton_lock_waiting_oldest_seconds gauge
baton_lock_waiting_oldest_seconds{class="order",store="redis"} 0
# HELP baton_lock_wait_seconds How long calls for a lock took, until they had it or failed.
# TYPE baton_lock_wait_seconds histogram
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="0.0005"} 0
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="0.001"} 0
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="0.005"} 0
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="0.01"} 0
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="0.05"} 2
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="0.1"} 2
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="0.5"} 2
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="1"} 2
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="5"} 2
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="10"} 2
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="30"} 2
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="60"} 2
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="300"} 2
baton_lock_wait_seconds_bucket{class="order",error_type="",mode="exclusive",store="redis",le="+Inf"} 2
baton_lock_wait_seconds_sum{class="order",error_type="",mode="exclusive",store="redis"} 0.04
baton_lock_wait_seconds_count{class="order",error_type="",mode="exclusive",store="redis"} 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "baton_lock_acquired_total", "baton_lock_held", "baton_lock_wait_seconds", "baton_lock_waiting_oldest_seconds"); err != nil {
		t.Error(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, i := range metrics.Instruments() {
		names[i.Prometheus()] = true
	}
	for _, f := range families {
		if !names[f.GetName()] {
			t.Errorf("%s is not in the table", f.GetName())
		}
	}
}

// A second New, or a metric of that name, is an error that registers nothing.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	newEvents(t, reg)
	if _, err := batonprometheus.New(reg, metrics.Config{}); err == nil {
		t.Error("all was registered twice")
	} else if _, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); !ok {
		t.Error(err)
	}

	reg = prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "baton_guard_refused_total", Help: "Another."}))
	if _, err := batonprometheus.New(reg, metrics.Config{}); err == nil {
		t.Error("a name was taken and New did not say so")
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 {
		t.Errorf("%d metrics, %v", len(families), err)
	}
	newEvents(t, prometheus.WrapRegistererWithPrefix("my_", reg)) // under other names

	if _, err := batonprometheus.New(nil, metrics.Config{}); err == nil {
		t.Error("New took no Registerer")
	}
}

// What text of others is in a class is no invalid label.
func TestLabelsAreLegal(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	events := newEvents(t, reg)
	for _, key := range []string{"a\nb/7", "\"}/7", "\xff/7", "\x00/7"} {
		events.Locks.Acquired(t.Context(), baton.LockEvent{Store: "memory", Key: key})
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var classes []string
	for _, f := range families {
		if f.GetName() == "baton_lock_held" {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "class" {
						classes = append(classes, l.GetValue())
					}
				}
			}
		}
	}
	slices.Sort(classes)
	if want := []string{"\x00", "\"}", "a\nb", "�"}; !slices.Equal(classes, want) {
		t.Errorf("%q, want %q", classes, want)
	}
}
