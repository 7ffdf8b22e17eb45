package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redisstore/rueidisstore"
	"github.com/batonhq/baton/store/redlock"
)

// clients are the ways in which a program can reach its servers.
var clients = map[string]func(t *testing.T, addr string) redlock.Member{
	"open": func(t *testing.T, addr string) redlock.Member {
		return opened(t, func() (*redisstore.Store, error) {
			return redisstore.Open(t.Context(), redisstore.Server{Addrs: []string{addr}}, redisstore.Config{})
		})
	},
	"rueidis": func(t *testing.T, addr string) redlock.Member {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return opened(t, func() (*redisstore.Store, error) { return rueidisstore.New(c, redisstore.Config{}) })
	},
	"go-redis": func(t *testing.T, addr string) redlock.Member {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		return opened(t, func() (*redisstore.Store, error) { return redisstore.New(c, redisstore.Config{}) })
	},
}

// opened opens a store, again if a busy machine took too long to answer.
func opened(t *testing.T, open func() (*redisstore.Store, error)) *redisstore.Store {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		s, err := open()
		if err == nil {
			t.Cleanup(func() { s.Close() })
			return s
		}
		if !errors.Is(err, driver.ErrUnavailable) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// All servers stop and come back empty while a lock is held. Programs that go on with
// the clients that they had must not be granted it, whatever these clients tell of
// their connections: the connections that bring hints, which the users of these servers
// may not have, come back after those that carry requests.
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
		var nodes []redlock.Member
		for _, addr := range addrs {
			nodes = append(nodes, clients[client](t, addr))
		}
		s, err := redlock.New(nodes, redlock.Config{LongestTTL: ttl})
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
			t.Errorf("through %s no client asked in time", client)
		}
	}
}

// Servers that all answer, and do not vote yet: the error says how long that lasts,
// why, and what shortens it, and calls none silent.
func TestYoungServersSayWhenTheyVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1, redlock.Config{LongestTTL: 40 * time.Second})[0]
		acquireErr := func() *redlock.YoungError {
			t.Helper()
			_, err := l.Acquire(t.Context(), driver.Request{Claim: claimOf("k"), TTL: 10 * time.Second})
			young, ok := errors.AsType[*redlock.YoungError](err)
			if !ok || !errors.Is(err, driver.ErrUnavailable) {
				t.Fatalf("young servers: %v, want a YoungError that is ErrUnavailable", err)
			}
			if strings.Contains(err.Error(), "no answer") {
				t.Errorf("all servers answer: %v", err)
			}
			return young
		}
		near := func(got, want time.Duration) {
			t.Helper()
			if got < want || got > want+2*time.Second {
				t.Errorf("a majority votes in %v, want about %v", got, want)
			}
		}
		for i, node := range s.list {
			node.restart(time.Duration(i) * 5 * time.Second) // 0, 5, 10, 15, 20 s old
		}
		e := acquireErr()
		if e.Longest != 40*time.Second || len(e.Nodes) < 3 {
			t.Errorf("%+v", e)
		}
		for _, want := range []string{"longest-ttl", "40s", e.Nodes[0]} {
			if !strings.Contains(e.Error(), want) {
				t.Errorf("it does not say %q: %v", want, e)
			}
		}
		time.Sleep(25 * time.Second) // the oldest two vote now
		synctest.Wait()
		e = acquireErr()
		near(e.Left, 5*time.Second)
		time.Sleep(e.Left)
		acquire(t, l, claimOf("k"), 10*time.Second)
	})
}

// A minority of young servers stops no grant, whichever are asked first.
func TestYoungMinority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{3, 5} {
			s := newServers(t, n)
			l := s.open(1)[0]
			for i := range s.list {
				for j := range i + 1 {
					for k, node := range s.list {
						if k == i || n == 5 && k == j {
							node.restart(0)
						} else {
							node.restart(time.Hour)
						}
					}
					for _, queue := range []bool{false, true} {
						c := claimOf(driver.NewID())
						if _, err := l.Acquire(t.Context(), driver.Request{Claim: c, TTL: 10 * time.Second, Queue: queue}); err != nil {
							t.Errorf("%d servers, %d and %d are young, queue %v: %v", n, i, j, queue, err)
						}
					}
				}
			}
		}
	})
}
