package zkstore

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// restarting are the cases that restart their server, which then has to be
// their own.
var restarting = []string{
	"tokens rise through restart", "a durable store remembers its grants", "waiting works after a restart",
}

func TestContractSingle(t *testing.T) {
	testserver.NeedZooKeeper(t)
	t.Parallel()
	shared := testserver.SharedZooKeeper(t)
	drivertest.Locks(t, harness(func(t drivertest.T, i int) string {
		return shared.Addr
	}))
}

func TestContractEnsemble(t *testing.T) {
	testserver.NeedZooKeeper(t)
	t.Parallel()
	ensemble := testserver.SharedZooKeeperEnsemble(t)
	h := harness(func(t drivertest.T, i int) string { return ensemble.Nodes[i%3].Addr })
	h.Restart = nil // others are at it
	drivertest.Locks(t, h)
}

// harness gives each handle a connection through a proxy of its own.
func harness(addr func(t drivertest.T, i int) string) drivertest.Harness {
	var mu sync.Mutex
	proxies := map[driver.Locks]*faultproxy.Proxy{}
	servers := map[driver.Locks]*testserver.ZooKeeperServer{}
	return drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			var own *testserver.ZooKeeperServer
			if name := strings.ReplaceAll(t.Name(), "_", " "); slices.ContainsFunc(restarting, func(c string) bool { return strings.HasSuffix(name, c) }) {
				own = testserver.ZooKeeper(tb{t})
			}
			root := "/" + rand.Text()
			locks := make([]driver.Locks, n)
			for i := range locks {
				var at string
				if own != nil {
					at = own.Addr
				} else {
					at = addr(t, i)
				}
				p := faultproxy.New(tb{t}, at)
				s := mustOpen(t, Options{Servers: []string{p.Addr}, Root: root})
				locks[i] = s
				mu.Lock()
				proxies[s], servers[s] = p, own
				mu.Unlock()
			}
			return locks
		},
		Restart: func(t drivertest.T, locks []driver.Locks) {
			mu.Lock()
			server := servers[locks[0]]
			mu.Unlock()
			if server == nil {
				t.Fatalf("this case is not listed among those that restart their server")
			}
			again := newConnections(locks)
			server.Restart()
			again(t)
		},
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
	}
}

// newConnections returns what waits until all handles have connected anew.
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
					t.Fatalf("handle %d did not connect anew", i)
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

func mustOpen(t drivertest.T, o Options) *Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := Open(ctx, o)
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
