package baton_test

import (
	"context"
	"fmt"
	"log"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/memstore"
)

// A transfer needs both accounts. Another one in the opposite direction waits
// for this one, and never in a circle with it.
func ExampleLocker_LockAll() {
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	transfer := func(ctx context.Context, from, to string) error {
		both, err := locks.LockAll(ctx, []string{from, to})
		if err != nil {
			return err
		}
		ctx = both.Context(ctx) // ends if one of the two is lost; the cause names it
		// Each account gets the token of its own key, and refuses a lower one.
		fmt.Println("from", from, both.Token(from) > 0, "to", to, both.Token(to) > 0, ctx.Err())
		return both.Unlock()
	}
	for _, err := range []error{
		transfer(context.Background(), "account/7", "account/3"),
		transfer(context.Background(), "account/3", "account/7"),
	} {
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// from account/7 true to account/3 true <nil>
	// from account/3 true to account/7 true <nil>
}
