package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

func TestUnsafeServersAreRefused(t *testing.T) {
	l := newLab(t, 0)
	client := func() redis.UniversalClient {
		return dial(t, l.server.Addr)
	}
	l.do("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	_, err := New(client(), Config{})
	if e, ok := errors.AsType[*EvictionError](err); !ok || e.Policy != "volatile-lru" || !strings.Contains(err.Error(), "noeviction") {
		t.Errorf("on a server that evicts: %v, want an *EvictionError that says what to set", err)
	}
	if _, err := New(client(), Config{AllowEviction: true}); err != nil {
		t.Errorf("with AllowEviction: %v", err)
	}
	l.do("CONFIG", "SET", "maxmemory-policy", "noeviction")

	// A user that may not read INFO is accepted.
	l.do("ACL", "SETUSER", "worker", "on", ">canary", "~*", "&*", "+@all", "-info", "-config")
	s, err := Open(t.Context(), Server{Addrs: []string{l.server.Addr}, Username: "worker", Password: "canary"}, Config{})
	if err != nil {
		t.Fatalf("without the right to INFO: %v", err)
	}
	defer s.Close()
	take(t, s, claimOf(l.key, "a"), time.Minute, false)

	_, err = Open(t.Context(), Server{Addrs: []string{l.server.Addr}, Username: "worker", Password: "wrong-canary"}, Config{})
	if !errors.Is(err, driver.ErrDenied) || strings.Contains(err.Error(), "canary") {
		t.Errorf("with a wrong password: %v, want driver.ErrDenied without the password", err)
	}

	l.do("REPLICAOF", "127.0.0.1", "1")
	_, err = New(client(), Config{})
	if e, ok := errors.AsType[*ReplicaError](err); !ok || e.Primary != "127.0.0.1:1" {
		t.Errorf("on a replica: %v, want a *ReplicaError with its primary", err)
	}
}

func TestOpen(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	for name, cfg := range map[string]Server{
		"no address":         {},
		"Cluster and master": {Addrs: []string{"a:1"}, Cluster: true, Master: "m"},
		"Cluster with DB":    {Addrs: []string{"a:1"}, Cluster: true, DB: 1},
		"two servers":        {Addrs: []string{"a:1", "b:1"}},
	} {
		if _, err := Open(t.Context(), cfg, Config{}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Open(t.Context(), Server{Addrs: []string{testserver.FreeAddr(t)}}, Config{}); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("where no server listens: %v, want driver.ErrUnavailable", err)
	}

	set := testserver.RedisSentinel(t)
	cluster := testserver.SharedRedisCluster(t)
	for name, cfg := range map[string]Server{
		"single":   {Addrs: []string{set.Primary.Addr}, DB: 3},
		"Sentinel": {Addrs: []string{set.Sentinel.Addr}, Master: set.Name},
		"Cluster":  {Addrs: cluster.Addrs(), Cluster: true},
	} {
		s, err := Open(t.Context(), cfg, Config{Prefix: "open:"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c, _ := take(t, s, claimOf("job", "a"), time.Minute, false)
		mustRelease(t, s, c)
		if err := s.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: closed again: %v", name, err)
		}
		if _, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute}); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s: acquire after Close: %v", name, err)
		}
	}
}

func TestClosedClient(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	client := dial(t, testserver.SharedRedis(t).Addr)
	s, err := New(client, Config{Prefix: driver.NewID() + ":"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	drivertest.ClosedClient(t, s, func() { client.Close() })
}
