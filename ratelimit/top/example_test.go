package top_test

import (
	"context"
	"fmt"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/top"
	"github.com/batonhq/baton/store/memstore"
)

func Example() {
	hot := top.New(top.Config{})
	limiter, err := ratelimit.New(memstore.New(), ratelimit.SlidingWindow(2, time.Hour), ratelimit.Observe(hot.Events()))
	if err != nil {
		panic(err)
	}
	for _, user := range []string{"amy", "bob", "bob", "bob", "bob", "eve"} {
		if _, err := limiter.Allow(context.Background(), user); err != nil {
			panic(err)
		}
	}
	for _, c := range hot.Report(1).Present.Refusals.Keys {
		fmt.Println(c.Key, c.Count)
	}
	// Output: bob 2
}
