package redlock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redisstore/goredis"
	"github.com/batonhq/baton/store/redlock"
)

// clients are the ways in which a program can reach its servers.
var clients = map[string]func(t *testing.T, addr string) driver.Locks{
	"open": func(t *testing.T, addr string) driver.Locks {
		s, err := redisstore.Open(t.Context(), redisstore.Config{Addrs: []string{addr}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	},
	"rueidis": func(t *testing.T, addr string) driver.Locks {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		s, err := redisstore.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	},
	"go-redis": func(t *testing.T, addr string) driver.Locks {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		s, err := goredis.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	},
}

// All servers stop and come back empty while a lock is held. Those that go on with
// the clients that they had must not be granted it, whatever these clients tell of
// their connections: the connections that bring hints, which the users of these
// servers may not have, come back after those that carry requests.
func TestAllServersRestartUnderAHolder(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	const ttl = 3 * time.Second
	var addrs []string
	var servers []*testserver.RedisServer
	for range 3 {
		s := testserver.Redis(t, "--user", "default", "on", "nopass", "~*", "resetchannels", "+@all")
		servers, addrs = append(servers, s), append(addrs, s.Addr)
	}
	quorum := func(client string) *redlock.Store {
		var nodes []driver.Locks
		for _, addr := range addrs {
			nodes = append(nodes, clients[client](t, addr))
		}
		s, err := redlock.New(nodes, redlock.LongestTTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	acquire := func(s *redlock.Store, key string) (driver.Claim, driver.Grant, error) {
		c := driver.Claim{Key: key, ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole}
		g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: ttl})
		return c, g, err
	}
	others := map[string]*redlock.Store{}
	for client := range clients {
		s := quorum(client)
		others[client] = s
		// Until the servers are old enough to vote.
		for deadline := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
			c, _, err := acquire(s, "warm/"+client)
			if err == nil {
				if err := s.Release(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: never granted: %v", client, err)
			}
		}
	}

	sent := bootclock.Now()
	_, g, err := acquire(quorum("open"), "k")
	if err != nil {
		t.Fatal(err)
	}
	until := sent.Add(g.TTL)
	for _, s := range servers {
		s.Restart()
	}
	asked := map[string]int{}
	for bootclock.Now().Before(until) {
		for client, s := range others {
			c, _, err := acquire(s, "k")
			if now := bootclock.Now(); err == nil && now.Before(until) {
				t.Fatalf("through %s it was granted while its holder could believe in it for another %v", client, until.Sub(now))
			}
			if err == nil {
				s.Release(t.Context(), c)
			}
			asked[client]++
		}
	}
	for client := range clients {
		if asked[client] == 0 {
			t.Errorf("through %s nobody asked in time", client)
		}
	}
}
