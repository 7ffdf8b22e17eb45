package redlock_test

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redlock"
)

// tb makes a drivertest.T what a server wants.
type tb struct{ drivertest.T }

func (t tb) Skipf(format string, args ...any) { t.Fatalf(format, args...) }

// overRedis opens a quorum of Redis servers, which vote although they have just
// been started unless cfg says otherwise.
func overRedis(t drivertest.T, addrs []string, prefix string, cfg ...redlock.Config) *redlock.Store {
	t.Helper()
	var nodes []redlock.Node
	for _, addr := range addrs {
		nodes = append(nodes, redlock.Node{Name: addr, Open: func(ctx context.Context) (redlock.OpenMember, error) {
			s, err := redisstore.Open(ctx, redisstore.Server{Addrs: []string{addr}}, redisstore.Config{Prefix: prefix})
			if err != nil {
				return nil, err
			}
			return s, nil
		}})
	}
	s, err := redlock.Open(t.Context(), nodes, append(cfg, redlock.Config{Durable: true})[0])
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestContractRedis(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	servers := testserver.SharedRedisNodes(t)
	var mu sync.Mutex
	prefixes := map[driver.Locks]string{}
	harness := func(n int) drivertest.Harness {
		return drivertest.Harness{
			Open: func(t drivertest.T, handles int) []driver.Locks {
				prefix := rand.Text() + ":"
				locks := make([]driver.Locks, handles)
				for i := range locks {
					locks[i] = overRedis(t, testserver.Addrs(servers)[:n], prefix)
					mu.Lock()
					prefixes[locks[i]] = prefix
					mu.Unlock()
				}
				return locks
			},
			Put: func(t drivertest.T, key string, l driver.Locks) {
				mu.Lock()
				prefix := prefixes[l]
				mu.Unlock()
				for _, s := range servers[:n] {
					if _, err := s.Do("RPUSH", prefix+key, "not", "a", "lock"); err != nil {
						t.Fatalf("put: %v", err)
					}
				}
			},
			Delete: func(t drivertest.T, key string, l driver.Locks) {
				mu.Lock()
				prefix := prefixes[l]
				mu.Unlock()
				for _, s := range servers[:n] {
					if _, err := s.Do("DEL", prefix+key, prefix+"baton:T", prefix+"baton:H"); err != nil {
						t.Fatalf("delete: %v", err)
					}
				}
			},
		}
	}
	for name, n := range map[string]int{"five": 5, "three": 3} {
		t.Run(name, func(t *testing.T) {
			if n == 5 {
				testserver.Long(t)
			}
			t.Parallel()
			drivertest.Locks(t, harness(n))
		})
	}
}

// TestContractRedisFaults gives each case servers of its own, to restart and to
// cut off.
func TestContractRedisFaults(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	var mu sync.Mutex
	of := map[driver.Locks][]*testserver.RedisServer{}
	find := func(l driver.Locks) []*testserver.RedisServer {
		mu.Lock()
		defer mu.Unlock()
		return of[l]
	}
	reachable := func(t drivertest.T, locks []driver.Locks) {
		for _, l := range locks {
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				_, err := l.(driver.Inspector).Inspect(t.Context(), "reachable?")
				if err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the servers do not answer again: %v", err)
				}
			}
		}
	}
	drivertest.Locks(t, drivertest.Harness{
		Open: func(t drivertest.T, handles int) []driver.Locks {
			servers := testserver.RedisNodes(tb{t}, 3)
			locks := make([]driver.Locks, handles)
			for i := range locks {
				locks[i] = overRedis(t, testserver.Addrs(servers), "")
				mu.Lock()
				of[locks[i]] = servers
				mu.Unlock()
			}
			return locks
		},
		Restart: func(t drivertest.T, locks []driver.Locks) {
			for _, s := range find(locks[0]) {
				s.Restart()
			}
			reachable(t, locks)
		},
		Reconnect: func(t drivertest.T, locks []driver.Locks) {
			for _, s := range find(locks[0]) {
				for _, kind := range []string{"normal", "pubsub"} {
					if _, err := s.Do("CLIENT", "KILL", "TYPE", kind); err != nil {
						t.Fatalf("cut the connections: %v", err)
					}
				}
			}
			reachable(t, locks)
		},
	})
}
