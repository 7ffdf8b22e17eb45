package zkstore_test

import (
	"context"
	"log"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/zkstore"
)

// A store with a session of its own. A process that dies keeps its locks until the session
// has timed out.
func Example() {
	ctx := context.Background()
	server := zkstore.Server{Addrs: []string{"zk1:2181", "zk2:2181", "zk3:2181"}, Session: 20 * time.Second}
	store, err := zkstore.Open(ctx, server, zkstore.Config{Root: "/locks"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{TTL: 10 * time.Second}) // half of the session at most
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
