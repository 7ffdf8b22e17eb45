package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

func newLocker(t *testing.T, url string, ttl time.Duration) *baton.Locker {
	t.Helper()
	var store driver.Store
	err := await(func() (err error) { // the machine may be busy
		store, err = open.Store(t.Context(), url)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	locks, err := baton.New(store, baton.Config{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

func lock(t *testing.T, locks *baton.Locker, key string) *baton.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lease, err := locks.Lock(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// After an administrator deletes the locks, the next caller gets them at once.
func TestWipe(t *testing.T) {
	testserver.Long(t)
	for _, kind := range []string{"redis", "cluster", "sqlite", "etcd"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := Start(t, kind, 2)
			holder, next := newLocker(t, d.URL(0), MaxTTL), newLocker(t, d.URL(1), MaxTTL)
			for _, everything := range []bool{false, true} {
				held := lock(t, holder, "k")
				if err := d.Wipe(everything); err != nil {
					t.Fatal(err)
				}
				lease := lock(t, next, "k")
				<-held.Done() // the holder learns of it, too
				if err := lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
					t.Error(err)
				}
			}
		})
	}
}

// Locks of the time of the snapshot are held again after it is restored, even if they were released
// later.
func TestSnapshot(t *testing.T) {
	testserver.Long(t)
	for _, kind := range []string{"redis", "sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := Start(t, kind, 1)
			locks := newLocker(t, d.URL(0), time.Hour) // longer than the restarts
			for _, key := range []string{"k", "again"} {
				lease := lock(t, locks, key)
				restore, err := d.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				if err := lease.Unlock(); err != nil {
					t.Fatal(err)
				}
				if err := restore(); err != nil {
					t.Fatal(err)
				}
				var info driver.KeyInfo
				if err := await(func() (err error) {
					info, err = locks.Inspect(t.Context(), key)
					return err
				}); err != nil || len(info.Holders) != 1 {
					t.Errorf("after the restore: %+v, %v; want one holder", info, err)
				}
			}
		})
	}
}

// subscribers are the connections by which a Redis wakes clients.
func subscribers(t *testing.T, d *Deployment) []string {
	t.Helper()
	text, err := d.Servers[0].(*node).process.(interface {
		Do(...string) (string, error)
	}).Do("CLIENT", "LIST", "TYPE", "pubsub")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for l := range strings.Lines(text) {
		id, _, _ := strings.Cut(l, " ")
		ids = append(ids, id)
	}
	return ids
}

// Deafen replaces the connections that wake clients.
func TestDeafen(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	d := Start(t, "redis", 2)
	holder, waiter := newLocker(t, d.URL(0), MaxTTL), newLocker(t, d.URL(1), MaxTTL)
	lease := lock(t, holder, "k")
	got := make(chan *baton.Lease)
	go func() {
		l, err := waiter.Lock(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	var before []string
	if err := await(func() error {
		if before = subscribers(t, d); len(before) == 0 {
			return errors.New("nobody has subscribed")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := d.Deafen(); err != nil {
		t.Fatal(err)
	}
	for _, id := range subscribers(t, d) {
		if slices.Contains(before, id) {
			t.Errorf("the connection with %s lives on", id)
		}
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
	if l := <-got; l != nil {
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
}

// The slots of all keys move to other servers, and back.
func TestReshapeOfACluster(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	d := Start(t, "cluster", 1)
	locks := newLocker(t, d.URL(0), MaxTTL)
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		lock(t, locks, key)
	}
	size := func(server int) string {
		t.Helper()
		n, err := d.Servers[server].(*node).process.(interface {
			Do(...string) (string, error)
		}).Do("DBSIZE")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for server := range d.Servers {
		full := size(server)
		back, err := d.Reshape(server)
		if err != nil {
			t.Fatal(err)
		}
		if n := size(server); n != "0" || full == "0" {
			t.Errorf("server %d had %s keys, and has %s when they have moved", server, full, n)
		}
		for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
			if _, err := locks.TryLock(t.Context(), key); !errors.Is(err, baton.ErrHeld) && !errors.Is(err, baton.ErrNested) {
				t.Errorf("%s, while it is elsewhere: %v", key, err)
			}
		}
		if err := back(); err != nil {
			t.Fatal(err)
		}
		if size(server) == "0" {
			t.Errorf("server %d has no keys again", server)
		}
	}
}

// A member leaves and comes back as a new one, and right after it the next.
func TestReshapeOfEtcd(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	d := Start(t, "etcd3", 1)
	locks := newLocker(t, d.URL(0), MaxTTL)
	for server := range 2 {
		back, err := d.Reshape(server)
		if err != nil {
			t.Fatal(err)
		}
		lease := lock(t, locks, "k")
		if err := back(); err != nil {
			t.Fatal(err)
		}
		if err := await(d.Settled); err != nil {
			t.Error(err)
		}
		if err := lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
			t.Error(err)
		}
	}
}

// A client that loses the right to channels is disconnected, and comes back with the right.
func TestMute(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	d := Start(t, "redis", 2)
	holder, waiter := newLocker(t, d.URL(0), MaxTTL), newLocker(t, d.URL(1), MaxTTL)
	lease := lock(t, holder, "k")
	got := make(chan *baton.Lease)
	go func() {
		l, err := waiter.Lock(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	listen := func(some bool) {
		t.Helper()
		if err := await(func() error {
			if all := subscribers(t, d); len(all) > 0 != some {
				return fmt.Errorf("%d listen", len(all))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	listen(true)
	restore, err := d.Mute()
	if err != nil {
		t.Fatal(err)
	}
	listen(false)
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	listen(true)
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
	if l := <-got; l != nil {
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
}

// While one member's disk stalls, the other members continue; afterwards that member does, too.
func TestStall(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	testserver.NeedEtcd(t)
	testserver.Stalling(t)
	d, err := Open("etcd3", Options{Clients: 1, Disks: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if d.Stall == nil {
		t.Fatal("the disks cannot be stalled")
	}
	resume, err := d.Stall(0)
	if err != nil {
		t.Fatal(err)
	}
	locks := newLocker(t, d.Direct, MaxTTL)
	if err := await(func() error { // of three servers two answer, eventually
		lease, err := locks.Lock(t.Context(), "k")
		if err != nil {
			return err
		}
		return lease.Unlock()
	}); err != nil {
		t.Error(err)
	}
	d.Servers[0].(*node).process.(interface{ AwaitStalled() }).AwaitStalled()
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	if err := await(d.Settled); err != nil {
		t.Error(err)
	}
}
