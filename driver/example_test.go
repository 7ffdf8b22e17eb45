package driver_test

import (
	"context"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// What a store can do beyond locks is asked by As, which looks through wrappers.
func ExampleAs() {
	store := memstore.New()
	defer store.Close()
	if inspector, ok := driver.As[driver.Inspector](store); ok {
		info, err := inspector.Inspect(context.Background(), "order/42")
		fmt.Println(len(info.Holders), err)
	}
	// Output: 0 <nil>
}
