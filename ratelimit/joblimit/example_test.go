package joblimit_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/ratelimit/joblimit"
	"github.com/batonhq/baton/store/memstore"
)

// A job of a key whose permit is taken goes back, and so does not run.
func ExampleLimit_Run() {
	locks, err := baton.New(memstore.New(), baton.Config{}) // a store that all workers share
	if err != nil {
		panic(err)
	}
	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: 1})
	if err != nil {
		panic(err)
	}
	err = limit.Run(context.Background(), "tenant/42", func(ctx context.Context) error {
		second := limit.Run(context.Background(), "tenant/42", func(context.Context) error {
			fmt.Println("never reached")
			return nil
		})
		var back *joblimit.BackError
		fmt.Println(errors.As(second, &back), back.After > 0)
		return nil
	})
	fmt.Println(err)
	// Output:
	// true true
	// <nil>
}
