package zkstore

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// overdue makes the claim's timer fire at its end.
func overdue(c *claim) {
	c.Lock()
	c.end = bootclock.Now().Add(-time.Second)
	c.Unlock()
	c.due()
}

// mustStand checks a grant: it can be renewed and released, and then nothing is left of
// it.
func mustStand(t *testing.T, s *Store, r driver.Request) {
	t.Helper()
	if a := renew(t, s, r); a.State != driver.Held {
		t.Fatalf("what was granted cannot be renewed: %+v", a)
	}
	if n := len(queueIn(t, s.conn, s, r.Key)); n != 2 {
		t.Fatalf("%d nodes of a writer", n)
	}
	release(t, s, r)
	mustEmpty(t, s, r.Key)
}

func mustEmpty(t *testing.T, s *Store, key string) {
	t.Helper()
	eventually(t, "an empty line", func() bool { return len(queueIn(t, s.conn, s, key)) == 0 })
}

// makeNodes makes a claim and its nodes, and nothing more.
func makeNodes(t *testing.T, s *Store, r driver.Request) (*claim, created) {
	t.Helper()
	c := s.claim(r)
	c.guid, c.ttl = s.guidPrefix+"0123456789abcdef", r.TTL
	m, err := c.createNodes(t.Context(), driver.Request{Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	c.nodes, c.session = m.nodes, m.trip.link.id
	return c, m
}

// A claim that is unsure is not ended while an Acquire holds its turn.
func TestUnresolvedEndsInTurn(t *testing.T) {
	t.Parallel()
	s := openOn(t, "", testserver.SharedZooKeeper(t).Addr)
	r := writer("k")
	c := s.claim(r)
	c.guid = s.guidPrefix + "0123456789abcdef"
	c.unresolved(nil, ttl)
	if err := c.lockCalls(t.Context()); err != nil {
		t.Fatal(err)
	}
	overdue(c)
	if a := renew(t, s, r); a.State != driver.Unknown {
		t.Errorf("renewed: %+v, want driver.Unknown", a)
	}
	if c.is() == gone {
		t.Fatal("it was ended under the hands of who has the turn")
	}
	c.unlockCalls()
	overdue(c)
	if c.is() != gone {
		t.Error("it was not ended")
	}
}

// The time of an unsure claim is over while a repeated Acquire has found its nodes and
// reads the queue.
func TestUnresolvedEndsBesideWhatWasFound(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, "", proxy.Addr)
	known(t, s, "k")
	r := writer("k")
	cut := proxy.CutAfterRequest(creates(s, "k"))
	if _, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("%v, want driver.ErrUnknown", err)
	}
	<-cut
	c := s.find(r.Claim)
	var listings atomic.Int32
	proxy.Rewrite(faultproxy.ToServer, func(request []byte) []byte {
		if bytes.Contains(request, []byte(s.parent("k")+"\x00")) {
			if listings.Add(1) == 2 { // the first one found the nodes
				overdue(c)
			}
		}
		return request
	})
	r.Retry = true
	if g, _ := insist(t, s, r); g.Waiting {
		t.Fatal("it waits for no contender")
	}
	if n := listings.Load(); n < 2 {
		t.Fatalf("%d listings, want 2", n)
	}
	mustStand(t, s, r)
}

// The same while a repeated Acquire has found nothing and makes nodes.
func TestUnresolvedEndsBesideWhatIsMade(t *testing.T) {
	t.Parallel()
	s := openOn(t, "", testserver.SharedZooKeeper(t).Addr)
	known(t, s, "k")
	r := writer("k")
	c := s.claim(r)
	c.guid = s.guidPrefix + "0123456789abcdef"
	c.unresolved(nil, ttl)
	gather(s)
	r.Retry = true
	answered := make(chan error)
	go func() {
		g, err := s.Acquire(t.Context(), r)
		if g.Waiting {
			t.Error("it waits for no contender")
		}
		answered <- err
	}()
	queued(t, s, 1)
	overdue(c)
	flush(s)
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	mustStand(t, s, r)
}

// If a claim ends while its nodes are made, for any reason, its caller is not told that
// it has not ended, and the nodes are deleted.
func TestMadeTooLate(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	for name, among := range map[string]bool{"alone": false, "in a queue": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openOn(t, "", server.Addr)
			known(t, s, "k")
			holder := writer("k")
			if among {
				hold(t, openOn(t, s.root, server.Addr), holder)
			}
			for name, join := range map[string]func(c *claim, r driver.Request) (driver.Grant, error){
				"create": func(c *claim, r driver.Request) (driver.Grant, error) { return c.create(t.Context(), r) },
				"queue": func(c *claim, r driver.Request) (driver.Grant, error) {
					m, err := c.createNodes(t.Context(), driver.Request{Queue: true})
					if err != nil {
						t.Fatal(err)
					}
					c.nodes, c.session = m.nodes, m.trip.link.id
					return c.queue(t.Context(), r, m.trip, nil)
				},
			} {
				r := writer("k")
				c := s.claim(r)
				c.guid = s.guidPrefix + "0123456789abcdef"
				c.expire()
				if g, err := join(c, r); !errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("%s: %+v, %v, want driver.ErrUnavailable", name, g, err)
				}
				want := 0
				if among {
					want = 2
				}
				eventually(t, "no nodes", func() bool { return len(queueIn(t, s.conn, s, "k")) == want })
			}
		})
	}
}

// A claim that was renewed is not ended by a call that saw its old end.
func TestConfirmedAtItsEnd(t *testing.T) {
	t.Parallel()
	s := openOn(t, "", testserver.SharedZooKeeper(t).Addr)
	l := s.session.link()
	for name, end := range map[string]func(c *claim){
		"due":  (*claim).due,
		"sort": func(c *claim) { c.sort(t.Context(), 0, nil, nil) },
	} {
		for range 10_000 {
			c := s.claim(writer("k"))
			c.state, c.session = held, l.id
			c.end = bootclock.Now()
			c.timer = time.AfterFunc(time.Hour, c.due)
			var a driver.Renewal
			var both sync.WaitGroup
			c.Lock() // both have to wait, and get it one after the other
			both.Go(func() { end(c) })
			both.Go(func() { a = c.confirmed(request{link: l, proven: ttl}, ttl) })
			runtime.Gosched()
			c.Unlock()
			both.Wait()
			if a.State == driver.Held && c.is() == gone {
				t.Fatalf("%s: it is gone, and was confirmed", name)
			}
			c.expire()
		}
	}
}

// Another client deletes the first of two nodes before their claim has a position.
func TestHalfDeletedWhenMade(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := openOn(t, "", server.Addr)
	known(t, s, "k")
	r := writer("k")
	c, m := makeNodes(t, s, r)
	if err := plain(t, server.Addr).Delete(c.parent+"/"+c.nodes[0], -1); err != nil {
		t.Fatal(err)
	}
	if g, err := c.queue(t.Context(), r, m.trip, nil); !errors.Is(err, driver.ErrUnavailable) {
		t.Fatalf("%+v, %v, want driver.ErrUnavailable", g, err)
	}
	mustEmpty(t, s, "k")
}
