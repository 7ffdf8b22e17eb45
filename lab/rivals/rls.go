package main

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	ratelimitcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit/rules"
	batonserver "github.com/batonhq/baton/server"
	"github.com/batonhq/baton/server/rls"
)

var _ = gzip.Name // the client's requests say that answers may be compressed, like those of a proxy with gzip

// rlsRules are the rules for the proxy's requests: limitN requests a second.
const rlsRules = `
domain: bench
on_failure: {mode: local, instances: 1, after: 500ms}
descriptors:
- {key: user, rate_limit: {unit: second, requests_per_unit: 1000000}}
`

// startRLS and startIncr start Envoy's rate limit service, Baton's and the design of
// envoyproxy/ratelimit, over Redis, each in a process of its own.
func startRLS(t testserver.TB, e *env) error  { return startTCP(t, e, "rls") }
func startIncr(t testserver.TB, e *env) error { return startTCP(t, e, "rls-incr") }

// childRLS runs Baton's service.
func childRLS(ctx context.Context, order childOrder, ready func() error) error {
	store, end, err := (&env{at: order.At}).redisStore()
	if err != nil {
		return err
	}
	defer end()
	all, err := rules.Parse("bench.yaml", []byte(rlsRules))
	if err != nil {
		return err
	}
	limiter, err := rules.New(store, all)
	if err != nil {
		return err
	}
	return serveDoor(ctx, order.Socket, batonserver.Config{Store: store, Limits: limiter}, func(s *batonserver.Server) http.Handler {
		may := func(ctx context.Context, domain string, gives bool) error { return s.MayTake(ctx, domain+"/", gives) }
		_, handler := rls.New(rls.Config{Limiter: limiter, May: may, Within: time.Second}) // or the server decides alone when 64 ask
		return s.Guard(handler)
	}, ready)
}

// childIncr runs the other service: the commands that envoyproxy/ratelimit sends, over
// grpc-go as there.
func childIncr(ctx context.Context, order childOrder, ready func() error) error {
	l, err := net.Listen("tcp", order.Socket)
	if err != nil {
		return err
	}
	c := redis.NewClient(&redis.Options{Addr: order.At["redis"][0]})
	defer c.Close()
	s := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(s, incrService{client: c})
	var ended sync.WaitGroup
	ended.Go(func() { _ = s.Serve(l) })
	defer ended.Wait()
	defer s.Stop()
	if err := ready(); err != nil && ctx.Err() == nil {
		return err
	}
	<-ctx.Done()
	return nil
}

type incrService struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	client *redis.Client
}

func (s incrService) ShouldRateLimit(ctx context.Context, in *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	out := &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK}
	for _, d := range in.GetDescriptors() {
		key := in.GetDomain()
		for _, e := range d.GetEntries() {
			key += "_" + e.GetKey() + "_" + e.GetValue()
		}
		p := s.client.Pipeline()
		n := p.IncrBy(ctx, key, 1)
		p.Expire(ctx, key, limitEvery)
		if _, err := p.Exec(ctx); err != nil {
			return nil, err
		}
		status := &ratelimitv3.RateLimitResponse_DescriptorStatus{
			Code:           ratelimitv3.RateLimitResponse_OK,
			CurrentLimit:   &ratelimitv3.RateLimitResponse_RateLimit{RequestsPerUnit: limitN, Unit: ratelimitv3.RateLimitResponse_RateLimit_SECOND},
			LimitRemaining: uint32(max(limitN-n.Val(), 0)),
		}
		if n.Val() > limitN {
			status.Code, out.OverallCode = ratelimitv3.RateLimitResponse_OVER_LIMIT, ratelimitv3.RateLimitResponse_OVER_LIMIT
		}
		out.Statuses = append(out.Statuses, status)
	}
	return out, nil
}

// openRLS asks such a service by grpc-go, with one connection for all goroutines, as a proxy
// does.
func openRLS(system string) func(*env, int) (*room, error) {
	return func(e *env, _ int) (*room, error) {
		conn, err := grpc.NewClient(e.at[system][0], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		c := ratelimitv3.NewRateLimitServiceClient(conn)
		return &room{seat: common(deciding(func(ctx context.Context, key string) (bool, error) {
			out, err := c.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{
				Domain:      "bench",
				Descriptors: []*ratelimitcommon.RateLimitDescriptor{{Entries: []*ratelimitcommon.RateLimitDescriptor_Entry{{Key: "user", Value: key}}}},
			})
			return out.GetOverallCode() == ratelimitv3.RateLimitResponse_OK, err
		})), close: func() { _ = conn.Close() }}, nil
	}
}
