package observe_test

import (
	"context"
	"fmt"
	"log"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/store/memstore"
)

// Each request to the store is told, with the time that it took.
func Example() {
	store := observe.Store(memstore.New(), observe.Events{
		Request: func(_ context.Context, e observe.RequestEvent) {
			fmt.Println(e.Store, e.Operation, e.Err)
		},
	})
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := locks.TryLock(context.Background(), "report")
	if err != nil {
		log.Fatal(err)
	}
	if err := lease.Unlock(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// memory acquire <nil>
	// memory release <nil>
}
