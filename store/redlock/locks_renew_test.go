package redlock_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redlock"
)

// stands holds a lock on some servers, for a claim that got no further, or could not
// release it there yet.
func (s *servers) stands(c driver.Claim, on ...int) (leave func(...int)) {
	s.t.Helper()
	for _, i := range on {
		if _, err := s.list[i].store.Acquire(context.Background(), driver.Request{Claim: c, TTL: time.Minute}); err != nil {
			s.t.Fatalf("server %d: %v", i, err)
		}
	}
	return func(on ...int) {
		s.t.Helper()
		for _, i := range on {
			if err := s.list[i].store.Release(context.Background(), c); err != nil {
				s.t.Fatalf("server %d: %v", i, err)
			}
		}
	}
}

func (s *servers) cut(cut bool, which ...int) {
	for _, i := range which {
		s.list[i].set(func() { s.list[i].cut = cut })
	}
}

// fromQueue joins the queue of key, makes other claims leave the server of the queue,
// and renews until it holds.
func fromQueue(t *testing.T, l driver.Locks, key string, ttl time.Duration, leave func()) driver.Claim {
	t.Helper()
	c := claimOf(key)
	g, err := l.Acquire(t.Context(), driver.Request{Claim: c, TTL: ttl, Queue: true})
	if err != nil || !g.Waiting {
		t.Fatalf("got %+v, %v, want a position", g, err)
	}
	c.Ticket = g.Ticket
	leave()
	return renewUntilHeld(t, l, c, ttl)
}

func renewUntilHeld(t *testing.T, l driver.Locks, c driver.Claim, ttl time.Duration) driver.Claim {
	t.Helper()
	for range 100 {
		r := renew(t, l, c, ttl)
		switch r.State {
		case driver.Held:
			c.Ticket = r.Grant.Ticket
			time.Sleep(5 * time.Millisecond) // until all servers were asked
			return c
		case driver.Waiting:
			time.Sleep(10 * time.Millisecond)
		default:
			t.Fatalf("from the line: %+v", r)
		}
	}
	t.Fatal("not granted")
	return c
}

// A server that still has to get a release gives the lock to others as soon as it
// answers again. What it says until then does not count.
func TestOwedServersDoNotConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the queue of "c" is on the third server
		const ttl = 20 * time.Second
		s := newServers(t, 5)
		l := s.open(1)[0]
		leave := s.stands(claimOf("c"), 0, 2)
		s.list[2].set(func() { s.list[2].late = 10 * time.Millisecond })
		time.AfterFunc(5*time.Millisecond, func() { s.cut(true, 1) }) // it has granted, and cannot be told that this was in vain
		c := fromQueue(t, l, "c", ttl, func() {
			synctest.Wait() // the others have been told
			s.list[2].set(func() { s.list[2].late = 0 })
			s.cut(true, 4)
			leave(0, 2)
		})
		if n := s.votes("c"); n != 4 {
			t.Fatalf("held on %d servers, want 4, one of which has a release pending", n)
		}
		s.cut(false, 1)
		s.cut(true, 3)
		if r := renew(t, l, c, ttl); r.State == driver.Held {
			t.Errorf("confirmed by two servers and one that has a release pending: %+v", r)
		}
	})
}

// gated holds requests back.
type gated struct {
	*server
	acquire, raise, release <-chan struct{} // nil: let through
	refuse                  bool            // to grant
}

func (g gated) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if g.refuse {
		return driver.Grant{}, driver.ErrUnavailable
	}
	if g.acquire != nil {
		<-g.acquire
	}
	return g.server.Acquire(ctx, r)
}

func (g gated) Raise(ctx context.Context, key string, token int64) (int64, error) {
	if g.raise != nil {
		<-g.raise
	}
	return g.server.Raise(ctx, key, token)
}

func (g gated) Release(ctx context.Context, c driver.Claim) error {
	if g.release != nil {
		<-g.release
	}
	return g.server.Release(ctx, c)
}

// Where a lock is being given up it is held no more, although the server has not
// been reached yet, and although no time has passed since it granted.
func TestLockThatIsBeingGivenUpDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the queue of "c" is on the third server
		s := newServers(t, 5)
		release := make(chan struct{})
		free := sync.OnceFunc(func() { close(release) })
		l, err := redlock.New([]redlock.Member{
			gated{server: s.list[0], release: release},
			gated{server: s.list[1], release: release},
			s.list[2], s.list[3], s.list[4],
		}, redlock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		defer free()
		leave := s.stands(claimOf("c"), 2, 3, 4)
		c := claimOf("c")
		g, err := l.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute, Queue: true})
		if err != nil || !g.Waiting {
			t.Fatalf("got %+v, %v, want a position", g, err)
		}
		c.Ticket = g.Ticket
		leave(2)
		if r := renew(t, l, c, time.Minute); r.State != driver.Waiting {
			t.Fatalf("%+v: two servers of three are about to forget it", r)
		}
		free()
		c = renewUntilHeld(t, l, c, time.Minute)
		if n := s.votes("c"); n != 5 {
			t.Errorf("held on %d servers, by the claim or by the one that was there before, want 5", n)
		}
		if r := renew(t, l, c, time.Minute); r.State != driver.Held {
			t.Errorf("renewed: %+v", r)
		}
	})
}

// The token is written back where it was granted. Another server may have granted
// another claim already, and is not asked for a number again.
func TestTokenIsWrittenWhereItWasGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 3)
		if _, err := s.list[0].store.Raise(t.Context(), "k", time.Now().Add(time.Hour).UnixMicro()); err != nil {
			t.Fatal(err)
		}
		open := func(nodes ...redlock.Member) driver.Locks {
			l, err := redlock.New(nodes, redlock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			return l
		}
		raise, acquire := make(chan struct{}), make(chan struct{})
		a := open(s.list[0], gated{server: s.list[1], raise: raise}, s.list[2])
		b := open(gated{server: s.list[0], refuse: true}, gated{server: s.list[1], acquire: acquire}, s.list[2])

		next := make(chan int64)
		go func() {
			g, err := b.Acquire(context.Background(), driver.Request{Claim: claimOf("k"), TTL: time.Minute})
			if err != nil {
				t.Error(err)
			}
			next <- g.Token
		}()
		time.Sleep(10 * time.Millisecond) // it has the third server, and waits for the second
		time.AfterFunc(100*time.Millisecond, func() { close(raise) })
		c := claimOf("k")
		g, err := a.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		c.Ticket = g.Ticket
		if err := a.Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		close(acquire)
		if token := <-next; token <= g.Token {
			t.Errorf("token %d after %d", token, g.Token)
		}
		time.Sleep(time.Second)
	})
}

// A lock that was won from the queue has positions on servers where other claims still
// hold. Such a position is the writer's, and goes when the lock is downgraded.
func TestDowngradeGivesUpPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the queue of "c" is on the third server
		s := newServers(t, 5)
		l := s.open(1)[0]
		leave := s.stands(claimOf("c"), 2, 3, 4)
		c := fromQueue(t, l, "c", time.Minute, func() { leave(2) })
		if _, err := l.(driver.Downgrader).Downgrade(t.Context(), c, time.Minute); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the positions are gone, too
		leave(3, 4)
		if r := renew(t, l, c, time.Minute); r.State != driver.Held {
			t.Fatalf("renewed: %+v", r)
		}
		synctest.Wait()
		if n := s.votes("c"); n != 5 {
			t.Errorf("held on %d servers, want 5", n)
		}
		s.admitReaders("c")
	})
}

// Its positions do not turn a held lock into a waiting claim when a server that holds
// it is late for once.
func TestPlacesOfAHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the queue of "c" is on the third server
		s := newServers(t, 5)
		l := s.open(1)[0]
		leave := s.stands(claimOf("c"), 2, 3, 4)
		c := fromQueue(t, l, "c", time.Minute, func() { leave(2) })
		s.cut(true, 0)
		if r := renew(t, l, c, time.Minute); r.State != driver.Unknown {
			t.Errorf("with one server away: %+v, want it unknown", r)
		}
		s.cut(false, 0)
		if r := renew(t, l, c, time.Minute); r.State != driver.Held {
			t.Errorf("with all servers: %+v, want it held", r)
		}
	})
}

// A server that was away is asked again although those that answer are enough.
func TestServersThatWereAwayComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		s.cut(true, 4)
		for range 5 {
			c, _ := acquire(t, l, claimOf("k"), time.Minute)
			if err := l.Release(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		s.cut(false, 4)
		time.Sleep(5 * time.Second)
		c, _ := acquire(t, l, claimOf("k"), time.Minute)
		if r := renew(t, l, c, time.Minute); r.State != driver.Held {
			t.Fatalf("renewed: %+v", r)
		}
		synctest.Wait()
		if n := s.votes("k"); n != 5 {
			t.Errorf("held on %d servers, want 5", n)
		}
	})
}
