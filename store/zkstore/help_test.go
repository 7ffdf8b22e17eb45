package zkstore

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/testserver"
)

const ttl = 10 * time.Second

// testTime bounds every wait for what must come.
const testTime = 30 * time.Second

// openOn opens a store with a root of its own, or at the one given.
func openOn(t *testing.T, root string, addrs ...string) *Store {
	t.Helper()
	if root == "" {
		root = "/" + rand.Text()
	}
	return mustOpen(t, Server{Addrs: addrs}, Config{Root: root})
}

// longWaiting keeps claims in the store although the test is slow to renew them.
func longWaiting(s *Store) *Store {
	s.waiterTTL, s.claimTTL = time.Minute, time.Minute
	return s
}

func writer(key string) driver.Request {
	return driver.Request{
		Claim: driver.Claim{Key: key, ID: driver.NewID(), Owner: "tester", Weight: driver.Whole, Capacity: driver.Whole},
		TTL:   ttl, Queue: true,
	}
}

func reader(key string) driver.Request {
	r := writer(key)
	r.Weight = 1
	return r
}

func permits(key string, n, of int64) driver.Request {
	r := writer(key)
	r.Weight, r.Capacity = n, of
	return r
}

// acquire must succeed; g.Waiting is for the caller to look at.
func acquire(t *testing.T, s *Store, r driver.Request) driver.Grant {
	t.Helper()
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	return g
}

func hold(t *testing.T, s *Store, r driver.Request) driver.Grant {
	t.Helper()
	g := acquire(t, s, r)
	if g.Waiting {
		t.Fatal("it waits, want it held")
	}
	return g
}

// insist repeats an acquire until there is an answer, and returns when that request was
// sent.
func insist(t *testing.T, s *Store, r driver.Request) (g driver.Grant, sent time.Time) {
	t.Helper()
	eventually(t, "an acquire", func() bool {
		var err error
		sent = bootclock.Now()
		g, err = s.Acquire(t.Context(), r)
		r.Retry = true
		return err == nil
	})
	return g, sent
}

func release(t *testing.T, s *Store, r driver.Request) {
	t.Helper()
	if err := s.Release(t.Context(), r.Claim); err != nil {
		t.Fatalf("release: %v", err)
	}
}

func renew(t *testing.T, s *Store, r driver.Request) driver.Renewal {
	t.Helper()
	return s.Renew(t.Context(), []driver.Claim{r.Claim}, r.TTL)[0]
}

// watching returns the hints about a claim.
func watching(t *testing.T, s *Store, r driver.Request) <-chan driver.Hint {
	hints := make(chan driver.Hint, 16)
	t.Cleanup(s.Watch(r.Claim, func(h driver.Hint) {
		select {
		case hints <- h:
		default:
		}
	}))
	return hints
}

// awaitHeld waits until the claim was granted: by a hint, or by a renewal after a hint
// that only something has happened, as there is when the session was not heard of for
// long. at is when the store said so first.
func awaitHeld(t *testing.T, s *Store, r driver.Request, hints <-chan driver.Hint) (g driver.Grant, at time.Time) {
	t.Helper()
	late := time.After(testTime)
	for {
		select {
		case h := <-hints:
			at := bootclock.Now()
			if h.Granted {
				return h.Grant, at
			}
			switch a := renew(t, s, r); a.State {
			case driver.Held:
				return a.Grant, at
			case driver.Lost:
				t.Fatal("its position was lost")
			}
		case <-late:
			t.Fatal("it was not granted")
		}
	}
}

// eventually polls until ok says so.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTime)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v", what, testTime)
		}
	}
}

// queueIn lists the nodes of a key, as an operator sees them.
func queueIn(t *testing.T, c *zk.Conn, s *Store, key string) []string {
	t.Helper()
	if _, err := c.Sync(s.root); err != nil {
		t.Fatalf("sync: %v", err)
	}
	names, _, err := c.Children(s.parent(key))
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatalf("list: %v", err)
	}
	return names
}

// plain is a client like any other.
func plain(t *testing.T, addrs ...string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect(addrs, 20*time.Second, zk.WithLogger(silent), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	late := time.After(testTime)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return c
			}
		case <-late:
			t.Fatal("no session")
		}
	}
}

// counted returns how many requests and transactions f costs the server. It asks again
// if pings came in between, which take no transaction.
func counted(t *testing.T, server *testserver.ZooKeeperServer, f func()) testserver.Counters {
	t.Helper()
	before := server.Count(t)
	f()
	after := server.Count(t)
	return testserver.Counters{
		Requests: after.Requests - before.Requests - 1, // the second question itself
		Commits:  after.Commits - before.Commits,
	}
}
