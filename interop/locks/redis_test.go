package locks

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

// A classic lock is one that programs use today on the same Redis key.
type classic struct {
	name string
	// lock polls every 2 ms until it has the key for ttl, or ctx ends.
	lock func(ctx context.Context, c *redis.Client, key string, ttl time.Duration) (unlock func() error, err error)
	// try makes one attempt and returns whether it got the key.
	try func(ctx context.Context, c *redis.Client, key string) (bool, error)
}

const classicPoll = 2 * time.Millisecond

var classics = []classic{
	{
		name: "redsync",
		lock: func(ctx context.Context, c *redis.Client, key string, ttl time.Duration) (func() error, error) {
			m := redsync.New(goredis.NewPool(c)).NewMutex(key, redsync.WithExpiry(ttl),
				redsync.WithTries(1_000_000), redsync.WithRetryDelay(classicPoll))
			if err := m.LockContext(ctx); err != nil {
				return nil, err
			}
			return func() error { return redsyncUnlock(m) }, nil
		},
		try: func(ctx context.Context, c *redis.Client, key string) (bool, error) {
			err := redsync.New(goredis.NewPool(c)).NewMutex(key).TryLockContext(ctx)
			var taken *redsync.ErrTaken
			if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
				return false, nil
			}
			return err == nil, err
		},
	},
	{
		name: "redislock",
		lock: func(ctx context.Context, c *redis.Client, key string, ttl time.Duration) (func() error, error) {
			l, err := redislock.Obtain(ctx, c, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(classicPoll)})
			if err != nil {
				return nil, err
			}
			return func() error { return l.Release(context.Background()) }, nil
		},
		try: func(ctx context.Context, c *redis.Client, key string) (bool, error) {
			_, err := redislock.Obtain(ctx, c, key, time.Second, nil)
			if errors.Is(err, redislock.ErrNotObtained) {
				return false, nil
			}
			return err == nil, err
		},
	},
}

func redsyncUnlock(m *redsync.Mutex) error {
	ok, err := m.Unlock()
	if err == nil && !ok {
		err = errors.New("redsync: the lock was lost")
	}
	return err
}

// eachClassic runs a test with each classic lock beside a Baton store.
func eachClassic(t *testing.T, f func(t *testing.T, ctx context.Context, c classic, client *redis.Client, store driver.Store)) {
	for _, c := range classics {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
			defer cancel()
			client, url := onRedis(t)
			store, err := open.Store(ctx, url)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			f(t, ctx, c, client, store)
		})
	}
}

// TestClassicLocksAndBatonShareAKey lets goroutines of both kinds increment a
// counter by a read and a write. No update may be lost, and both must go on
// while the other is there.
func TestClassicLocksAndBatonShareAKey(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	eachClassic(t, func(t *testing.T, ctx context.Context, c classic, client *redis.Client, store driver.Store) {
		const goroutines, enough = 3, 15 // of each kind
		key := "test/share/" + c.name
		locks, err := baton.New(store, baton.Config{TTL: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		a := new(arena)
		var served [2]atomic.Int64
		done := func() bool { return served[0].Load() >= enough && served[1].Load() >= enough }
		var wg sync.WaitGroup
		work := func(kind, me int64, lock func() (unlock func() error, err error)) {
			for !done() && ctx.Err() == nil {
				unlock, err := lock()
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("lock: %v", err)
					}
					return
				}
				a.run(me)
				served[kind].Add(1)
				if err := unlock(); err != nil {
					t.Errorf("unlock: %v", err)
					return
				}
				// While Baton has a queue a classic lock never finds the key
				// free, so that the queue has to end now and then.
				pause(15 * time.Millisecond)
			}
		}
		for i := range int64(goroutines) {
			wg.Go(func() {
				work(0, 1+i, func() (func() error, error) {
					lease, err := locks.Lock(ctx, key)
					if err != nil {
						return nil, err
					}
					return lease.Unlock, nil
				})
			})
			wg.Go(func() {
				work(1, 1+goroutines+i, func() (func() error, error) { return c.lock(ctx, client, key, 5*time.Second) })
			})
		}
		wg.Wait()
		if !done() {
			t.Errorf("Baton was served %d times, %s %d times; want %d each", served[0].Load(), c.name, served[1].Load(), enough)
		}
		a.check(t, served[0].Load()+served[1].Load())
	})
}

// TestEachSeesTheOther tries the lock of one kind while the other holds it.
func TestEachSeesTheOther(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	eachClassic(t, func(t *testing.T, ctx context.Context, c classic, client *redis.Client, store driver.Store) {
		key := "test/see/" + c.name
		locks, err := baton.New(store, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := locks.Lock(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.try(ctx, client, key); got || err != nil {
			t.Fatalf("%s locked what Baton holds: %t, %v", c.name, got, err)
		}
		if err := lease.Unlock(); err != nil {
			t.Fatalf("after %s tried: %v", c.name, err)
		}

		unlock, err := c.lock(ctx, client, key, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_, err = locks.TryLock(ctx, key)
		var held *baton.HeldError
		if !errors.As(err, &held) || !held.Foreign || held.Remaining <= 0 {
			t.Fatalf("Baton tries what %s holds: %v (%+v)", c.name, err, held)
		}
		if err := unlock(); err != nil {
			t.Fatalf("after Baton tried: %v", err)
		}
		if lease, err = locks.TryLock(ctx, key); err != nil {
			t.Fatalf("%s has unlocked: %v", c.name, err)
		}
		if err := lease.Unlock(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCrashOfEitherSideFreesTheLock leaves the lock to expire, as a crash
// does.
func TestCrashOfEitherSideFreesTheLock(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const ttl = 500 * time.Millisecond
	eachClassic(t, func(t *testing.T, ctx context.Context, c classic, client *redis.Client, store driver.Store) {
		key := "test/crash/" + c.name

		// The classic side crashes.
		if _, err := c.lock(ctx, client, key, ttl); err != nil {
			t.Fatal(err)
		}
		locks, err := baton.New(store, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := locks.Lock(ctx, key)
		if err != nil {
			t.Fatalf("%s left the lock to expire: %v", c.name, err)
		}
		if err := lease.Unlock(); err != nil {
			t.Fatal(err)
		}

		// Baton crashes: the store has granted a lock that is never renewed.
		_, err = store.Acquire(ctx, driver.Request{
			Claim: driver.Claim{Key: key, ID: driver.NewID(), Owner: "crashed", Weight: driver.Whole, Capacity: driver.Whole},
			TTL:   ttl,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.try(ctx, client, key); got || err != nil {
			t.Fatalf("%s locked what has not expired: %t, %v", c.name, got, err)
		}
		unlock, err := c.lock(ctx, client, key, 10*time.Second)
		if err != nil {
			t.Fatalf("Baton left the lock to expire: %v", err)
		}
		if err := unlock(); err != nil {
			t.Fatal(err)
		}
	})
}
