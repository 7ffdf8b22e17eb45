package zkstore

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// A server that hangs keeps its connections. Its clients leave it, with their
// sessions, before their leases are over.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	const session, ttl = 8 * time.Second, 4 * time.Second
	e := testserver.ZooKeeperEnsemble(t, nil)
	leader := e.Nodes[e.AwaitLeader(t)].Addr
	root := "/" + rand.Text()
	var all []drivertest.Holder
	clients := map[string]int{} // of each follower
	most := ""
	for len(all) < 6 || clients[most] < 2 {
		s := mustOpen(t, Server{Addrs: e.Addrs(), Session: session}, Config{Root: root})
		if at := s.conn.Server(); at != leader {
			if clients[at]++; clients[at] > clients[most] {
				most = at
			}
		}
		r, sent := writer(fmt.Sprint(len(all))), bootclock.Now()
		r.TTL = ttl
		all = append(all, drivertest.Holder{Locks: s, Claim: r.Claim, Sent: sent, Until: sent.Add(hold(t, s, r).TTL)})
	}
	for _, n := range e.Nodes {
		if n.Addr == most {
			n.Stop()
			t.Cleanup(n.Cont)
		}
	}
	drivertest.KeepAll(t, all, ttl, 3*ttl)
}

// A server that is silent for a while, but for less than the limit, is not left, nor is
// one that has no requests.
func TestSlowServerIsNotLeft(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr)
	s := openOn(t, "", proxy.Addr)
	epoch := s.session.link().epoch
	r := writer("k")
	hold(t, s, r)
	proxy.Delay(faultproxy.ToClient, leastSilence/2)
	for range 4 {
		if a := s.Renew(t.Context(), []driver.Claim{r.Claim}, minTTL)[0]; a.State == driver.Unknown {
			t.Fatalf("%+v", a)
		}
	}
	if l := s.session.link(); l.epoch != epoch || !l.up {
		t.Errorf("after %d connections there are %d", epoch, l.epoch)
	}
}

// A process that has stood still does not leave a server whose answer is there.
func TestOwnSilenceIsNotTheServers(t *testing.T) {
	t.Parallel()
	s := openOn(t, "", testserver.SharedZooKeeper(t).Addr)
	if _, err := s.exists(t.Context(), s.root); err != nil && !answer(err) {
		t.Fatal(err)
	}
	epoch := s.session.link().epoch
	c := s.session.tapped.Load()
	limit := silence(s.session.link().timeout)
	c.asking.Lock()
	c.asked = time.Now().Add(-time.Hour)
	c.asking.Unlock()
	c.leave(limit)
	if _, err := s.exists(t.Context(), s.root); err != nil && !answer(err) {
		t.Fatal(err)
	}
	if l := s.session.link(); l.epoch != epoch || !l.up {
		t.Errorf("after %d connections there are %d", epoch, l.epoch)
	}
}
