package zkstore

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

func TestContractSingle(t *testing.T) {
	testserver.NeedZooKeeper(t)
	t.Parallel()
	shared := testserver.SharedZooKeeper(t)
	var mu sync.Mutex
	owns := map[driver.Locks]*testserver.ZooKeeperServer{}
	h, openAt := harness(func(int) string { return shared.Addr })
	h.OpenOwn = func(t drivertest.T, n int) []driver.Locks {
		own := testserver.ZooKeeper(tb{t})
		locks := openAt(t, n, func(int) string { return own.Addr })
		mu.Lock()
		owns[locks[0]] = own
		mu.Unlock()
		return locks
	}
	h.Restart = func(t drivertest.T, locks []driver.Locks) {
		mu.Lock()
		own := owns[locks[0]]
		mu.Unlock()
		again := newConnections(locks)
		own.Restart()
		again(t)
	}
	drivertest.Locks(t, h)
}

func TestContractEnsemble(t *testing.T) {
	testserver.Long(t)
	testserver.NeedZooKeeper(t)
	t.Parallel()
	ensemble := testserver.SharedZooKeeperEnsemble(t)
	h, _ := harness(func(i int) string { return ensemble.Nodes[i%3].Addr })
	drivertest.Locks(t, h)
}

// harness gives each handle a connection through a separate proxy, to the server at
// addr of the handle's number. openAt opens handles elsewhere.
func harness(addr func(i int) string) (h drivertest.Harness, openAt func(t drivertest.T, n int, addr func(i int) string) []driver.Locks) {
	var mu sync.Mutex
	proxies := map[driver.Locks]*faultproxy.Proxy{}
	openAt = func(t drivertest.T, n int, addr func(i int) string) []driver.Locks {
		root := "/" + rand.Text()
		locks := make([]driver.Locks, n)
		for i := range locks {
			p := faultproxy.New(tb{t}, addr(i))
			s := mustOpen(t, Server{Addrs: []string{p.Addr}}, Config{Root: root})
			locks[i] = s
			mu.Lock()
			proxies[s] = p
			mu.Unlock()
		}
		return locks
	}
	return drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks { return openAt(t, n, addr) },
		Reconnect: func(t drivertest.T, locks []driver.Locks) {
			again := newConnections(locks)
			for _, l := range locks {
				mu.Lock()
				p := proxies[l]
				mu.Unlock()
				p.Cut()
			}
			again(t)
		},
		Delete: func(t drivertest.T, key string, l driver.Locks) {
			s := l.(*Store)
			deleteAll(t, s.conn, s.parent(key))
		},
		Put: func(t drivertest.T, key string, l driver.Locks) {
			s := l.(*Store)
			if err := s.makeRoot(t.Context()); err != nil {
				t.Fatalf("put: %v", err)
			}
			if _, err := s.conn.Create(s.parent(key), []byte("not a lock"), 0, zk.WorldACL(zk.PermAll)); err != nil {
				t.Fatalf("put: %v", err)
			}
		},
	}, openAt
}

// newConnections returns a function that waits until all handles have reconnected.
func newConnections(locks []driver.Locks) func(t drivertest.T) {
	before := make([]int, len(locks))
	for i, l := range locks {
		before[i] = l.(*Store).session.link().epoch
	}
	return func(t drivertest.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for i, l := range locks {
			for {
				now := l.(*Store).session.link()
				if now.up && now.epoch > before[i] {
					break
				}
				select {
				case <-now.next:
				case <-ctx.Done():
					t.Fatalf("handle %d did not connect again", i)
				}
			}
		}
	}
}

// deleteAll deletes a node and all below it, as an operator would.
func deleteAll(t drivertest.T, c *zk.Conn, path string) {
	t.Helper()
	for range 100 {
		children, _, err := c.Children(path)
		if err == zk.ErrNoNode {
			return
		}
		for _, n := range children {
			if err := c.Delete(path+"/"+n, -1); err != nil && err != zk.ErrNoNode {
				t.Fatalf("delete: %v", err)
			}
		}
		if err := c.Delete(path, -1); err == nil || err == zk.ErrNoNode {
			return
		}
	}
	t.Fatalf("%s cannot be deleted", path)
}

func mustOpen(t drivertest.T, at Server, cfg ...Config) *Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := Open(ctx, at, append(cfg, Config{})[0])
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		s.Close()
		s.finish() // what the case left would keep the connection
	})
	return s
}

// tb is a drivertest.T as a testserver.TB: a case does not skip.
type tb struct{ drivertest.T }

func (t tb) Skipf(format string, args ...any) { t.Fatalf(format, args...) }
