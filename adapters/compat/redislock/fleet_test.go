//go:build unix

package redislock_test

import (
	"context"
	"os"
	"testing"
	"time"

	original "github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/compat/redislock"
	"github.com/batonhq/baton/internal/compattest"
	"github.com/batonhq/baton/internal/testserver"
)

func dial(addrs []string) *redis.Client { return redis.NewClient(&redis.Options{Addr: addrs[0]}) }

// long is a context with a deadline, without which Obtain waits for the TTL.
func long(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Hour)
}

var kinds = map[string]compattest.Kind{
	"original": func(addrs []string, key string) (compattest.Lock, error) {
		c := original.New(dial(addrs))
		return func(ctx context.Context) (func() error, error) {
			ctx, cancel := long(ctx)
			defer cancel()
			l, err := c.Obtain(ctx, key, compattest.TTL, &original.Options{RetryStrategy: original.LinearBackoff(2 * time.Millisecond)})
			return func() error { return l.Release(context.Background()) }, err
		}, nil
	},
	"compat": func(addrs []string, key string) (compattest.Lock, error) {
		c := redislock.New(dial(addrs))
		return func(ctx context.Context) (func() error, error) {
			ctx, cancel := long(ctx)
			defer cancel()
			l, err := c.Obtain(ctx, key, compattest.TTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(2 * time.Millisecond)})
			return func() error { return l.Release(context.Background()) }, err
		}, nil
	},
	"baton": func(addrs []string, key string) (compattest.Lock, error) {
		store, err := redislock.New(dial(addrs)).Store()
		if err != nil {
			return nil, err
		}
		locks, err := baton.New(store, baton.Config{TTL: compattest.TTL})
		return func(ctx context.Context) (func() error, error) {
			lease, err := locks.Lock(ctx, key)
			return func() error { return lease.Unlock() }, err
		}, err
	},
}

func TestMain(m *testing.M) {
	compattest.Main(kinds)
	os.Exit(m.Run())
}

// Programs of the original, of this package and of Baton keep the exclusion while they are
// killed. That Fleet notices a kind that does not is shown beside package redsync.
func TestFleet(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	for _, wrong := range compattest.Fleet(t, []string{"original", "compat", "baton"}, []string{testserver.SharedRedis(t).Addr}, *compattest.Kills) {
		t.Error(wrong)
	}
}
