package mysqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// proxied makes a store whose connections can be broken.
func proxied(t *testing.T, d *database) (*Store, *faultproxy.Proxy) {
	t.Helper()
	proxy := faultproxy.New(t, d.server.Addr)
	return d.openWith(t, func(c *Server, _ *options) { c.Addr = proxy.Addr }), proxy
}

func carries(what string) func([]byte) bool {
	return func(request []byte) bool { return bytes.Contains(request, []byte(what)) }
}

// Gotcha 5 and the oldest of all: the answer is lost after the effect.
func TestAnswerCutAfterTheEffect(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s, proxy := proxied(t, d)
	elsewhere := d.open(t)
	ask := func(c driver.Claim, retry bool) (driver.Grant, error) {
		return s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute, Queue: true, Retry: retry})
	}

	// The fast path, by its one statement for a key that is known.
	known, _ := take(t, s, claimOf("k", "before"), time.Minute, false)
	mustRelease(t, s, known)
	a := claimOf("k", "a")
	cut := proxy.CutAfterRequest(carries(a.ID))
	if _, err := ask(a, false); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("acquire: %v, want ErrUnknown", err)
	}
	<-cut
	if _, err := elsewhere.Acquire(t.Context(), driver.Request{Claim: claimOf("k", "x"), TTL: time.Minute}); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("elsewhere: %v, want it held", err)
	}
	g, err := ask(a, true)
	if err != nil || g.Waiting {
		t.Fatalf("the retry: %+v, %v", g, err)
	}
	a.Ticket = g.Ticket

	// The slow path: what was sent with the commit.
	b := claimOf("k", "b")
	cut = proxy.CutAfterRequest(carries(";COMMIT "))
	if _, err := ask(b, false); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("join: %v, want ErrUnknown", err)
	}
	<-cut
	if g, err := ask(b, true); err != nil || !g.Waiting {
		t.Fatalf("the retry: %+v, %v", g, err)
	}
	if info, err := elsewhere.Inspect(t.Context(), "k"); err != nil || len(info.Waiters) != 1 {
		t.Errorf("%+v, %v, want one position", info, err)
	}

	// Before the commit was sent there is nothing to be unsure of.
	c := claimOf("k", "c")
	cut = proxy.CutAfterRequest(carries("START TRANSACTION"))
	if _, err := ask(c, false); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("join: %v, want ErrUnavailable", err)
	}
	<-cut
	if info, err := elsewhere.Inspect(t.Context(), "k"); err != nil || len(info.Waiters) != 1 {
		t.Errorf("%+v, %v, want one position", info, err)
	}

	// A release that hands over, and one that does not.
	cut = proxy.CutAfterRequest(carries(";COMMIT "))
	if err := s.Release(t.Context(), a); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("release: %v, want ErrUnknown", err)
	}
	<-cut
	if err := s.Release(t.Context(), a); !errors.Is(err, driver.ErrLost) {
		t.Errorf("the repeated release: %v, want ErrLost", err)
	}
	if g, err := ask(b, true); err != nil || g.Waiting || g.Token <= a.Ticket {
		t.Errorf("the next: %+v, %v, want it held", g, err)
	}
	f, _ := take(t, s, claimOf("free", "f"), time.Minute, false)
	cut = proxy.CutAfterRequest(carries(f.ID))
	if err := s.Release(t.Context(), f); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("release: %v, want ErrUnknown", err)
	}
	<-cut
	take(t, elsewhere, claimOf("free", "g"), time.Minute, false)
}

// A release lasts while its commit is on the way. A waiter that renews its position
// meanwhile counts on a grant that lives for ClaimTTL from then on.
func TestGrantOfSlowReleaseLivesLongEnough(t *testing.T) {
	t.Parallel()
	d := shared(t)
	far, proxy := proxied(t, d)
	near := d.open(t)
	a, _ := take(t, far, claimOf("k", "a"), time.Minute, false)
	b, _ := take(t, near, claimOf("k", "b"), time.Minute, true)

	underWay, goOn := make(chan struct{}), make(chan struct{})
	proxy.Rewrite(faultproxy.ToServer, func(request []byte) []byte {
		if carries("COMMIT ")(request) {
			close(underWay)
			<-goOn
		}
		return request
	})
	released := make(chan error, 1)
	go func() { released <- far.Release(t.Context(), a) }()
	<-underWay
	time.Sleep(driver.ClaimTTL / 3) // how far it is away
	sent := time.Now()
	r := renewOne(t, near, b, time.Minute)
	close(goOn)
	if r.State != driver.Waiting {
		t.Fatalf("while the release is under way: %+v, want a confirmed place", r)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	var held bool
	var left int64
	if err := d.plain.QueryRow("SELECT held,TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),ends) FROM baton_claim").Scan(&held, &left); err != nil || !held {
		t.Fatalf("held %v, %v", held, err)
	}
	if end := time.Now().Add(time.Duration(left) * time.Microsecond); end.Before(sent.Add(driver.ClaimTTL)) {
		t.Errorf("the grant ends %v after the place was confirmed, want %v at least", end.Sub(sent), driver.ClaimTTL)
	}
}

// Nothing comes back any more, and no connection breaks.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s, proxy := proxied(t, d)
	a, _ := take(t, s, claimOf("a", "a"), time.Minute, false)
	b, _ := take(t, s, claimOf("a", "b"), time.Minute, true)
	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)
	for name, f := range map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, driver.Request{Claim: claimOf("new", "n"), TTL: time.Minute})
			return err
		},
		"join": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, driver.Request{Claim: claimOf("a", "n"), TTL: time.Minute, Queue: true})
			return err
		},
		"release": func(ctx context.Context) error { return s.Release(ctx, b) },
		"renew": func(ctx context.Context) error {
			for _, r := range s.Renew(ctx, []driver.Claim{a, b}, time.Minute) {
				if r.State != driver.Unknown {
					t.Errorf("renew: %+v", r)
				} else if r.Err != nil {
					return r.Err
				}
			}
			return nil
		},
		"inspect": func(ctx context.Context) error {
			_, err := s.Inspect(ctx, "a")
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		start := time.Now()
		if err := f(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the context's error", name, err)
		}
		cancel()
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("%s: came back after %v", name, d)
		}
	}
	proxy.Heal()
	proxy.Cut()
	eventually(t, "the store works again", 20*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return s.Renew(ctx, []driver.Claim{a}, time.Minute)[0].State == driver.Held
	})
}

// The server crashes under traffic, twice: no two claims hold at once, tokens rise, and
// every claim is granted.
func TestServerKilledUnderTraffic(t *testing.T) {
	testserver.Long(t)
	testserver.NeedMariaDB(t)
	t.Parallel()
	d := newDatabase(t, testserver.MariaDB(t))
	var inside, served atomic.Int64
	var mu sync.Mutex
	last := int64(0)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	const each, kills = 10, 2
	for range 3 {
		s := d.open(t)
		for range 3 {
			wg.Go(func() {
				for n := 0; n < each || served.Load() < kills*40; n++ {
					c, token, err := insist(ctx, s, "k")
					if err != nil {
						t.Errorf("never served: %v", err)
						return
					}
					if inside.Add(1) != 1 {
						t.Error("two hold at once")
					}
					mu.Lock()
					if token <= last {
						t.Errorf("token %d after %d", token, last)
					}
					last = token
					mu.Unlock()
					inside.Add(-1)
					served.Add(1)
					for err := s.Release(ctx, c); err != nil && !errors.Is(err, driver.ErrLost); err = s.Release(ctx, c) {
						if ctx.Err() != nil {
							t.Errorf("release: %v", err)
							return
						}
					}
				}
			})
		}
	}
	for i := range kills {
		eventually(t, "some were served", time.Minute, func() bool { return served.Load() >= int64(20+40*i) || t.Failed() })
		d.server.Restart()
	}
	wg.Wait()
}

// insist asks until it holds, as the portable layer does.
func insist(ctx context.Context, s *Store, key string) (c driver.Claim, token int64, err error) {
	for retry := false; ctx.Err() == nil; {
		if c.ID == "" {
			c, retry = claimOf(key, "insistent"), false
		}
		g, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: 10 * time.Minute, Queue: true, Retry: retry})
		if err != nil {
			if !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable) {
				return c, 0, err
			}
			retry = retry || errors.Is(err, driver.ErrUnknown)
			continue
		}
		c.Ticket = g.Ticket
		for g.Waiting && ctx.Err() == nil {
			switch r := s.Renew(ctx, []driver.Claim{c}, 10*time.Minute)[0]; r.State {
			case driver.Held:
				return c, r.Grant.Token, nil
			case driver.Lost:
				g.Waiting, c = false, driver.Claim{} // joins the queue again
			}
		}
		if c.ID != "" && !g.Waiting {
			return c, g.Token, nil
		}
	}
	return c, 0, ctx.Err()
}

// Another transaction holds the row of one key: a request for that one fails in time,
// with no effect, and no other does.
func TestUsersTransactionHoldsARow(t *testing.T) {
	t.Parallel()
	d := shared(t)
	for i, s := range []*Store{d.openWith(t, func(_ *Server, o *options) { o.stall = 1 }), d.open(t)} {
		key := fmt.Sprint("k", i)
		c, _ := take(t, s, claimOf(key, "a"), time.Minute, false)
		mustRelease(t, s, c)
		blocker := lockRow(t, d, "baton_lock", key)
		reader := claimOf(key, "b")
		reader.Weight = 1
		for _, c := range []driver.Claim{claimOf(key, "b"), reader} {
			_, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute, Queue: true})
			if !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("acquire: %v, want ErrUnavailable", err)
			}
		}
		other, _ := take(t, s, claimOf("other"+key, "b"), time.Minute, false)
		mustRelease(t, s, other)
		commit(t, blocker)
		info, err := s.Inspect(t.Context(), key)
		if err != nil || len(info.Holders)+len(info.Waiters) > 0 {
			t.Errorf("left behind: %+v, %v", info, err)
		}
		take(t, s, claimOf(key, "c"), time.Minute, false)
	}
}

// Closing a store does not tell that its connections were gone already.
func TestCloseWithoutConnections(t *testing.T) {
	t.Parallel()
	s, proxy := proxied(t, shared(t))
	h, _ := take(t, s, claimOf("k", "h"), time.Minute, false)
	mustRelease(t, s, h)
	proxy.Cut()
	eventually(t, "the connections are gone", 10*time.Second, func() bool { return proxy.Conns() == 0 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A fail-over behind one address: the old server lives on and only reads, and the open
// connections still lead to it.
func TestTheAddressLeadsToAnotherServer(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	old, successor := testserver.MariaDB(t), testserver.SharedMariaDB(t)
	d := newDatabase(t, successor)
	admin := d.config()
	admin.Addr, admin.DBName = old.Addr, ""
	there := pool(t, admin)
	for _, text := range []string{
		"CREATE DATABASE IF NOT EXISTS " + d.name,
		"CREATE USER " + d.name + " IDENTIFIED BY ''", // root may write nevertheless
		"GRANT ALL ON " + d.name + ".* TO " + d.name,
	} {
		if _, err := there.Exec(text); err != nil {
			t.Fatal(err)
		}
		d.exec(t, text)
	}
	proxy := faultproxy.New(t, old.Addr)
	s, err := Open(t.Context(), Server{Addr: proxy.Addr, Database: d.name, User: d.name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	drivertest.Elsewhere(t, s, func() {
		if _, err := there.Exec("SET GLOBAL read_only = ON"); err != nil {
			t.Fatal(err)
		}
		keepsConnections(t, s, there)
		proxy.Retarget(successor.Addr)
	})
}

// keepsConnections checks that a server which stays read-only is not asked for a connection
// with each request.
func keepsConnections(t *testing.T, s *Store, server *sql.DB) {
	t.Helper()
	made := func() (n int) {
		if err := server.QueryRow("SHOW GLOBAL STATUS LIKE 'Connections'").Scan(new(string), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const requests = 60
	began, before := time.Now(), made()
	for range requests {
		if _, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("k", "a"), TTL: time.Minute}); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("on a read-only server: %v, want driver.ErrUnavailable", err)
		}
	}
	n, took := made()-before, time.Since(began)
	if most := 10 * int(1+took/time.Second); n > most && most < requests {
		t.Errorf("%d connections for %d requests within %v", n, requests, took)
	}
}

func TestClosedPool(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	d := newDatabase(t, testserver.SharedMariaDB(t))
	db := pool(t, d.config())
	s, err := New(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	drivertest.ClosedClient(t, s, func() { db.Close() })
}
