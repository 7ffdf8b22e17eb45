package redlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redlock"
)

// examined returns what is found, by name. Each finding has to say what to do.
func examined(t *testing.T, s *redlock.Store) (map[string]driver.Finding, error) {
	t.Helper()
	found, err := s.Examine(t.Context())
	all := map[string]driver.Finding{}
	for _, f := range found {
		if f.What == "" || f.Mend == "" {
			t.Errorf("%s says too little: %+v", f.Name, f)
		}
		all[f.Name] = f
	}
	return all, err
}

func names(found map[string]driver.Finding) (all []string) {
	for name := range found {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// wants checks one finding, and which servers it names.
func wants(t *testing.T, found map[string]driver.Finding, name string, severity driver.Severity, says ...string) {
	t.Helper()
	f, ok := found[name]
	if !ok || f.Severity != severity {
		t.Errorf("want %s (%v), found %v %+v", name, severity, names(found), f)
		return
	}
	for _, s := range says {
		if !strings.Contains(f.What, s) {
			t.Errorf("%s does not say %q: %s", name, s, f.What)
		}
	}
}

// What is refused at once says why, and what to do.
func TestRefusalsAreFindings(t *testing.T) {
	t.Parallel()
	evicts := &redisstore.EvictionError{Policy: "allkeys-lru"}
	for _, c := range []struct {
		err        driver.Refusal
		name, says string
	}{
		{&redlock.CountError{Nodes: 1}, "nodes", "1 server is too few"},
		{&redlock.CountError{Nodes: 2}, "nodes", "2 servers are too few"},
		{&redlock.CountError{Nodes: 4}, "nodes", "even number"},
		{&redlock.CountError{Nodes: 99}, "nodes", "too many"},
		{&redlock.DuplicateError{First: "a", Second: "b"}, "duplicate-node", "a and b are the same server"},
		{&redlock.ReplicatedError{Node: "a", Replicas: 2}, "node-replicas", "a has replicas (2)"},
		{&redlock.NodeError{Node: "a:1", Err: evicts}, "maxmemory-policy", "(on a:1)"},
	} {
		f, ok := c.err.Finding()
		if !ok || f.Name != c.name || f.Severity != driver.Unsafe || !strings.Contains(f.What, c.says) || f.Mend == "" {
			t.Errorf("%v: %t %+v, want %s with %q", c.err, ok, f, c.name, c.says)
		}
	}
	if f, ok := (&redlock.NodeError{Node: "a:1", Err: driver.ErrUnavailable}).Finding(); ok {
		t.Errorf("a server that cannot be reached is not refused: %+v", f)
	}
}

// What is wrong with the set alone, on servers without faults of their own.
func TestExamineTheSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		for i, node := range s.list {
			node.skew = time.Duration(i) * 100 * time.Millisecond // as clocks are
		}
		l := s.open(1, redlock.Config{LongestTTL: 10 * time.Second})[0].(*redlock.Store)
		if found, err := examined(t, l); err != nil || len(found) != 0 {
			t.Errorf("nothing is wrong, found %v, %v", names(found), err)
		}

		s.list[3].set(func() { s.list[3].skew = -time.Minute })
		found, err := examined(t, l)
		if err != nil {
			t.Error(err)
		}
		wants(t, found, "node-clocks", driver.Unsafe, "the clock of node 5 is 1m0.4s ahead of that of node 4")
		s.list[3].set(func() { s.list[3].skew = 0 })

		s.list[0].restart(0)
		found, _ = examined(t, l)
		wants(t, found, "node-young", driver.Note, "node 1", "another 10s")
		s.list[1].restart(0)
		s.list[2].restart(4 * time.Second)
		found, _ = examined(t, l)
		wants(t, found, "node-young", driver.Slow, "node 1, node 2, node 3", "2 of 5 servers vote")
		time.Sleep(11 * time.Second)

		s.list[0].set(func() { s.list[0].mute = true })
		s.list[2].set(func() { s.list[2].cut = true })
		found, err = examined(t, l)
		wants(t, found, "node-unreachable", driver.Slow, "node 1, node 3", "0 more of the 5")
		if !unreachable(err) || !strings.Contains(err.Error(), "node 1") || !strings.Contains(err.Error(), "node 3") {
			t.Errorf("not everything was asked, and the error is %v", err)
		}
		s.list[4].set(func() { s.list[4].cut = true })
		found, _ = examined(t, l)
		wants(t, found, "node-unreachable", driver.Unsafe, "node 1, node 3, node 5", "no majority")
		for _, node := range s.list {
			node.set(func() { node.cut, node.mute = false, false })
		}
		if found, err := examined(t, l); err != nil || len(found) != 0 {
			t.Errorf("all is well again, found %v, %v", names(found), err)
		}

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Examine(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

// Two names of one server, which could not be told apart while it was away.
func TestExamineDuplicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 3)
		s.list[1].cut = true
		l := s.open(1)[0].(*redlock.Store)
		s.list[1].set(func() { s.list[1].cut, s.list[1].store = false, s.list[0].store })
		found, _ := examined(t, l)
		wants(t, found, "duplicate-node", driver.Unsafe, "node 1 and node 2 are the same server")
	})
}

func TestExamineRedis(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	servers := testserver.RedisNodes(t, 3, "--appendonly", "yes", "--appendfsync", "always", "--slowlog-log-slower-than", "-1")
	do := func(i int, args ...string) {
		t.Helper()
		if _, err := servers[i].Do(args...); err != nil {
			t.Fatal(err)
		}
	}
	open := func(cfg ...redlock.Config) *redlock.Store {
		return overRedis(t, testserver.Addrs(servers), "", cfg...)
	}
	l := open(redlock.Config{Durable: true, AllowReplicas: true})
	found, err := examined(t, l)
	if got := names(found); err != nil || !slices.Equal(got, []string{"auth"}) {
		t.Errorf("as they should be: found %v, %v", got, err)
	}
	if strings.Contains(found["auth"].What, "(on") {
		t.Errorf("true of all: %s", found["auth"].What)
	}

	// They are said to forget nothing.
	do(1, "CONFIG", "SET", "appendfsync", "everysec")
	found, _ = examined(t, l)
	wants(t, found, "durable", driver.Unsafe, "(on "+servers[1].Addr+")")
	do(1, "CONFIG", "SET", "appendonly", "no")
	found, _ = examined(t, l)
	wants(t, found, "durable", driver.Unsafe, "keeps nothing on disk", servers[1].Addr)

	// No server says so: those that restart do not vote.
	found, _ = examined(t, open(redlock.Config{LongestTTL: 10 * time.Minute}))
	wants(t, found, "node-young", driver.Slow, servers[0].Addr, servers[1].Addr, servers[2].Addr, "0 of 3 servers vote")
	for _, name := range []string{"durable", "persistence", "appendfsync"} {
		if f, ok := found[name]; ok {
			t.Errorf("servers that restart do not vote, found %+v", f)
		}
	}

	// One may throw away locks. It is refused, and found where it was not.
	do(2, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	found, _ = examined(t, l)
	wants(t, found, "maxmemory-policy", driver.Unsafe, "(on "+servers[2].Addr+")")
	do(2, "CONFIG", "SET", "maxmemory-policy", "noeviction")

	testserver.RedisReplica(t, servers[0])
	found, _ = examined(t, open(redlock.Config{AllowReplicas: true, Durable: true}))
	wants(t, found, "node-replicas", driver.Unsafe, servers[0].Addr+" has replicas (1)")

	// It answers nothing, and keeps its connections.
	servers[2].Stop()
	defer servers[2].Cont()
	found, err = examined(t, l)
	wants(t, found, "node-unreachable", driver.Slow, servers[2].Addr, "0 more of the 3")
	if err == nil || strings.Contains(err.Error(), servers[0].Addr) || !strings.Contains(err.Error(), servers[2].Addr) {
		t.Errorf("one does not answer: %v", err)
	}
}

// A server that was away when the store was opened is judged like the others once it is
// there: one that would have been refused never votes.
func TestLateNodesAreRefused(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	for name, plant := range map[string]func(late *testserver.RedisServer){
		"node-replicas": func(late *testserver.RedisServer) { testserver.RedisReplica(t, late) },
		"maxmemory-policy": func(late *testserver.RedisServer) {
			if _, err := late.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := testserver.RedisNodes(t, 3)
			late := faultproxy.New(t, servers[2].Addr)
			late.Refuse()
			l := overRedis(t, []string{servers[0].Addr, servers[1].Addr, late.Addr}, "")
			plant(servers[2])
			late.Accept()
			found, err := examined(t, l)
			if err != nil {
				t.Errorf("a refusal is no silence: %v", err)
			}
			wants(t, found, name, driver.Unsafe, late.Addr)

			acquire(t, l, claimOf("k"), 10*time.Second)
			servers[1].Stop()
			defer servers[1].Cont()
			_, err = l.Acquire(t.Context(), driver.Request{Claim: claimOf("other"), TTL: 10 * time.Second})
			if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), late.Addr) {
				t.Errorf("with a server that must not vote and one that is away: %v", err)
			}
		})
	}
}
