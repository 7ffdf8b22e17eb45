package goredis_test

import (
	"context"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redisstore/goredis"
)

// Locks over the client that the program has.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "redis1:6379"})
	defer client.Close()
	store, err := goredis.New(client, redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close() // not of the client
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Do(context.Background(), "invoice/42", func(ctx context.Context, lease *baton.Lease) error {
		return nil // the work, which ends when ctx does
	})
	if err != nil {
		log.Fatal(err)
	}
}
