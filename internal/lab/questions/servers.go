package questions

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/lab"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

// startRedis starts a server that keeps nothing on disk, and names it in the record.
func startRedis(r *lab.Run, args ...string) *testserver.RedisServer {
	s := testserver.Redis(r.Site, args...)
	info, err := s.Do("INFO", "server")
	if err != nil {
		r.Site.Fatalf("ask Redis for its version: %v", err)
	}
	r.With("redis-server " + redisVersion.FindStringSubmatch(info + "redis_version:?")[1])
	return s
}

var redisVersion = regexp.MustCompile(`redis_version:(\S+)`)

// setNX is the lock that people write by hand: SET key value NX PX ttl.
func setNX(server *testserver.RedisServer, key, value string, ttl time.Duration) (taken bool, err error) {
	answer, err := server.Do("SET", key, value, "NX", "PX", strconv.FormatInt(ttl.Milliseconds(), 10))
	return answer == "OK", err
}

// compareAndDelete is the script by which people release such a lock.
const compareAndDelete = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`

// guardOn is the guard of what lies on a Redis server.
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

// lockerAt opens a store, and makes a Locker of it, as one program would. Both end with the
// experiment, or by crash: then nothing is released, and nothing is renewed any more.
func lockerAt(ctx context.Context, r *lab.Run, url string, cfg baton.Config) (locks *baton.Locker, crash func(), err error) {
	store, err := open.Store(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	closed := make(chan struct{})
	crash = func() {
		select {
		case <-closed:
		default:
			close(closed)
			_ = store.Close()
		}
	}
	r.Site.Cleanup(crash)
	var d driver.Store = store
	locks, err = baton.New(d, cfg)
	return locks, crash, err
}

// unexpected is the error of an experiment that did not see what its answer says.
func unexpected(format string, args ...any) error {
	return fmt.Errorf("this was not expected: "+format, args...)
}

// wait waits for a time that belongs to the experiment.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
