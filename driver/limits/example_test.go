package limits_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/store/memstore"
)

// What package ratelimit asks a store: to take one of two in a minute, if that is allowed.
func Example() {
	var store limits.Store = memstore.New()
	request := limits.Request{
		ID: driver.NewID(), Keep: limits.ReplayTTL, // it counts once, even if it is sent twice
		Takes: []limits.Take{{
			Key: "mail/alice", Cost: 1,
			Limit: limits.Limit{Algorithm: limits.FixedWindow, N: 2, Period: time.Minute},
		}},
	}
	taken, err := store.Take(context.Background(), request)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(taken.OK)
	// Output: true
}
