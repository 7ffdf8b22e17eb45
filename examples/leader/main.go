package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/store/sqlitestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store, err := sqlitestore.Open(ctx, "leader.db") // on several machines: a store that they share
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{TTL: 3 * time.Second}) // how long nobody leads after a crash
	if err != nil {
		log.Fatal(err)
	}
	err = election.Run(ctx, locks, "scheduler", func(ctx context.Context, l *election.Leadership) error {
		fmt.Println("I lead, with token", l.Token())
		for ctx.Err() == nil { // ends with the leadership, before another can have it
			time.Sleep(100 * time.Millisecond) // the work
		}
		return ctx.Err() // queue again
	})
	if ctx.Err() == nil {
		log.Fatal(err)
	}
}
