package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/sqlitestore"
)

func main() {
	ctx := context.Background()
	store, err := sqlitestore.Open(ctx, "locks.db") // a file for the processes of one machine
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Do(ctx, "report", func(ctx context.Context, lease *baton.Lease) error {
		fmt.Println("working, with token", lease.Token())
		select {
		case <-time.After(time.Second): // the work
			return nil
		case <-ctx.Done(): // the lease was lost: stop
			return context.Cause(ctx)
		}
	})
	if err != nil {
		log.Fatal(err)
	}
}
