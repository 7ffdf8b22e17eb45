package redisstore

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// losing is a client that loses calls, and keeps them: what was sent may be
// executed later.
type losing struct {
	wire.Client
	mu    sync.Mutex
	lose  *wire.Script
	lost  chan wire.Call
	again int // how many more times
}

func (c *losing) Run(ctx context.Context, call wire.Call) (any, error) {
	c.mu.Lock()
	lose := c.again > 0 && call.Script == c.lose
	if lose {
		c.again--
	}
	c.mu.Unlock()
	if lose {
		c.lost <- call
		return nil, io.ErrUnexpectedEOF
	}
	return c.Client.Run(ctx, call)
}

func (c *losing) next(n int, s *wire.Script) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.again, c.lose = n, s
}

// loseAcquire acquires, and the request is kept instead of being sent.
func (c *losing) loseAcquire(t testing.TB, s *Store, r driver.Request, script *wire.Script) {
	t.Helper()
	c.next(1, script)
	if _, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("lost: %v", err)
	}
}

// lossy makes the store's client lose calls.
func (l *lab) lossy(s *Store) *losing {
	c := &losing{Client: s.client, lost: make(chan wire.Call, 100)}
	s.client = c
	return c
}

// late makes the server execute what was kept.
func (l *lab) late(c *losing) {
	l.Helper()
	call := <-c.lost
	call.Full = true
	if _, err := c.Client.Run(l.Context(), call); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) awaitFree(what string) {
	l.Helper()
	eventually(l, what+": a free lock", 10*time.Second, func() bool { return l.do("EXISTS", l.key) == "0" })
}

// Attempts that were not answered come through after the claim was granted to a
// later one, and released.
func TestLateAttemptsAfterAGoodRelease(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	net := l.lossy(s)
	for _, together := range []bool{false, true} {
		r := driver.Request{Claim: claimOf(l.key, "a"), TTL: time.Minute}
		script := acquireScript
		acquire := s.Acquire
		if together {
			script = togetherScript
			acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				g, err := s.AcquireAll(ctx, []driver.Request{r})
				return append(g, driver.Grant{})[0], err
			}
		}
		net.next(1, script)
		if _, err := acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("lost: %v", err)
		}
		r.Retry = true
		if !together { // and once more
			net.next(1, enterScript)
			if _, err := acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
				t.Fatalf("lost: %v", err)
			}
		}
		g, err := acquire(t.Context(), r)
		if err != nil || g.Waiting {
			t.Fatalf("repeated: %+v, %v", g, err)
		}
		c := r.Claim
		c.Ticket = g.Ticket
		mustRelease(t, s, c)
		for len(net.lost) > 0 {
			l.late(net)
			l.awaitFree("an attempt that came late")
		}
	}
}

// Both attempts come through after the release that cleans up behind them: that one was
// found says nothing about the other.
func TestLateAttemptAfterTheFirstWasFound(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	net := l.lossy(s)
	r := driver.Request{Claim: claimOf(l.key, "a"), TTL: time.Minute}
	net.loseAcquire(t, s, r, acquireScript)
	r.Retry = true
	net.loseAcquire(t, s, r, enterScript)
	l.late(net)
	mustRelease(t, s, r.Claim)
	l.late(net)
	l.awaitFree("the other one")
}

// A claim whose ID is used again after its release is not released, unless a request
// that would release it may be on its way.
func TestIDThatIsUsedAgain(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	net := l.lossy(s)
	r := driver.Request{Claim: claimOf(l.key, "a"), TTL: time.Minute}
	net.loseAcquire(t, s, r, acquireScript)
	<-net.lost
	r.Retry = true
	for range 2 {
		g, err := s.Acquire(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		s.unresolved.mu.Lock()
		if n := len(s.unresolved.watched); n != 0 {
			t.Errorf("%d claims are watched, and one of them is held", n)
		}
		s.unresolved.mu.Unlock()
		c := r.Claim
		c.Ticket = g.Ticket
		if a := renewOne(t, s, c, time.Minute); a.State != driver.Held {
			t.Errorf("used again: %+v", a)
		}
		mustRelease(t, s, c)
	}

	net.next(1, leaveScript)
	<-net.lost // the first look
	if g, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("while a request that ends it may be on its way: %+v, %v, want driver.ErrLost", g, err)
	}
}

// What is remembered of attempts is bounded.
func TestUnresolvedIsBounded(t *testing.T) {
	t.Parallel()
	var o unresolved
	for range 2 * maxUnresolved {
		o.attempted(driver.NewID(), false, driver.ErrUnknown)
	}
	if n := len(o.unanswered); n != maxUnresolved || o.known.Load() != maxUnresolved {
		t.Errorf("%d IDs are remembered, want %d", n, maxUnresolved)
	}
}
