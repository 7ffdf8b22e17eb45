// Package envoy asks package rls with the client that Envoy's own project makes of its
// definitions.
package envoy

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/envoyexamples"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/rls"
	"github.com/batonhq/baton/store/memstore"
)

// at is a store at a time that a test sets.
type at struct {
	limits.Store
	now atomic.Int64 // in microseconds since 1970
}

func (a *at) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	r.Now = a.now.Load()
	return a.Store.Take(ctx, r)
}

// The examples of envoyproxy/ratelimit decide as its documentation says.
func TestExamples(t *testing.T) {
	testserver.Long(t)
	redis := testserver.SharedRedis(t)
	for name, store := range map[string]limits.Store{"memory": memstore.New(), "redis": store(t, "redis://"+redis.Addr)} {
		for _, e := range envoyexamples.All() {
			t.Run(name+"/"+e.Name, func(t *testing.T) {
				then := &at{Store: store}
				to := serve(t, rls.Config{Limiter: limiter(t, then, string(envoyexamples.Config(e.Name)))})
				begin := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
				for i, s := range e.Steps {
					then.now.Store(begin.Add(s.After).UnixMicro())
					want := s.Want
					if want == "shadow" { // callers are told nothing of those
						want = "free"
					}
					for n := range s.Times {
						if out := ask(t, to, asking(s.Domain, s.Describe)); said(out) != want {
							t.Fatalf("step %d, %s, number %d: %s, want %s: %v", i, s.Describe, n+1, said(out), want, out)
						}
					}
				}
			})
		}
	}
}

const text = `
domain: shop
descriptors:
- {key: user, rate_limit: {name: per user, requests: 5, period: 1h}}
- {key: path, value: /api/*, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 100}}]}
- {key: ip, rate_limit: {unit: minute, requests_per_unit: 10}}
`

// A refused request consumes nothing of what its other descriptors count.
func TestAllOrNothing(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	to := serve(t, rls.Config{Limiter: limiter(t, memstore.New(), text)})
	for range 5 {
		ask(t, to, asking("shop", "user=a path=/api/x,user=a"))
	}
	for range 20 {
		out := ask(t, to, asking("shop", "user=a path=/api/y,user=a"))
		if said(out) != "refused" || out.GetStatuses()[0].GetCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT || out.GetStatuses()[1].GetCode() != ratelimitv3.RateLimitResponse_OK {
			t.Fatal(out)
		}
	}
	out := ask(t, to, asking("shop", "path=/api/x,user=a path=/api/y,user=a"))
	if a, b := out.GetStatuses()[0].GetLimitRemaining(), out.GetStatuses()[1].GetLimitRemaining(); a != 94 || b != 99 {
		t.Errorf("%d and %d of 100 remain", a, b)
	}
	out = ask(t, to, asking("shop", "user=a"))
	if l := out.GetStatuses()[0].GetCurrentLimit(); l.GetName() != "per user" || l.GetRequestsPerUnit() != 5 || l.GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_HOUR {
		t.Errorf("the limit is %v", l)
	}
	if header(out, "ratelimit-limit") != "5" || header(out, "ratelimit-remaining") != "0" || header(out, "retry-after") == "" || header(out, "retry-after") != header(out, "ratelimit-reset") {
		t.Errorf("the headers are %v", out.GetResponseHeadersToAdd())
	}
}

// Hits and a limit that come with a request.
func TestHitsAndLimits(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	to := serve(t, rls.Config{Limiter: limiter(t, memstore.New(), text)})
	remaining := func(in *ratelimitv3.RateLimitRequest) (left []uint32) {
		t.Helper()
		for _, s := range ask(t, to, in).GetStatuses() {
			left = append(left, s.GetLimitRemaining())
		}
		return left
	}
	in := asking("shop", "path=/api/x,user=a ip=a")
	in.HitsAddend = 4
	if got := fmt.Sprint(remaining(in)); got != "[96 6]" {
		t.Errorf("after 4 hits %s remain", got)
	}
	in.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
	in.Descriptors[1].HitsAddend = wrapperspb.UInt64(5)
	if got := fmt.Sprint(remaining(in)); got != "[96 1]" {
		t.Errorf("after 0 and 5 hits more %s remain", got)
	}
	in.Descriptors[0].IsNegativeHits, in.Descriptors[1].IsNegativeHits = true, true
	in.Descriptors[0].HitsAddend = wrapperspb.UInt64(3)
	if got := fmt.Sprint(remaining(in)); got != "[99 6]" {
		t.Errorf("after 3 and 5 were given back %s remain", got)
	}
	in = asking("shop", "ip=b anything=x")
	for i, unit := range []typev3.RateLimitUnit{typev3.RateLimitUnit_DAY, typev3.RateLimitUnit_MONTH} {
		in.Descriptors[i].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 20, Unit: unit}
	}
	out := ask(t, to, in)
	if a, b := out.GetStatuses()[0], out.GetStatuses()[1]; a.GetLimitRemaining() != 19 || b.GetLimitRemaining() != 19 ||
		a.GetCurrentLimit().GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_DAY || b.GetCurrentLimit().GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_MONTH {
		t.Errorf("with limits of the request: %v", out)
	}
}

// Errors arrive with their codes.
func TestErrors(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	to := serve(t, rls.Config{Limiter: limiter(t, memstore.New(), text)})
	for _, c := range []struct {
		in   *ratelimitv3.RateLimitRequest
		want codes.Code
	}{
		{asking("", "user=a"), codes.InvalidArgument},
		{asking("shop", ""), codes.InvalidArgument},
		{asking("shop", strings.Repeat("user=a ip=b ", 20)), codes.OK}, // two limits, however often
		{asking("elsewhere", "user=a"), codes.OK},
	} {
		if _, err := to.ShouldRateLimit(t.Context(), c.in); status.Code(err) != c.want {
			t.Errorf("%v: %v, want %v", c.in, err, c.want)
		}
	}
}

// Rules are reloaded while requests come: no request fails, and no count is lost.
func TestReload(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const n = 500
	l := limiter(t, store(t, "redis://"+testserver.SharedRedis(t).Addr), "rules: []")
	version := func(i int) rules.Rules {
		r, err := rules.Parse("rules.yaml", fmt.Appendf(nil,
			"domain: reload\ndescriptors:\n- {key: kept, rate_limit: {unit: day, requests_per_unit: %d}}\n- {key: changed%d, rate_limit: {unit: day, requests_per_unit: %d}}\n", n, i%3, i+1))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := l.Reload(version(0)); err != nil {
		t.Fatal(err)
	}
	to := serve(t, rls.Config{Limiter: l})
	var allowed, refused, reloads atomic.Int64
	done, answered := make(chan struct{}), make(chan struct{}, 1)
	var reloading, clients sync.WaitGroup
	reloading.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-done:
				return
			case <-answered:
			}
			if err := l.Reload(version(i)); err != nil {
				t.Error(err)
				return
			}
			reloads.Add(1)
		}
	})
	for range 8 {
		clients.Go(func() {
			for refused.Load() < n || reloads.Load() < 100 {
				out, err := to.ShouldRateLimit(t.Context(), asking("reload", "kept=x changed0=x changed1=x"))
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case answered <- struct{}{}:
				default:
				}
				if said(out) == "refused" && out.GetStatuses()[0].GetCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
					refused.Add(1)
				} else if said(out) == "ok" {
					allowed.Add(1)
				}
			}
		})
	}
	clients.Wait()
	close(done)
	reloading.Wait()
	if allowed.Load() != n {
		t.Errorf("%d of %d were allowed, through %d reloads", allowed.Load(), n, reloads.Load())
	}
}
