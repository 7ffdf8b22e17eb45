package redisstore

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// TestContractSingle gives each case a server of its own, so that it may do to
// it what it likes.
func TestContractSingle(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	drivertest.Locks(t, singleHarness(func(t drivertest.T, addr string) *Store {
		return mustNew(t, dial(t, addr))
	}))
}

func singleHarness(open func(t drivertest.T, addr string) *Store) drivertest.Harness {
	servers := newServerOf()
	return drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			server := testserver.Redis(tb{t})
			locks := make([]driver.Locks, n)
			for i := range locks {
				s := open(t, server.Addr)
				servers.put(s, server)
				locks[i] = s
			}
			return locks
		},
		Restart: func(t drivertest.T, locks []driver.Locks) {
			servers.of(locks[0]).Restart()
			for _, l := range locks {
				awaitReachable(t, l.(*Store))
			}
		},
		Reconnect: func(t drivertest.T, locks []driver.Locks) {
			var before []int64
			for _, l := range locks {
				id, _ := connection(t, l.(*Store))
				before = append(before, id)
			}
			for _, kind := range []string{"normal", "pubsub"} {
				if _, err := servers.of(locks[0]).Do("CLIENT", "KILL", "TYPE", kind); err != nil {
					t.Fatalf("cut the connections: %v", err)
				}
			}
			for i, l := range locks {
				eventually(t, "a new connection", 10*time.Second, func() bool {
					id, err := connection(t, l.(*Store))
					return err == nil && id != before[i]
				})
			}
		},
		Delete: func(t drivertest.T, key string, l driver.Locks) {
			if _, err := servers.of(l).Do("FLUSHALL"); err != nil {
				t.Fatalf("delete: %v", err)
			}
		},
		Put: func(t drivertest.T, key string, l driver.Locks) {
			put(t, l.(*Store), key)
		},
		Fill: func(t drivertest.T, locks []driver.Locks) (empty func()) {
			most := func(bytes string) {
				if _, err := servers.of(locks[0]).Do("CONFIG", "SET", "maxmemory", bytes); err != nil {
					t.Fatalf("fill: %v", err)
				}
			}
			most("1")
			return func() { most("0") }
		},
	}
}

// TestContractOpen is for the client that the store makes.
func TestContractOpen(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	drivertest.Locks(t, singleHarness(func(t drivertest.T, addr string) *Store {
		return through(Server{Addrs: []string{addr}})(t, Config{})
	}))
}

// The store is one, and has passed the whole contract with its own client on every
// topology. What a caller's client may change of that is the way of a request and of its
// answer: how a client finds the server of a key, what it makes of requests for several
// servers, how it lists them, and where it listens.
func TestContractBrought(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	set, cluster := testserver.RedisSentinel(t), testserver.SharedRedisCluster(t)
	onSentinel := []string{
		// One script, of one key or several, and several scripts in a pipeline.
		"exclusion", "first come, first served", "several are granted at once", "one bad key does not spoil a batch", "a large batch",
		// The primary is asked for what it holds, and read for what it publishes.
		"list shows what is held or waited for", "all handles see one life of the server", "a hand-over is hinted", "a downgrade is hinted",
	}
	for name, c := range map[string]struct {
		open func(t drivertest.T) redis.UniversalClient
		only []string
	}{
		"Sentinel": {func(t drivertest.T) redis.UniversalClient { return dialSentinel(t, set) }, onSentinel},
		"Cluster": {func(t drivertest.T) redis.UniversalClient { return dialCluster(t, cluster) }, append(onSentinel,
			// The client computes slots, too, and sends several keys to one.
			"odd keys are different locks", "odd keys have queues of their own", "odd keys have readers and permits of their own", "odd keys can be broken",
			"several or none", "several at once, wanted by many", "bad requests for several are refused", "a crowd is served one at a time",
			// Pipelines to several nodes.
			"a batch may hold waiters and holders", "a batch may hold all kinds of claims", "an illegal claim does not spoil a batch",
			"a batch renews every claim for the whole TTL",
			// All primaries are asked, and a node repeats what another one publishes.
			"a prefix is compared byte by byte", "list shows many keys", "giving up a granted place is hinted", "nobody is woken after the end of a watch")},
	} {
		t.Run(name, func(t *testing.T) {
			h := sharedHarness(func(t drivertest.T, cfg Config) *Store { return mustNew(t, c.open(t), cfg) })
			h.Only = c.only
			drivertest.Locks(t, h)
		})
	}
}

func TestContractSentinel(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	drivertest.Locks(t, sharedHarness(through(Server{Addrs: []string{set.Sentinel.Addr}, Master: set.Name})))
}

// Waiting for replicas changes nothing of the contract but that no grant is pushed.
func TestContractReplicas(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	drivertest.Locks(t, sharedHarness(func(t drivertest.T, cfg Config) *Store {
		cfg.Replicas = AllReplicas
		return through(Server{Addrs: []string{set.Sentinel.Addr}, Master: set.Name})(t, cfg)
	}))
}

func TestContractCluster(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	drivertest.Locks(t, sharedHarness(through(Server{Addrs: cluster.Addrs(), Cluster: true})))
}

// TestContractMiniredis runs where no server is installed, too.
func TestContractMiniredis(t *testing.T) {
	t.Parallel()
	drivertest.Locks(t, drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			addr := mini(t)
			locks := make([]driver.Locks, n)
			for i := range locks {
				locks[i] = mustNew(t, dial(t, addr))
			}
			return locks
		},
		Put: func(t drivertest.T, key string, l driver.Locks) { put(t, l.(*Store), key) },
	})
}

// sharedHarness is for servers that many cases use together, each with a
// prefix of its own.
func sharedHarness(open opener) drivertest.Harness {
	return drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			prefix := rand.Text() + ":"
			locks := make([]driver.Locks, n)
			for i := range locks {
				locks[i] = open(t, Config{Prefix: prefix})
			}
			return locks
		},
		Delete: func(t drivertest.T, key string, l driver.Locks) {
			s := l.(*Store)
			n, _ := s.names.of(key)
			for _, name := range n.full() {
				plain(t, s, "DEL", name)
			}
		},
		Put: func(t drivertest.T, key string, l driver.Locks) { put(t, l.(*Store), key) },
	}
}

func put(t drivertest.T, s *Store, key string) {
	n, err := s.names.of(key)
	if err != nil {
		t.Fatalf("put: %v", err)
	}
	plain(t, s, "RPUSH", n.lock, "not", "a", "lock")
}

// plain runs a command as a user of another client would. args[1] is a key.
func plain(t drivertest.T, s *Store, args ...string) any {
	t.Helper()
	list := make([]any, len(args))
	for i, arg := range args {
		list[i] = arg
	}
	v, err := s.client.(*client).Do(context.Background(), list...).Result()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

// connection is the server's number of the store's connection.
func connection(t drivertest.T, s *Store) (id int64, err error) {
	err = s.client.Primaries(t.Context(), func(n wire.Node) error {
		v, err := n.Do(t.Context(), "CLIENT", "ID")
		id = number(v)
		return err
	})
	return id, err
}

func mini(t drivertest.T) string {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.Start(); err != nil {
		t.Fatalf("miniredis: %v", err)
	}
	t.Cleanup(m.Close)
	return m.Addr()
}

// An opener opens a store, as a process of its own would.
type opener func(drivertest.T, Config) *Store

// brought opens stores over a caller's client.
func brought(addr string) opener {
	return func(t drivertest.T, cfg Config) *Store { return mustNew(t, dial(t, addr), cfg) }
}

// onMini opens stores over a client that waits long: everything waits for everything in
// a miniredis that all cases share.
func onMini(addr string) opener {
	return func(t drivertest.T, cfg Config) *Store {
		return mustNew(t, closed(t, redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})), cfg)
	}
}

// through opens stores by Open.
func through(at Server) opener {
	return func(t drivertest.T, cfg Config) *Store {
		s, err := Open(t.Context(), at, cfg)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
}

func closed(t drivertest.T, c redis.UniversalClient) redis.UniversalClient {
	t.Cleanup(func() { c.Close() })
	return c
}

func dial(t drivertest.T, addr string) redis.UniversalClient {
	return closed(t, redis.NewClient(&redis.Options{Addr: addr}))
}

func dialSentinel(t drivertest.T, set *testserver.SentinelSet) redis.UniversalClient {
	return closed(t, redis.NewFailoverClient(&redis.FailoverOptions{MasterName: set.Name, SentinelAddrs: []string{set.Sentinel.Addr}}))
}

func dialCluster(t drivertest.T, c *testserver.Cluster) redis.UniversalClient {
	return closed(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()}))
}

func mustNew(t drivertest.T, c redis.UniversalClient, cfg ...Config) *Store {
	s, err := New(c, append(cfg, Config{})[0])
	if err != nil {
		t.Fatalf("new store: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
