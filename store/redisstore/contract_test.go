package redisstore

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

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
		return mustNew(t, ruDial(t, rueidis.ClientOption{InitAddress: []string{addr}}))
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

// TestContractManyConnections is for clients as most programs bring them, on
// which requests may overtake each other.
func TestContractManyConnections(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.SharedRedis(t)
	drivertest.Locks(t, sharedHarness(func(t drivertest.T) rueidis.Client {
		return ruDial(t, rueidis.ClientOption{InitAddress: []string{server.Addr}, PipelineMultiplex: 2})
	}))
}

func TestContractSentinel(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	drivertest.Locks(t, sharedHarness(func(t drivertest.T) rueidis.Client {
		return ruDial(t, rueidis.ClientOption{
			InitAddress: []string{set.Sentinel.Addr},
			Sentinel:    rueidis.SentinelOption{MasterSet: set.Name},
		})
	}))
}

func TestContractCluster(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	drivertest.Locks(t, sharedHarness(func(t drivertest.T) rueidis.Client {
		return ruDial(t, rueidis.ClientOption{InitAddress: cluster.Addrs()})
	}))
}

// TestContractMiniredis runs where no server is installed, too.
func TestContractMiniredis(t *testing.T) {
	t.Parallel()
	drivertest.Locks(t, drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			addr := mini(t)
			locks := make([]driver.Locks, n)
			for i := range locks {
				locks[i] = mustNew(t, ruDial(t, rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true}))
			}
			return locks
		},
		Put: func(t drivertest.T, key string, l driver.Locks) { put(t, l.(*Store), key) },
	})
}

// sharedHarness is for servers that many cases use together, each with a
// prefix of its own.
func sharedHarness(dial func(t drivertest.T) rueidis.Client) drivertest.Harness {
	return drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			prefix := rand.Text() + ":"
			locks := make([]driver.Locks, n)
			for i := range locks {
				locks[i] = mustNew(t, dial(t), Config{Prefix: prefix})
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
	c := s.client.(ruClient).c
	v, err := ruResult(c.Do(context.Background(), c.B().Arbitrary(args[0]).Keys(args[1]).Args(args[2:]...).Build()))
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

func ruDial(t drivertest.T, o rueidis.ClientOption) rueidis.Client {
	o.DisableCache = true
	if o.PipelineMultiplex == 0 {
		o.PipelineMultiplex = -1
	}
	o.ReadBufferEachConn, o.WriteBufferEachConn = 1<<14, 1<<14
	c, err := rueidis.NewClient(o)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

func mustNew(t drivertest.T, c rueidis.Client, cfg ...Config) *Store {
	s, err := New(c, append(cfg, Config{})[0])
	if err != nil {
		t.Fatalf("new store: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
