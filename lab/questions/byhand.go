package questions

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
)

// setNX is the lock that people write by hand: SET key value NX PX ttl.
func setNX(server *testserver.RedisServer, key, value string, ttl time.Duration) (taken bool, err error) {
	answer, err := server.Do("SET", key, value, "NX", "PX", strconv.FormatInt(ttl.Milliseconds(), 10))
	return answer == "OK", err
}

// compareAndDelete is the script by which people release such a lock.
const compareAndDelete = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`

// takeByHand polls until it has the lock.
func takeByHand(ctx context.Context, try func() (bool, error)) error {
	for {
		if taken, err := try(); err != nil || taken {
			return err
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// granted is a table's cell for the answer to a request for a lock.
func granted(yes bool) lab.Text {
	if yes {
		return text("granted", "获得")
	}
	return text("refused", "被拒绝")
}

// guardOn is the guard of values on a Redis server.
func guardOn(server *testserver.RedisServer) guard.Redis {
	return func(_ context.Context, script string, keys, args []string) (any, error) {
		answer, err := server.Do(slices.Concat([]string{"EVAL", script, strconv.Itoa(len(keys))}, keys, args)...)
		var list []any
		for line := range strings.SplitSeq(answer, "\n") {
			list = append(list, line)
		}
		return list, err
	}
}
