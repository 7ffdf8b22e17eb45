package ratelimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

func ExampleLimiter_Allow() {
	limiter, err := ratelimit.New(memstore.New(), ratelimit.SlidingWindow(2, time.Hour))
	if err != nil {
		panic(err)
	}
	for range 3 {
		r, err := limiter.Allow(context.Background(), "user/42")
		if err != nil {
			panic(err) // the store could not be asked
		}
		fmt.Println(r.OK, r.Remaining)
	}
	// Output:
	// true 1
	// true 0
	// false 0
}

func ExampleLimiter_Allowed() {
	limiter, err := ratelimit.New(memstore.New(), ratelimit.TokenBucket(1, time.Hour, 2))
	if err != nil {
		panic(err)
	}
	for range 3 {
		ok, err := limiter.Allowed(context.Background(), "log/disk is full")
		if err != nil {
			panic(err)
		}
		fmt.Println(ok)
	}
	// Output:
	// true
	// true
	// false
}

// A stricter limit is tried beside the one in force.
func ExampleLimit_Shadow() {
	limiter, err := ratelimit.New(memstore.New(),
		ratelimit.SlidingWindow(3, time.Hour).Named("now").Warn(0.6),
		ratelimit.SlidingWindow(1, time.Hour).Named("soon").Shadow())
	if err != nil {
		panic(err)
	}
	for range 4 {
		r, err := limiter.Allow(context.Background(), "user/42")
		if err != nil {
			panic(err)
		}
		fmt.Println("allowed:", r.OK, "near:", r.Near, "would be refused:", r.WouldRefuse)
	}
	// Output:
	// allowed: true near: false would be refused: false
	// allowed: true near: true would be refused: true
	// allowed: true near: true would be refused: true
	// allowed: false near: true would be refused: true
}

// The cost of a request to a model is known when it is over.
func ExampleLimiter_Reserve() {
	limiter, err := ratelimit.New(memstore.New(),
		ratelimit.SlidingWindow(60, time.Minute).Named("requests").PerCall(),
		ratelimit.TokenBucket(100_000, time.Minute, 20_000).Named("tokens"))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	r, err := limiter.Reserve(ctx, "tenant/7", 8000) // the most that it can cost
	if err != nil || !r.Result.OK {
		panic("later")
	}
	used := int64(1500)
	if err := r.Commit(ctx, used); err != nil {
		panic(err)
	}
	fmt.Println("settled")
	// Output: settled
}
