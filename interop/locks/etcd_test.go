package locks

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/etcdstore"
)

// onEtcd returns a client of the etcd that the tests share.
func onEtcd(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{testserver.SharedEtcd(t).Addr}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// meetOnEtcd returns a client of etcd, a session on it, and Baton on the same server.
func meetOnEtcd(t *testing.T) (*clientv3.Client, *concurrency.Session, *baton.Locker) {
	t.Helper()
	client := onEtcd(t)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	store, err := etcdstore.New(client, etcdstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return client, session, locks
}

// TestEtcdMutexAndBatonShareAKey increments a counter by a read and a write under the
// lock of either kind, on the same name.
func TestEtcdMutexAndBatonShareAKey(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	client, _, locks := meetOnEtcd(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const key, each, rounds = "jobs/nightly", 3, 10
	a := new(arena)
	var wg sync.WaitGroup
	work := func(me int64, lock func() (unlock func() error, err error)) {
		for range rounds {
			unlock, err := lock()
			if err != nil {
				t.Errorf("lock: %v", err)
				return
			}
			a.run(me)
			if err := unlock(); err != nil {
				t.Errorf("unlock: %v", err)
				return
			}
		}
	}
	for i := range int64(each) {
		wg.Go(func() {
			work(1+i, func() (func() error, error) {
				lease, err := locks.Lock(ctx, key)
				if err != nil {
					return nil, err
				}
				return lease.Unlock, nil
			})
		})
		session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		wg.Go(func() {
			work(1+each+i, func() (func() error, error) {
				m := concurrency.NewMutex(session, key)
				return func() error { return m.Unlock(ctx) }, m.Lock(ctx)
			})
		})
	}
	wg.Wait()
	a.check(t, 2*each*rounds)
}

// TestEtcdConcurrencyAndBatonSeeEachOther tries the lock of one kind while the other
// holds it: a Mutex, and the leader of an Election.
func TestEtcdConcurrencyAndBatonSeeEachOther(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	_, session, locks := meetOnEtcd(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	m := concurrency.NewMutex(session, "see/mutex")
	if err := m.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := locks.TryLock(ctx, "see/mutex"); !errors.Is(err, baton.ErrHeld) {
		t.Errorf("Baton tries what a Mutex holds: %v", err)
	}
	before := m.Header().Revision
	if err := m.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	lease, err := locks.TryLock(ctx, "see/mutex")
	if err != nil {
		t.Fatal(err)
	}
	// The page says so: the tokens go on where the revisions of the Mutex were.
	if lease.Token()/64 <= before {
		t.Errorf("the token %d of Baton is not above the revision %d of the Mutex before", lease.Token(), before)
	}
	if err := m.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("a Mutex tries what Baton holds: %v", err)
	}
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}

	leader := concurrency.NewElection(session, "see/election")
	if err := leader.Campaign(ctx, "host-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := locks.TryLock(ctx, "see/election"); !errors.Is(err, baton.ErrHeld) {
		t.Errorf("Baton tries what an Election has: %v", err)
	}
	if err := leader.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	if lease, err = locks.Lock(ctx, "see/election"); err != nil {
		t.Fatal(err)
	}
	brief, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	if err := leader.Campaign(brief, "host-1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a candidate is elected while Baton has the lock: %v", err)
	}
	// The page says so: to observers of the old package the value of Baton is JSON.
	if r, err := leader.Leader(ctx); err != nil || !strings.HasPrefix(string(r.Kvs[0].Value), `{"baton":1,`) {
		t.Errorf("the leader is %v, %v", r, err)
	}
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
}

// TestEtcdMutexTakesReadersForHolders shows what docs/coming-from/go-locks.md warns of: a
// Mutex waits for a read lock, and a Mutex on a key waits for the keys below it.
func TestEtcdMutexTakesReadersForHolders(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	_, session, locks := meetOnEtcd(t)
	for _, c := range []struct{ name, held, wanted string }{{"a reader", "r", "r"}, {"a key below", "a/b", "a"}} {
		lease, err := locks.Lock(t.Context(), c.held, baton.Shared())
		if err != nil {
			t.Fatal(err)
		}
		if err := concurrency.NewMutex(session, c.wanted).TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Errorf("%s: the Mutex says %v", c.name, err)
		}
		if err := lease.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
}
