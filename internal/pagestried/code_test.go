//lint:file-ignore SA4006 the pages leave out what to do about errors

package pagestried

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/etcdstore"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redisstore/goredis"
	"github.com/batonhq/baton/store/zkstore"
)

func report(ctx context.Context) error { return ctx.Err() }

// onRedis returns a client of a real server, and Baton on it.
func onRedis(t *testing.T) (*redis.Client, *redisstore.Store, *baton.Locker) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	t.Cleanup(func() { client.Close() })
	store, err := goredis.New(client, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return client, store, lockerOn(t, store)
}

// onEtcd returns a client of a real etcd.
func onEtcd(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{testserver.SharedEtcd(t).Addr}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestRueidislock(t *testing.T) {
	t.Parallel()
	_, _, locks := onRedis(t)
	nightly := func(ctx context.Context) error {
		leases, err := locks.LockAll(ctx, []string{"rueidislock:0:nightly", "rueidislock:1:nightly"})
		if err != nil {
			return err
		}
		defer leases.Unlock()
		return report(leases.Context(ctx))
	}
	if err := nightly(t.Context()); err != nil {
		t.Error(err)
	}
	later := func(ctx context.Context) error {
		return locks.Do(ctx, "nightly", func(ctx context.Context, lease *baton.Lease) error {
			return report(ctx) // ends before Redis gives the lock away; lease.Token() is for the resource
		})
	}
	if err := later(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	client := onEtcd(t)
	nightly := func(ctx context.Context) error {
		store, err := etcdstore.New(client, etcdstore.Config{}) // the *clientv3.Client that the program has
		if err != nil {
			return err
		}
		defer store.Close()
		locks, err := baton.New(store, baton.Config{TTL: 10 * time.Second}) // WithTTL(10)
		if err != nil {
			return err
		}
		lease, err := locks.Lock(ctx, "jobs/nightly") // NewMutex(session, "jobs/nightly").Lock(ctx)
		if err != nil {
			return err
		}
		defer lease.Unlock()
		return report(lease.Context(ctx))
	}
	if err := nightly(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCurator(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedZooKeeper(t).Addr
	nightly := func(ctx context.Context) error {
		store, err := zkstore.Open(ctx, zkstore.Server{Addrs: []string{addr}}, zkstore.Config{Root: "/locks"})
		if err != nil {
			return err
		}
		defer store.Close()
		locks, err := baton.New(store, baton.Config{})
		if err != nil {
			return err
		}
		lease, err := locks.Lock(ctx, "nightly") // new InterProcessMutex(client, "/locks/nightly")
		if err != nil {
			return err
		}
		defer lease.Unlock()
		return report(lease.Context(ctx))
	}
	if err := nightly(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRedisson: a lock of Redisson is a hash. Each side meets what the other holds with an
// error, and neither takes it.
func TestRedisson(t *testing.T) {
	t.Parallel()
	client, _, locks := onRedis(t)
	ctx := t.Context()
	if err := client.HSet(ctx, "order/42", "8f1c4a70-7f2d-4d1c-9d0e-3f9a0c6a9d11:47", 1).Err(); err != nil {
		t.Fatal(err)
	}
	var notALock *driver.NotLockError
	if _, err := locks.TryLock(ctx, "order/42"); !errors.As(err, &notALock) {
		t.Errorf("Baton tries what Redisson holds: %v", err)
	}
	if n, err := client.HLen(ctx, "order/42").Result(); n != 1 || err != nil {
		t.Errorf("Baton has changed the lock of Redisson: %d fields, %v", n, err)
	}
	lease, err := locks.TryLock(ctx, "order/43")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Unlock()
	// The script of Redisson asks for a field of the key before it writes.
	if err := client.HExists(ctx, "order/43", "8f1c4a70-7f2d-4d1c-9d0e-3f9a0c6a9d11:47").Err(); !redis.HasErrorPrefix(err, "WRONGTYPE") {
		t.Errorf("Redisson asks for what Baton holds: %v", err)
	}

	// With another name both hold it.
	store, err := goredis.New(client, redisstore.Config{Prefix: "locks:"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	both, err := lockerOn(t, store).TryLock(ctx, "order/42")
	if err != nil {
		t.Fatalf("with a prefix Baton is kept from what Redisson holds: %v", err)
	}
	defer both.Unlock()
}

// TestShedLockOnRedis does what the Redis providers of ShedLock do with their key.
func TestShedLockOnRedis(t *testing.T) {
	t.Parallel()
	client, _, locks := onRedis(t)
	ctx := t.Context()
	const key = "job-lock:default:nightly"
	set := func() bool {
		t.Helper()
		err := client.SetArgs(ctx, key, "ADDED:2026-11-26T01:00:00Z@host:1b9d", redis.SetArgs{Mode: "NX", TTL: time.Minute}).Err()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		return err == nil
	}
	lease, err := locks.TryLock(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if set() {
		t.Error("ShedLock has what Baton holds")
	}
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
	if !set() {
		t.Error("ShedLock does not get what Baton has released")
	}
	if _, err := locks.TryLock(ctx, key); !errors.Is(err, baton.ErrHeld) {
		t.Errorf("Baton tries what ShedLock holds: %v", err)
	}

	nightly := func(ctx context.Context) error {
		lease, err := locks.TryLock(ctx, "nightly", baton.MinHold(10*time.Minute)) // lockAtLeastFor
		if errors.Is(err, baton.ErrHeld) {
			return nil // another instance has it: skip
		}
		if err != nil {
			return err
		}
		defer lease.Unlock()
		return report(lease.Context(ctx))
	}
	for range 2 { // the second is skipped
		if err := nightly(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, err := locks.TryLock(ctx, "nightly"); !errors.Is(err, baton.ErrHeld) {
		t.Errorf("nothing keeps the job from running again: %v", err)
	}
}

// TestShedLockElsewhere: on etcd both hold the lock, on ZooKeeper Baton refuses the key.
func TestShedLockElsewhere(t *testing.T) {
	t.Parallel()
	client := onEtcd(t)
	ctx := t.Context()
	expiring, err := client.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "shedlock:default:nightly", "ADDED:2026-11-26T01:00:00Z@host", clientv3.WithLease(expiring.ID)); err != nil {
		t.Fatal(err)
	}
	store, err := etcdstore.New(client, etcdstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	lease, err := lockerOn(t, store).TryLock(ctx, "shedlock:default:nightly")
	if err != nil {
		t.Fatalf("etcd: ShedLock keeps Baton from the lock: %v", err)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}

	addr := testserver.SharedZooKeeper(t).Addr
	other, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, node := range [][2]string{{"/shedlock", ""}, {"/shedlock/nightly", "2026-11-26T01:00:00.000Z"}} {
		if _, err := other.Create(node[0], []byte(node[1]), 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			t.Fatal(err)
		}
	}
	onZooKeeper, err := zkstore.Open(ctx, zkstore.Server{Addrs: []string{addr}}, zkstore.Config{Root: "/shedlock"})
	if err != nil {
		t.Fatal(err)
	}
	defer onZooKeeper.Close()
	locks := lockerOn(t, onZooKeeper)
	var notALock *driver.NotLockError
	if _, err := locks.TryLock(ctx, "nightly"); !errors.As(err, &notALock) {
		t.Errorf("ZooKeeper: a node with data is %v", err)
	}
	if _, err := locks.TryLock(ctx, "another", baton.MinHold(time.Second)); !errors.Is(err, baton.ErrUnsupported) {
		t.Errorf("ZooKeeper: MinHold is %v", err)
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	send := func(ctx context.Context) error {
		limiter, err := ratelimit.New(store, ratelimit.TokenBucket(10, time.Second, 20)) // rate.NewLimiter(10, 20)
		if err != nil {
			return err
		}
		if _, err := limiter.Wait(ctx, "mail-api"); err != nil { // limiter.Wait(ctx)
			return err
		}
		r, err := limiter.Allow(ctx, "mail-api") // limiter.Allow()
		if err != nil || !r.OK {
			return err // r.RetryAfter says when
		}
		return report(ctx)
	}
	if err := send(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRedisRate(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer client.Close()
	limited := func(ctx context.Context) (wait time.Duration, err error) {
		store, err := goredis.New(client, redisstore.Config{}) // the *redis.Client that the program has
		if err != nil {
			return 0, err
		}
		defer store.Close()
		limiter, err := ratelimit.New(store, ratelimit.TokenBucket(10, time.Minute, 10)) // redis_rate.PerMinute(10)
		if err != nil {
			return 0, err
		}
		r, err := limiter.Allow(ctx, "user/42") // limiter.Allow(ctx, "user/42", redis_rate.PerMinute(10))
		return r.RetryAfter, err
	}
	for i := range 11 {
		if wait, err := limited(t.Context()); err != nil || wait > 0 != (i == 10) {
			t.Errorf("request %d: wait %v, %v", i, wait, err)
		}
	}
	// What the page says of bursts.
	var wrong *ratelimit.LimitError
	if _, err := ratelimit.New(memstore.New(), ratelimit.TokenBucket(10, time.Minute, 0)); !errors.As(err, &wrong) {
		t.Errorf("a bucket without a burst: %v", err)
	}
	limiter, err := ratelimit.New(memstore.New(), ratelimit.TokenBucket(10, time.Minute, 10))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := limiter.AllowN(t.Context(), "k", 11); err != nil || r.OK || r.RetryAfter != ratelimit.Never {
		t.Errorf("a cost above the burst: %+v, %v", r, err)
	}
}
