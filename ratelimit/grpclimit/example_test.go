package grpclimit_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/grpclimit"
	"github.com/batonhq/baton/store/memstore"
)

// Each API key has a quota for each method, and who has none shares that of his
// address. In front stands a proxy in 10.0.0.0/8. Health checks are free.
func ExampleNew() {
	limiter, err := ratelimit.New(memstore.New(), ratelimit.SlidingWindow(100, time.Minute).Named("api"), ratelimit.FailOpen(50*time.Millisecond))
	if err != nil {
		panic(err)
	}
	limit, err := grpclimit.New(limiter,
		grpclimit.By(grpclimit.Join(grpclimit.Method(), grpclimit.SecretMetadata("x-api-key"))),
		grpclimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.0.0/8")),
		grpclimit.Skip(func(_ context.Context, method string) bool { return strings.HasPrefix(method, "/grpc.health.") }))
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
	defer server.Stop()
	fmt.Println("limited")
	// Output: limited
}
