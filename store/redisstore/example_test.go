package redisstore_test

import (
	"context"
	"log"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/redisstore"
)

// A store with connections of its own. A program that has a client gives it to New.
func Example() {
	ctx := context.Background()
	store, err := redisstore.Open(ctx, redisstore.Server{Addrs: []string{"redis1:6379"}}, redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Do(ctx, "invoice/42", func(ctx context.Context, lease *baton.Lease) error {
		return nil // the work, which ends when ctx does
	})
	if err != nil {
		log.Fatal(err)
	}
}
