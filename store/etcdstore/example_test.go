package etcdstore_test

import (
	"context"
	"log"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/etcdstore"
)

// A store with a client of its own, whose keys begin with a prefix.
func Example() {
	ctx := context.Background()
	store, err := etcdstore.Open(ctx, etcdstore.Server{Endpoints: []string{"etcd1:2379", "etcd2:2379", "etcd3:2379"}}, etcdstore.Config{Prefix: "baton"})
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
