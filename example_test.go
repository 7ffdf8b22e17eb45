package baton_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/memstore"
)

// A transfer needs both accounts. A transfer in the opposite direction waits for
// it, and never in a circle with it.
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

// One process accepts a request and another one finishes it. The lease, with its
// token, moves from the first to the second.
func ExampleLease_Detach() {
	ctx := context.Background()
	store := memstore.New()
	accept, err := baton.New(store, baton.Config{Owner: "front"})
	if err != nil {
		log.Fatal(err)
	}
	finish, err := baton.New(store, baton.Config{Owner: "worker"})
	if err != nil {
		log.Fatal(err)
	}

	first, err := accept.Lock(ctx, "order/42")
	if err != nil {
		log.Fatal(err)
	}
	work := first.Context(ctx)
	handle, err := first.Detach() // send it over a private channel: a program that has it has the lock
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(context.Cause(work) != nil) // the first process has stopped believing

	second, err := finish.Attach(ctx, handle)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(second.Token() == first.Token(), second.Err())
	_, err = accept.Attach(ctx, handle) // a handle can be attached once
	fmt.Println(errors.Is(err, baton.ErrLost))
	if err := second.Unlock(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// true
	// true <nil>
	// true
}
