package locks

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// TestRedisson: a lock of Redisson is a hash. Each side meets what the other holds with an
// error, and neither takes it.
func TestRedisson(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	client, url := onRedis(t)
	locks, ctx := newLocker(t, url, baton.Config{}), t.Context()
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
	both, err := newLocker(t, url+"?prefix=locks:", baton.Config{}).TryLock(ctx, "order/42")
	if err != nil {
		t.Fatalf("with a prefix Baton is kept from what Redisson holds: %v", err)
	}
	defer both.Unlock()
}

// TestShedLockOnRedis does what the Redis providers of ShedLock do with their key.
func TestShedLockOnRedis(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	client, url := onRedis(t)
	locks, ctx := newLocker(t, url, baton.Config{}), t.Context()
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

	// lockAtLeastFor
	if lease, err = locks.TryLock(ctx, "nightly", baton.MinHold(10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
	if _, err := locks.TryLock(ctx, "nightly"); !errors.Is(err, baton.ErrHeld) {
		t.Errorf("nothing keeps the job from running again: %v", err)
	}
}

// TestShedLockElsewhere: on etcd both hold the lock, on ZooKeeper Baton refuses the key.
func TestShedLockElsewhere(t *testing.T) {
	testserver.Long(t)
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
	etcd := newLocker(t, "etcd://"+client.Endpoints()[0], baton.Config{})
	lease, err := etcd.TryLock(ctx, "shedlock:default:nightly")
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
	locks := newLocker(t, "zk://"+addr+"/shedlock", baton.Config{})
	var notALock *driver.NotLockError
	if _, err := locks.TryLock(ctx, "nightly"); !errors.As(err, &notALock) {
		t.Errorf("ZooKeeper: a node with data is %v", err)
	}
	if _, err := locks.TryLock(ctx, "another", baton.MinHold(time.Second)); !errors.Is(err, baton.ErrUnsupported) {
		t.Errorf("ZooKeeper: MinHold is %v", err)
	}
}
