//go:build unix

package redsync_test

import (
	"context"
	"os"
	"testing"
	"time"

	original "github.com/go-redsync/redsync/v4"
	originalpool "github.com/go-redsync/redsync/v4/redis"
	originalgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/compat/redsync"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/compattest"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redlock"
)

// store is on one server, or on several that vote although they have just been started.
func store(ctx context.Context, addrs []string) (driver.Locks, error) {
	open := func(ctx context.Context, addr string) (*redisstore.Store, error) {
		return redisstore.Open(ctx, redisstore.Server{Addrs: []string{addr}}, redisstore.Config{})
	}
	if len(addrs) == 1 {
		return open(ctx, addrs[0])
	}
	var nodes []redlock.Node
	for _, addr := range addrs {
		nodes = append(nodes, redlock.Node{Name: addr, Open: func(ctx context.Context) (redlock.OpenMember, error) { return open(ctx, addr) }})
	}
	return redlock.Open(ctx, nodes, redlock.Config{Durable: true})
}

func compat(addrs []string, key string) (compattest.Lock, error) {
	s, err := store(context.Background(), addrs)
	if err != nil {
		return nil, err
	}
	m := redsync.Over(s).NewMutex(key, redsync.WithExpiry(compattest.TTL), redsync.WithTries(1_000_000), redsync.WithRetryDelay(2*time.Millisecond))
	return func(ctx context.Context) (func() error, error) {
		return func() error { _, err := m.Unlock(); return err }, m.LockContext(ctx)
	}, nil
}

var kinds = map[string]compattest.Kind{
	"original": func(addrs []string, key string) (compattest.Lock, error) {
		var pools []originalpool.Pool
		for _, addr := range addrs {
			pools = append(pools, originalgoredis.NewPool(goredislib.NewClient(&goredislib.Options{Addr: addr})))
		}
		m := original.New(pools...).NewMutex(key, original.WithExpiry(compattest.TTL), original.WithTries(1_000_000), original.WithRetryDelay(2*time.Millisecond))
		return func(ctx context.Context) (func() error, error) {
			return func() error { _, err := m.Unlock(); return err }, m.LockContext(ctx)
		}, nil
	},
	"compat": compat,
	"baton": func(addrs []string, key string) (compattest.Lock, error) {
		s, err := store(context.Background(), addrs)
		if err != nil {
			return nil, err
		}
		locks, err := baton.New(s, baton.Config{TTL: compattest.TTL})
		return func(ctx context.Context) (func() error, error) {
			lease, err := locks.Lock(ctx, key)
			return func() error { return lease.Unlock() }, err
		}, err
	},
	// broken locks another key, for TestFleetCatches.
	"broken": func(addrs []string, key string) (compattest.Lock, error) {
		return compat(addrs, key+"/other")
	},
}

func TestMain(m *testing.M) {
	compattest.Main(kinds)
	os.Exit(m.Run())
}

// Programs of the original, of this package and of Baton keep the exclusion while they are
// killed, on one server and on five. On five those who poll find the lock free too rarely beside
// Baton's queue for a short test.
func TestFleet(t *testing.T) {
	testserver.Long(t)
	t.Run("one", func(t *testing.T) {
		t.Parallel()
		for _, wrong := range compattest.Fleet(t, []string{"original", "compat", "baton"}, []string{testserver.SharedRedis(t).Addr}, *compattest.Kills) {
			t.Error(wrong)
		}
	})
	t.Run("five", func(t *testing.T) {
		t.Parallel()
		for _, wrong := range compattest.Fleet(t, []string{"original", "compat"}, testserver.Addrs(testserver.SharedRedisNodes(t)), *compattest.Kills) {
			t.Error(wrong)
		}
	})
}

func TestFleetCatches(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	if wrong := compattest.Fleet(t, []string{"original", "broken"}, []string{testserver.SharedRedis(t).Addr}, 5); len(wrong) == 0 {
		t.Error("a kind that locks another key is not noticed")
	}
}
