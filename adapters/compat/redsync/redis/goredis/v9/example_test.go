package goredis_test

import (
	"fmt"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/adapters/compat/redsync"
	"github.com/batonhq/baton/adapters/compat/redsync/redis"
	"github.com/batonhq/baton/adapters/compat/redsync/redis/goredis/v9"
)

// Locks on a majority of three servers.
func ExampleNewPool() {
	var pools []redis.Pool
	for _, addr := range []string{"redis1:6379", "redis2:6379", "redis3:6379"} {
		pools = append(pools, goredis.NewPool(goredislib.NewClient(&goredislib.Options{Addr: addr})))
	}
	mutex := redsync.New(pools...).NewMutex("invoice/42")
	fmt.Println(mutex.Name())
	// Output: invoice/42
}
