package redsync_test

import (
	"log"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/adapters/compat/redsync"                  // was github.com/go-redsync/redsync/v4
	"github.com/batonhq/baton/adapters/compat/redsync/redis/goredis/v9" // was github.com/go-redsync/redsync/v4/redis/goredis/v9
)

func Example() {
	client := goredislib.NewClient(&goredislib.Options{Addr: "redis1:6379"})
	defer client.Close()

	mutex := redsync.New(goredis.NewPool(client)).NewMutex("invoice/42")
	if err := mutex.Lock(); err != nil {
		log.Fatal(err)
	}
	// The work, until mutex.Until(), or until the next Extend.
	if ok, err := mutex.Unlock(); !ok || err != nil {
		log.Fatal(err)
	}
}
