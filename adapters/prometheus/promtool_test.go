package batonprometheus_test

import (
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// What a program shows after all events is legal for Prometheus, and as it wants it.
func TestPromtoolChecksMetrics(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	reg := prometheus.NewRegistry()
	events := newEvents(t, reg)
	tellAll(t, events)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, f := range families {
		shown[f.GetName()] = true
	}
	for _, i := range metrics.Instruments() {
		if !shown[i.Prometheus()] {
			t.Errorf("no event was about %s: add it to this test", i.Name)
		}
	}
	page := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	if page.Code != 200 || page.Body.Len() == 0 {
		t.Fatalf("%d: %s", page.Code, page.Body)
	}
	testserver.Promtool(t, page.Body.String(), "check", "metrics")
}

// tellAll tells each function of e something.
func tellAll(t *testing.T, e metrics.Events) {
	t.Helper()
	ctx, failed := t.Context(), errors.New("planted")
	lock := baton.LockEvent{Store: "redis", Key: "order/7", Queued: true, Waited: time.Second, Held: time.Minute}
	e.Locks.Waiting(ctx, lock)
	e.Locks.Acquired(ctx, lock)
	e.Locks.Released(ctx, lock)
	lock.Err = failed
	e.Locks.Failed(ctx, lock)
	lock.Err = &baton.LostError{Cause: baton.Expired}
	e.Locks.Lost(ctx, lock)
	e.Locks.Renewed(ctx, baton.RenewalEvent{Store: "redis", Claims: 2, Failed: 1, Took: time.Millisecond, Err: failed, Slack: time.Second})

	memory := memstore.New()
	defer memory.Close()
	limiter, err := ratelimit.New(memory, ratelimit.FixedWindow(2, time.Hour).Named("user").Warn(0.5),
		ratelimit.FixedWindow(1, time.Hour).Named("tried").Shadow(), ratelimit.Observe(e.Limits))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // near the first limit, then beyond the second
		if _, err := limiter.Allow(ctx, "7"); err != nil {
			t.Fatal(err)
		}
	}
	fallback := ratelimit.FallbackEvent{Store: "redis", By: ratelimit.ByLocal}
	e.Limits.Degraded(ctx, fallback)
	e.Limits.Restored(ctx, fallback)

	operation := once.OperationEvent{Store: "redis", Key: "redeem/7", Took: time.Second}
	e.Once.Began(ctx, operation)
	e.Once.Finished(ctx, operation)
	e.Once.Superseded(ctx, operation)
	e.Once.Replayed(ctx, operation)
	operation.Err = failed
	e.Once.GaveUp(ctx, operation)

	leader := election.LeadershipEvent{Store: "redis", Name: "scheduler", Led: time.Hour}
	e.Elections.Elected(ctx, leader)
	e.Elections.Late(ctx, leader)
	e.Elections.Ended(ctx, leader)
	leader.Err = failed
	e.Elections.Failed(ctx, leader)

	e.Guard.Refused(ctx, guard.RefusedEvent{Store: "redis", Err: &guard.StaleError{Resource: "order/7"}})
	e.Store.Request(ctx, observe.RequestEvent{Store: "redis", Operation: observe.Acquire, Took: time.Millisecond})
}
