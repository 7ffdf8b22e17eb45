package etcdstore

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// TestContractSingle is for one member, which most cases share.
func TestContractSingle(t *testing.T) {
	testserver.NeedEtcd(t)
	t.Parallel()
	h := sharedHarness(testserver.SharedEtcd(t).Addr)
	var mu sync.Mutex
	owns := map[driver.Locks]*testserver.EtcdServer{}
	h.OpenOwn = func(t drivertest.T, n int) []driver.Locks {
		own := testserver.Etcd(tb{t})
		locks := sharedHarness(own.Addr).Open(t, n)
		mu.Lock()
		owns[locks[0]] = own
		mu.Unlock()
		return locks
	}
	h.Restart = func(t drivertest.T, locks []driver.Locks) {
		mu.Lock()
		own := owns[locks[0]]
		mu.Unlock()
		own.Restart()
		for _, l := range locks {
			awaitReachable(t, l.(*Store))
		}
	}
	drivertest.Locks(t, h)
}

// TestContractThree is for a cluster of three members, each handle connected
// to all of them.
func TestContractThree(t *testing.T) {
	testserver.Long(t)
	testserver.NeedEtcd(t)
	t.Parallel()
	cluster := testserver.SharedEtcdThree(t)
	drivertest.Locks(t, sharedHarness(cluster.Addrs()...))
}

// sharedHarness is for servers that all cases use together, each with a
// prefix of its own, and each handle through a proxy of its own for each
// member.
func sharedHarness(addrs ...string) drivertest.Harness {
	var mu sync.Mutex
	proxies := map[driver.Locks][]*faultproxy.Proxy{}
	return drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			prefix := rand.Text()
			locks := make([]driver.Locks, n)
			for i := range locks {
				var own []*faultproxy.Proxy
				var at []string
				for _, addr := range addrs {
					p := faultproxy.New(tb{t}, addr)
					own, at = append(own, p), append(at, p.Addr)
				}
				s := mustNew(t, dial(t, at...), Config{Prefix: prefix})
				locks[i] = s
				mu.Lock()
				proxies[s] = own
				mu.Unlock()
			}
			return locks
		},
		Reconnect: func(t drivertest.T, locks []driver.Locks) {
			mu.Lock()
			defer mu.Unlock()
			for _, l := range locks {
				for _, p := range proxies[l] {
					p.Cut()
				}
			}
			for _, l := range locks {
				awaitReachable(t, l.(*Store))
			}
		},
		Delete: func(t drivertest.T, key string, l driver.Locks) {
			s := l.(*Store)
			dir := s.dir(key)
			if _, err := s.client.Delete(t.Context(), dir, clientv3.WithRange(dirEnd(dir))); err != nil {
				t.Fatalf("delete: %v", err)
			}
		},
		Put: func(t drivertest.T, key string, l driver.Locks) {
			s := l.(*Store)
			if _, err := s.client.Put(t.Context(), s.dir(key)+"data", "theirs"); err != nil {
				t.Fatalf("put: %v", err)
			}
		},
	}
}

// tb lets a case of the contract start servers and proxies.
type tb struct{ drivertest.T }

func (t tb) Skipf(format string, args ...any) { t.Fatalf(format, args...) }

func dial(t drivertest.T, addrs ...string) *clientv3.Client {
	t.Helper()
	cfg := clientConfig(Server{Endpoints: addrs})
	cfg.Logger = zap.NewNop()
	c, err := clientv3.New(cfg)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func mustNew(t drivertest.T, c *clientv3.Client, cfg ...Config) *Store {
	t.Helper()
	s, err := New(c, append(cfg, Config{})[0])
	if err != nil {
		t.Fatalf("new store: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// awaitReachable returns when s has a working connection again.
func awaitReachable(t drivertest.T, s *Store) {
	t.Helper()
	eventually(t, "the server answers again", 20*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := s.Inspect(ctx, "reachable?")
		return err == nil
	})
}

// eventually polls until ok says so.
func eventually(t drivertest.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}
