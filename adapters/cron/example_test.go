package batoncron_test

import (
	"context"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/batonhq/baton"
	batoncron "github.com/batonhq/baton/adapters/cron"
	"github.com/batonhq/baton/store/memstore"
)

// Every program has the job; each tick runs in one of them.
func Example() {
	locks, err := baton.New(memstore.New(), baton.Config{}) // a store that all programs share
	if err != nil {
		panic(err)
	}
	once := &batoncron.Wrapper{Locks: locks, Prefix: "jobs/", Hold: 500 * time.Millisecond}
	c := cron.New(cron.WithSeconds())
	ran := make(chan bool)
	_, err = c.AddJob("* * * * * *", once.Job("report", func(ctx context.Context, lease *baton.Lease) {
		ran <- ctx.Err() == nil && lease.Token() > 0 // ctx ends if the lock is lost
	}))
	if err != nil {
		panic(err)
	}
	c.Start()
	fmt.Println(<-ran)
	c.Stop()
	// Output: true
}
