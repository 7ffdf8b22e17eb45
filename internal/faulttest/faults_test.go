//go:build linux

package faulttest

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// stores are the ways to get a store that processes share. Each test gets
// keys of its own.
var stores = map[string]func(t *testing.T) (url string){
	"sqlite": func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "locks.db") },
	"redis":  func(t *testing.T) string { return "redis://" + testserver.SharedRedis(t).Addr },
	"mysql":  func(t *testing.T) string { return mysqlURL(testserver.SharedMariaDB(t).Addr) },
	"cluster": func(t *testing.T) string {
		return "redis+cluster://" + strings.Join(testserver.SharedRedisCluster(t).Addrs(), ",")
	},
	"etcd": func(t *testing.T) string { return "etcd://" + testserver.SharedEtcd(t).Addr },
	"etcd of three": func(t *testing.T) string {
		return "etcd://" + strings.Join(testserver.SharedEtcdThree(t).Addrs(), ",")
	},
}

func onStores(t *testing.T, f func(t *testing.T, url string)) {
	for name, url := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, url(t))
		})
	}
}

// A holder that was killed blocks for its TTL, and the second that it may
// take to notice. The rest of the bound is for a busy machine.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	onStores(t, func(t *testing.T, url string) {
		holder := startChild(t, url, t.Name(), ttl)
		token := number(t, holder.expect(t, "held")[0])
		locks := newLocker(t, url, baton.Config{TTL: ttl})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		type result struct {
			lease *baton.Lease
			err   error
		}
		got := make(chan result)
		go func() {
			lease, err := locks.Lock(ctx, t.Name())
			got <- result{lease, err}
		}()
		awaitWaiters(t, locks, t.Name(), 1)
		killed := time.Now()
		holder.signal(t, syscall.SIGKILL)
		r := <-got
		if r.err != nil {
			t.Fatal(r.err)
		}
		if d := time.Since(killed); d > ttl+4*time.Second {
			t.Errorf("free %v after the kill, want at most %v", d, ttl+time.Second)
		}
		if r.lease.Token() <= token {
			t.Errorf("token %d after %d", r.lease.Token(), token)
		}
		if err := r.lease.Unlock(); err != nil {
			t.Error(err)
		}
	})
}

// A holder that is stopped for three TTLs stops believing before the next
// holder begins, although it could not notice anything meanwhile.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second // the shortest that all stores accept
	onStores(t, func(t *testing.T, url string) {
		keys := []string{t.Name(), t.Name() + "/more"} // each is as good as one
		holder := startChild(t, url, strings.Join(keys, ","), ttl)
		token := number(t, holder.expect(t, "held")[0])
		locks := newLocker(t, url, baton.Config{})
		stopped := time.Now()
		holder.signal(t, syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		lease, err := locks.LockAll(ctx, keys)
		granted := monotonic()
		if err != nil {
			t.Fatal(err)
		}
		if next := lease.Token(keys[0]); next <= token {
			t.Errorf("token %d after %d", next, token)
		}
		// Time passing is the fault itself.
		<-time.After(time.Until(stopped.Add(3 * ttl)))
		holder.signal(t, syscall.SIGCONT)
		ended := holder.expect(t, "ended")
		if last := number(t, ended[0]); last > granted {
			t.Errorf("the stopped holder believed in its lease %v after the next was granted", time.Duration(last-granted))
		}
		if ended[1] != "true" {
			t.Error("its context did not end with ErrLost")
		}
		if err := lease.Unlock(); err != nil {
			t.Error(err)
		}
	})
}

// Silence: nothing answers any more, and no connection breaks. The lease ends
// before the store could give the lock away.
func TestSilence(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	silent := map[string]func(t *testing.T) (url string, silence func()){
		"redis": func(t *testing.T) (string, func()) {
			proxy := faultproxy.New(t, testserver.SharedRedis(t).Addr)
			return "redis://" + proxy.Addr, func() {
				proxy.Swallow(faultproxy.ToServer)
				proxy.Swallow(faultproxy.ToClient)
			}
		},
		"etcd": func(t *testing.T) (string, func()) {
			proxy := faultproxy.New(t, testserver.SharedEtcd(t).Addr)
			return "etcd://" + proxy.Addr + "/silence", func() {
				proxy.Swallow(faultproxy.ToServer)
				proxy.Swallow(faultproxy.ToClient)
			}
		},
		"etcd server stopped": func(t *testing.T) (string, func()) {
			server := testserver.Etcd(t)
			return "etcd://" + server.Addr, server.Stop
		},
		"redis server stopped": func(t *testing.T) (string, func()) {
			server := testserver.Redis(t)
			return "redis://" + server.Addr, server.Stop
		},
		"mysql": func(t *testing.T) (string, func()) {
			proxy := faultproxy.New(t, testserver.SharedMariaDB(t).Addr)
			return mysqlURL(proxy.Addr), func() {
				proxy.Swallow(faultproxy.ToServer)
				proxy.Swallow(faultproxy.ToClient)
			}
		},
		"mysql server stopped": func(t *testing.T) (string, func()) {
			server := testserver.MariaDB(t)
			return mysqlURL(server.Addr), server.Stop
		},
		"mysql rows locked": func(t *testing.T) (string, func()) {
			server := testserver.MariaDB(t)
			return mysqlURL(server.Addr), func() { lockTables(t, server.Addr) }
		},
		"sqlite file locked": func(t *testing.T) (string, func()) {
			path := filepath.Join(t.TempDir(), "locks.db")
			return "sqlite:" + path, func() { lockFile(t, path) }
		},
	}
	for name, setUp := range silent {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, silence := setUp(t)
			locks := newLocker(t, url, baton.Config{TTL: ttl})
			sent := time.Now()
			lease, err := locks.Lock(t.Context(), t.Name())
			if err != nil {
				t.Fatal(err)
			}
			ctx := lease.Context(t.Context())
			silence()
			if time.Since(sent) > ttl/4 {
				sent = time.Now() // it may have been renewed meanwhile
			}
			if d := lastBelief(lease).Sub(sent); d >= ttl {
				t.Errorf("believed in for %v, the store expires it after %v", d, ttl)
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), baton.ErrLost) {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
			if lost, ok := errors.AsType[*baton.LostError](context.Cause(ctx)); !ok || lost.Cause != baton.Expired {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
		})
	}
}

// lockFile keeps every writer of a SQLite file waiting until the test ends.
func lockFile(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
}

// The server forgets everything under a holder: its context ends within one
// interval of renewal, and the next token is higher.
func TestFlushAllUnderAHolder(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	server := testserver.Redis(t)
	locks := newLocker(t, "redis://"+server.Addr, baton.Config{TTL: ttl})
	lease, err := locks.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	flushed := time.Now()
	<-lease.Done()
	// The rest of the bound is for a busy machine: what ends it is Gone, not its age.
	if d := time.Since(flushed); d > ttl/3+1500*time.Millisecond {
		t.Errorf("noticed after %v, want one interval of renewal, %v", d, ttl/3)
	}
	if lost, ok := errors.AsType[*baton.LostError](lease.Err()); !ok || lost.Cause != baton.Gone {
		t.Errorf("Err: %v", lease.Err())
	}
	next, err := locks.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
	if err := next.Unlock(); err != nil {
		t.Error(err)
	}
}

// A fail-over that loses the lock: the replica that takes over never heard of
// it. The next token is higher all the same.
func TestFailOverThatLosesTheLock(t *testing.T) {
	t.Parallel()
	set := testserver.RedisSentinel(t)
	url := "redis+sentinel://" + set.Sentinel.Addr + "/" + set.Name
	locks := newLocker(t, url, baton.Config{TTL: 4 * time.Second})
	// The replica hears no more of its primary before the lock is taken.
	if _, err := set.Replica.Do("REPLICAOF", "127.0.0.1", "1"); err != nil {
		t.Fatal(err)
	}
	lease, err := locks.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	set.Primary.Kill()
	set.AwaitFailover(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	next, err := newLocker(t, url, baton.Config{}).Lock(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
	select {
	case <-lease.Done():
	case <-ctx.Done():
		t.Error("the holder never heard of its loss")
	}
	if err := next.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestThousandGoroutinesAreOneWaiter(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, url string) {
		elsewhere, here := newLocker(t, url, baton.Config{}), newLocker(t, url, baton.Config{})
		lease, err := elsewhere.Lock(t.Context(), t.Name())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				lease, err := here.Lock(t.Context(), t.Name())
				if err == nil {
					err = lease.Unlock()
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		awaitWaiters(t, here, t.Name(), 1)
		info, err := here.Inspect(t.Context(), t.Name())
		if err != nil || len(info.Waiters) != 1 {
			t.Errorf("%d waiters in the store, error %v", len(info.Waiters), err)
		}
		if err := lease.Unlock(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// A waiter survives the loss of all its connections.
func TestWaiterSurvivesCutConnections(t *testing.T) {
	t.Parallel()
	server := testserver.SharedRedis(t)
	proxy := faultproxy.New(t, server.Addr)
	holder := newLocker(t, "redis://"+server.Addr, baton.Config{})
	waiter := newLocker(t, "redis://"+proxy.Addr, baton.Config{})
	lease, err := holder.Lock(t.Context(), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		lease, err := waiter.Lock(t.Context(), t.Name())
		if err == nil {
			err = lease.Unlock()
		}
		got <- err
	}()
	awaitWaiters(t, holder, t.Name(), 1)
	proxy.Cut()
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the waiter was never granted")
	}
}

// awaitWaiters returns once the store has n waiters in the queue of key.
func awaitWaiters(t *testing.T, locks *baton.Locker, key string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := locks.Inspect(ctx, key)
		if err == nil && len(info.Waiters) >= n {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d waiters, want %d (%v)", len(info.Waiters), n, err)
		}
	}
}
