package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/internal/testserver"
)

// redlockNodes is the number of Redis servers for a quorum.
const redlockNodes = 5

var redlockRivals = slices.Concat([]rival{
	{
		name:  "raw",
		about: "the bare exchange with one of the five servers, on rueidis: SET key id NX PX, then a script that compares and deletes; no quorum, no token",
		open: func(e *env, goroutines int) (*room, error) {
			return openRaw(&env{at: map[string][]string{"redis": e.at["redlock"][:1]}}, goroutines)
		},
	},
	{
		name:  "redsync",
		about: "redsync on go-redis over the five servers, its own delay between two attempts (50 to 250 ms, at random), as many attempts as it takes; no renewal, no token",
		open:  openRedsync5(),
	},
	{
		name:  "redsync-1ms",
		about: "the same with a delay of 1 ms",
		open:  openRedsync5(redsync.WithRetryDelay(time.Millisecond)),
	},
}, batonRivals("redlock", redlockURL))

// redlockURL says that the servers are durable: otherwise they would not vote for a while
// after their start. They do not restart here.
func redlockURL(e *env) string {
	return "redlock://" + strings.Join(e.at["redlock"], ",") + "?durable=true"
}

func openRedsync5(options ...redsync.Option) func(*env, int) (*room, error) {
	options = append(options, redsync.WithExpiry(ttl), redsync.WithTries(1_000_000))
	return func(e *env, _ int) (*room, error) {
		var clients []*redis.Client
		var pools []redsyncredis.Pool
		for _, addr := range e.at["redlock"] {
			c := redis.NewClient(&redis.Options{Addr: addr})
			clients = append(clients, c)
			pools = append(pools, goredis.NewPool(c))
		}
		sync := redsync.New(pools...)
		return &room{
			seat: func(int) seat {
				var held *redsync.Mutex
				return &pairSeat{
					lock: func(ctx context.Context, key string) error {
						held = sync.NewMutex(key, options...)
						return held.LockContext(ctx)
					},
					unlock: func(context.Context, string) error { return redsyncHeld{held}.Unlock() },
				}
			},
			close: func() {
				for _, c := range clients {
					_ = c.Close() // nothing is under way
				}
			},
		}, nil
	}
}

func startRedlock(t testserver.TB, e *env) error {
	v := new(server)
	for range redlockNodes {
		s := testserver.Redis(t)
		v.addrs, v.pids = append(v.addrs, s.Addr), append(v.pids, s.Pid())
		if v.about == "" {
			info, err := s.Do("INFO", "server")
			if err != nil {
				return err
			}
			v.about = fmt.Sprintf("Redlock on %d times redis-server %s without persistence", redlockNodes, textAfter(info, "redis_version:"))
		}
	}
	e.runs("redlock", v)
	return nil
}
