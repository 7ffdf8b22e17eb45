package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/sqlitestore"
)

func main() {
	ctx := context.Background()
	store, err := sqlitestore.Open(ctx, "limits.db")
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(3, 10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	for range 5 {
		r, err := limiter.Allow(ctx, "mail/alice")
		if err != nil {
			log.Fatal(err)
		}
		if r.OK {
			fmt.Println("sent,", r.Remaining, "left")
		} else {
			fmt.Println("not sent: again in", r.RetryAfter.Round(time.Second))
		}
	}
}
