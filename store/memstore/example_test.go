package memstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/memstore"
)

// Locks of the goroutines of one process, and of tests.
func Example() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := locks.Lock(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(lease.Key(), lease.Token() > 0)
	if err := lease.Unlock(); err != nil {
		log.Fatal(err)
	}
	// Output: report true
}
