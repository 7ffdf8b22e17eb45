package open_test

import (
	"context"
	"fmt"
	"log"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/open"
)

// A store that the configuration of the program names.
func Example() {
	ctx := context.Background()
	store, err := open.Store(ctx, "memory:") // or redis://redis1:6379, postgres://app@db1/app, …
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := locks.TryLock(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock()
	fmt.Println(lease.Key())
	// Output: report
}

// What a log may say of a store.
func ExampleRedact() {
	fmt.Println(open.Redact("postgres://app:secret@db1/app?sslmode=require"))
	// Output: postgres://***@db1/app?sslmode=require
}
