package zkstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// A server comes back with an older state. It hangs up on all clients that have seen
// more, for ever if no other client writes. Those that live through it get new
// sessions: what they held and waited for is lost, and then they get locks again, one
// at a time.
func TestServerSetBack(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "tickTime=500")
	open := func() *Store {
		return mustOpen(t, Server{Addrs: []string{server.Addr}, Session: 4 * time.Second}, Config{Root: "/b"})
	}
	before, after := open(), open()
	warm := writer("warm")
	warm.TTL = 2 * time.Second
	insist(t, before, warm)
	restore := server.Backup()

	held, waits := writer("k"), writer("k")
	held.TTL, waits.TTL = 2*time.Second, 2*time.Second
	insist(t, before, held)
	lost := watching(t, before, held)
	insist(t, after, waits)
	lostToo := watching(t, after, waits)
	for range 100 { // what the clients have seen is not reached again by itself
		if _, err := before.conn.Set("/b/k", nil, -1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := after.conn.Set("/b/k", nil, -1); err != nil {
		t.Fatal(err)
	}
	sessions := map[*Store]int64{before: before.session.link().id, after: after.session.link().id}
	restore()

	for s, r := range map[*Store]driver.Request{before: held, after: waits} {
		eventually(t, "its owner hears of the end", func() bool { return renew(t, s, r).State == driver.Lost })
	}
	for _, hints := range []<-chan driver.Hint{lost, lostToo} {
		select {
		case <-hints:
		case <-time.After(testTime):
			t.Fatal("no waiter was told")
		}
	}
	next, last := writer("k"), writer("k")
	next.TTL, last.TTL = 2*time.Second, 2*time.Second
	last.Queue = false
	if g, _ := insist(t, after, next); g.Waiting {
		t.Error("it waits for a contender of the past")
	}
	keepRenewing(t, after, next)
	eventually(t, "a refusal", func() bool {
		g, err := before.Acquire(t.Context(), last)
		if err == nil {
			t.Fatalf("two hold: %+v", g)
		}
		return errors.Is(err, driver.ErrHeld)
	})
	for s, id := range sessions {
		if now := s.session.link().id; now == id {
			t.Errorf("the session %x goes on", id)
		}
	}
}

// A server comes back with an older state, in which a session exists that goes on, and
// holds what was released since. No waiter waits for that.
func TestNodesThatComeBack(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "maxSessionTimeout=600000")
	s := mustOpen(t, Server{Addrs: []string{server.Addr}, Session: 10 * time.Minute}, Config{Root: "/b"})
	back, stays := writer("back"), writer("stays")
	back.TTL, stays.TTL = 4*time.Minute, 4*time.Minute
	insist(t, s, back)
	g, _ := insist(t, s, stays)
	restore := server.Backup()
	id := s.session.link().id
	eventually(t, "a connection", func() bool { return renew(t, s, back).State == driver.Held })
	release(t, s, back)
	restore()
	// The client is let in when the server has written more than it has seen.
	direct := plain(t, server.Addr)
	if n := len(queueIn(t, direct, s, "back")); n != 2 {
		t.Fatalf("%d nodes came back, want 2", n)
	}
	var a driver.Renewal
	eventually(t, "the session goes on", func() bool {
		if _, err := direct.Create("/n-", nil, zk.FlagSequence, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		a = renew(t, s, stays)
		return a.State != driver.Unknown
	})
	if now := s.session.link().id; now != id {
		t.Fatalf("session %x, want %x", now, id)
	}
	if a.State != driver.Held || a.Grant.Token != g.Token {
		t.Errorf("what was held before the backup: %+v, want it held by %d", a, g.Token)
	}
	other := openOn(t, s.root, server.Addr)
	again := writer("back")
	again.Queue = false
	eventually(t, "what was released is free", func() bool {
		_, err := other.Acquire(t.Context(), again)
		if err != nil && !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		return err == nil
	})
	left := queueIn(t, direct, s, "stays")
	if len(left) != 2 || !strings.HasPrefix(left[0], s.guidPrefix) {
		t.Errorf("what is held has the nodes %v", left)
	}
}

// The servers are away for so long that a session should have ended, and then lead
// again: the session's time begins again, and so it goes on. What was released
// meanwhile, or asked for just before and given up, is removed.
func TestReleasedWhileNobodyLed(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(t *testing.T, s *Store, server *testserver.ZooKeeperServer, proxy *faultproxy.Proxy){
		"released": func(t *testing.T, s *Store, server *testserver.ZooKeeperServer, proxy *faultproxy.Proxy) {
			r := writer("k")
			r.TTL = 2 * time.Second
			insist(t, s, r)
			proxy.Refuse()
			server.Kill()
			if err := s.Release(t.Context(), r.Claim); !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
				t.Fatalf("released by a server that is away: %v", err)
			}
		},
		"without an answer": func(t *testing.T, s *Store, server *testserver.ZooKeeperServer, proxy *faultproxy.Proxy) {
			r := writer("k") // s has never asked for it
			r.TTL = 2 * time.Second
			proxy.Refuse()
			cut := proxy.CutAfterRequest(creates(s, r.Key))
			if _, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
				t.Fatalf("acquired without an answer: %v", err)
			}
			<-cut
			server.Kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const session = 4 * time.Second
			server := testserver.ZooKeeper(t, "tickTime=500")
			proxy := faultproxy.New(t, server.Addr)
			open := func(addr string) *Store {
				return mustOpen(t, Server{Addrs: []string{addr}, Session: session}, Config{Root: "/b"})
			}
			s, other, r := open(proxy.Addr), open(server.Addr), writer("k")
			r.TTL = time.Second
			insist(t, other, r) // the parent is there, and s does not know it
			release(t, other, r)
			r.Key = "another" // which it does
			for range 2 {
				insist(t, s, r)
				release(t, s, r)
			}
			id := s.session.link().id
			leave(t, s, server, proxy)
			<-time.After(driver.WaiterTTL + 2*session + time.Second) // as long as it takes to give up hope
			server.Restart()
			proxy.Accept()
			eventually(t, "a connection", func() bool { return s.session.link().up })
			if now := s.session.link().id; now != id {
				t.Fatalf("session %x, want %x", now, id)
			}
			next := writer("k")
			next.TTL, next.Queue = time.Second, false
			direct := open(server.Addr)
			eventually(t, "it is free", func() bool {
				_, err := direct.Acquire(t.Context(), next)
				if err != nil && !errors.Is(err, driver.ErrHeld) {
					t.Fatal(err)
				}
				return err == nil
			})
		})
	}
}
