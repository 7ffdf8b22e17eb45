package metrics_test

import (
	"context"
	"testing"
	"time"

	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/redisstore"
)

// A Redis that stops, goes on, is killed and comes back shows as limiters that decide
// alone while it is away, and at no other time. Two limiters are two.
func TestDegradedWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	store, err := redisstore.Open(t.Context(), redisstore.Server{Addrs: []string{server.Addr}}, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	f, events := newFake(t, metrics.Config{})
	told := map[string]int{} // guarded by f.mu
	count := func(what string) func(context.Context, ratelimit.FallbackEvent) {
		return func(context.Context, ratelimit.FallbackEvent) {
			f.mu.Lock()
			defer f.mu.Unlock()
			told[what]++
		}
	}
	limiter := func(by ratelimit.Option) *ratelimit.Limiter {
		l, err := ratelimit.New(observe.Limits(store, events.Store), ratelimit.FixedWindow(1_000_000, time.Hour), by,
			ratelimit.Observe(events.Limits), ratelimit.Observe(&ratelimit.Events{Degraded: count("degraded"), Restored: count("restored")}))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	open, closed := limiter(ratelimit.FailOpen(50*time.Millisecond)), limiter(ratelimit.FailClosed(50*time.Millisecond))
	// until asks until both limiters are in place of the store, or neither is.
	until := func(what string, alone bool) {
		t.Helper()
		for n, end := 0, time.Now().Add(time.Minute); ; n++ {
			for _, l := range []*ratelimit.Limiter{open, closed} {
				if _, err := l.Allow(t.Context(), []string{"a", "b", "c", "d"}[n%4]); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			o, c := f.sum("baton.limit.degraded", "redis", "open"), f.sum("baton.limit.degraded", "redis", "closed")
			if (o > 0) == alone && (c > 0) == alone {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: open %v, closed %v", what, o, c)
			}
		}
	}
	until("at first", false)
	for range 2 {
		server.Stop()
		until("stopped", true)
		server.Cont()
		until("it goes on", false)
	}
	server.Kill()
	until("killed", true)
	server.Restart()
	until("restarted", false)
	for _, by := range []string{"open", "closed"} {
		if got := f.sum("baton.limit.degraded", "redis", by); got != 0 {
			t.Errorf("%s: %v keys in the end", by, got)
		}
		if f.sum("baton.limit.decisions", "redis", "unnamed", map[string]string{"open": "allowed", "closed": "refused"}[by], by) == 0 {
			t.Errorf("no decisions by %s", by)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if told["degraded"] != told["restored"] || told["degraded"] < 6 {
		t.Errorf("told %v", told)
	}
	failed := 0
	for _, class := range []string{observe.Unknown, observe.Unavailable} {
		failed += f.counts["db.client.operation.duration{redis,take,"+class+"}"]
	}
	if failed < 6*5 {
		t.Errorf("%d requests have failed", failed)
	}
}
