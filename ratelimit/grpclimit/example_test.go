package grpclimit_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/grpclimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// Each user has a quota for each method, and an unknown caller shares that of its
// address. Authentication, which runs before, has put the user into the call's
// context; a name that the caller only claims would be no limit. The proxy is in
// 10.0.3.0/28, and nothing else is. Health checks are free.
func ExampleNew() {
	type userKey struct{}
	user := func(ctx context.Context, _ string) string {
		name, _ := ctx.Value(userKey{}).(string)
		return name
	}
	limiter, err := ratelimit.New(memstore.New(), ratelimit.SlidingWindow(100, time.Minute).Named("api"), ratelimit.FailOpen(50*time.Millisecond))
	if err != nil {
		panic(err)
	}
	limit, err := grpclimit.New(limiter,
		grpclimit.By(grpclimit.Join(grpclimit.Method(), grpclimit.Func("user", user))),
		grpclimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.3.0/28")),
		grpclimit.OnFallback(func(_ context.Context, _ string, r ratelimit.Result) {
			fmt.Println("not limited by the store:", r.By)
		}),
		grpclimit.Skip(func(_ context.Context, method string) bool { return strings.HasPrefix(method, "/grpc.health.") }))
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
	defer server.Stop()
	fmt.Println("limited")
	// Output: limited
}

// A rule with tiers decides. Authentication, which runs before, has put the user and its
// tier into the call's context.
func ExampleNewFunc() {
	type userKey struct{}
	type user struct{ name, tier string }
	all, err := rules.Parse("rules.yaml", []byte(`
rules:
  - name: api
    requests: 1
    period: 24h
    tiers:
      pro: {requests: 1000}
`))
	if err != nil {
		panic(err)
	}
	limiter, err := rules.New(memstore.New(), all)
	if err != nil {
		panic(err)
	}
	limit, err := grpclimit.NewFunc(func(ctx context.Context, c grpclimit.Call) (ratelimit.Result, error) {
		r := rules.Request{Rule: "api", Key: "address/" + c.Client}
		if u, ok := ctx.Value(userKey{}).(user); ok {
			r.Key, r.Tier = "user/"+u.name, u.tier
		}
		d, err := limiter.Allow(ctx, r)
		return d.Result, err
	})
	if err != nil {
		panic(err)
	}
	for _, u := range []user{{"alice", "pro"}, {"bob", ""}, {"bob", ""}} {
		ctx := context.WithValue(context.Background(), userKey{}, u)
		_, err := limit.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Place"}, func(context.Context, any) (any, error) { return nil, nil })
		fmt.Println(u.name, status.Code(err))
	}
	// Output:
	// alice OK
	// bob OK
	// bob ResourceExhausted
}
