package envoytest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	envoy "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/server/rls"
)

var measure = flag.Duration("measure", 50*time.Millisecond, "how long TestMeasure puts each load on each service, three times")

// counting is the design of envoyproxy/ratelimit, for comparison: a counter for each
// descriptor and window, raised by INCRBY and given an EXPIRE in one pipeline; of several
// descriptors the counters are read before, in another pipeline. It looks up no rules.
type counting struct {
	envoy.UnimplementedRateLimitServiceServer
	redis *redis.Client
	limit uint32
}

func (c *counting) ShouldRateLimit(ctx context.Context, in *envoy.RateLimitRequest) (*envoy.RateLimitResponse, error) {
	hits := max(1, in.GetHitsAddend())
	window := time.Now().Unix() / 3600 * 3600
	keys := make([]string, len(in.GetDescriptors()))
	for i, d := range in.GetDescriptors() {
		var b strings.Builder
		b.WriteString(in.GetDomain())
		for _, e := range d.GetEntries() {
			b.WriteString("_" + e.GetKey() + "_" + e.GetValue())
		}
		keys[i] = fmt.Sprintf("%s_%d", b.String(), window)
	}
	if len(keys) > 1 {
		_, err := c.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				p.Get(ctx, key)
			}
			return nil
		})
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
	}
	counts := make([]*redis.IntCmd, len(keys))
	_, err := c.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			counts[i] = p.IncrBy(ctx, key, int64(hits))
			p.Expire(ctx, key, time.Hour)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := &envoy.RateLimitResponse{OverallCode: envoy.RateLimitResponse_OK}
	for _, n := range counts {
		status := &envoy.RateLimitResponse_DescriptorStatus{
			Code:         envoy.RateLimitResponse_OK,
			CurrentLimit: &envoy.RateLimitResponse_RateLimit{RequestsPerUnit: c.limit, Unit: envoy.RateLimitResponse_RateLimit_HOUR},
		}
		if left := int64(c.limit) - n.Val(); left >= 0 {
			status.LimitRemaining = uint32(left)
		} else {
			status.Code, out.OverallCode = envoy.RateLimitResponse_OVER_LIMIT, envoy.RateLimitResponse_OVER_LIMIT
		}
		out.Statuses = append(out.Statuses, status)
	}
	return out, nil
}

// TestMeasure compares the time of a request with that of the design of
// envoyproxy/ratelimit, on one Redis, with Envoy's client. It fails only if one of them
// does not answer; for figures, give it -measure 5s and -v.
func TestMeasure(t *testing.T) {
	const limit = 1_000_000_000
	server := testserver.Redis(t)
	text := fmt.Sprintf("domain: d\non_failure: {mode: local, instances: 1}\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: %d}}\n- {key: path, rate_limit: {unit: hour, requests_per_unit: %[1]d}}\n", limit)
	baton := serve(t, rls.Config{Limiter: limiter(t, store(t, "redis://"+server.Addr), text)})

	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pool := redis.NewClient(&redis.Options{Addr: server.Addr, PoolSize: 10}) // the number of envoyproxy/ratelimit
	defer pool.Close()
	plain := grpc.NewServer()
	envoy.RegisterRateLimitServiceServer(plain, &counting{redis: pool, limit: limit})
	go func() { _ = plain.Serve(at) }() // it ends with Stop
	defer plain.Stop()
	design := client(t, at.Addr().String())

	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("load %s", load)
	for _, clients := range []int{1, 16} {
		for _, describe := range []string{"user=%d", "user=%d path=/x%[1]d"} {
			var took [2][]time.Duration
			for range 3 {
				for i, to := range []envoy.RateLimitServiceClient{baton, design} {
					took[i] = append(took[i], requests(t, to, describe, clients)...)
				}
			}
			for i, name := range []string{"baton", "INCRBY, EXPIRE"} {
				slices.Sort(took[i])
				n := len(took[i])
				t.Logf("%2d clients, %d descriptors, %-14s p50 %8v  p99 %8v  %6.0f/s", clients, 1+strings.Count(describe, " "), name,
					took[i][n/2].Round(time.Microsecond), took[i][n*99/100].Round(time.Microsecond), float64(n)/(3*measure.Seconds()))
			}
		}
	}
}

// requests asks for a while, about a hundred users, and returns how long each request
// took.
func requests(t *testing.T, to envoy.RateLimitServiceClient, describe string, clients int) (all []time.Duration) {
	t.Helper()
	end := time.Now().Add(*measure)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			var took []time.Duration
			for i := 0; i == 0 || time.Now().Before(end); i++ {
				in := asking("d", fmt.Sprintf(describe, (c*7+i)%100))
				start := time.Now()
				out, err := to.ShouldRateLimit(t.Context(), in)
				took = append(took, time.Since(start))
				if err != nil || said(out) != "ok" {
					t.Errorf("%v, %v", out, err)
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	return all
}
