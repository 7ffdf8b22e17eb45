package redislock_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/adapters/compat/redislock" // was github.com/bsm/redislock
)

func Example() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "redis1:6379"})
	defer client.Close()

	lock, err := redislock.New(client).Obtain(ctx, "invoice/42", time.Minute, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return // another process does it
	}
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)
	// The work, for a minute at most, or until the next Refresh.
}
