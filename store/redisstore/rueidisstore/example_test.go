package rueidisstore_test

import (
	"context"
	"log"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redisstore/rueidisstore"
)

// Locks over the client that the program has.
func Example() {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"redis1:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	store, err := rueidisstore.New(client, redisstore.Config{})
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
