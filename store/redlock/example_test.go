package redlock_test

import (
	"context"
	"log"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redlock"
)

// Locks that a majority of three independent servers grants.
func Example() {
	ctx := context.Background()
	var nodes []redlock.Node
	for _, addr := range []string{"redis1:6379", "redis2:6379", "redis3:6379"} {
		nodes = append(nodes, redlock.Node{Name: addr, Open: func(ctx context.Context) (redlock.OpenMember, error) {
			return redisstore.Open(ctx, redisstore.Server{Addrs: []string{addr}}, redisstore.Config{})
		}})
	}
	store, err := redlock.Open(ctx, nodes, redlock.Config{})
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
