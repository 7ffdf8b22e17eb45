package redis_test

import (
	"fmt"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/adapters/compat/redsync"
	"github.com/batonhq/baton/adapters/compat/redsync/redis"
	"github.com/batonhq/baton/store/redisstore"
)

// prefixed is a pool whose locks have a prefix on the server.
type prefixed struct{ client goredislib.UniversalClient }

func (p prefixed) Store() (*redisstore.Store, error) {
	return redisstore.New(p.client, redisstore.Config{Prefix: "app:"})
}

// A pool of your own, with settings of the store. To the original library the lock is
// "app:invoice/42".
func ExamplePool() {
	var pool redis.Pool = prefixed{goredislib.NewClient(&goredislib.Options{Addr: "redis1:6379"})}
	mutex := redsync.New(pool).NewMutex("invoice/42")
	fmt.Println(mutex.Name())
	// Output: invoice/42
}
