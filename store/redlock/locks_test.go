package redlock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// A grant is trusted for its TTL from when it was asked for, less what clocks
// may differ by; one whose majority took longer than that is none.
func TestTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		if _, g := acquire(t, l, claimOf("k"), 10*time.Second); g.TTL != 10*time.Second-100*time.Millisecond-2*time.Millisecond {
			t.Errorf("trusted for %v", g.TTL)
		}
		for _, node := range s.list[:3] {
			node.set(func() { node.late = 300 * time.Millisecond })
		}
		_, err := l.Acquire(t.Context(), driver.Request{Claim: claimOf("other"), TTL: 250 * time.Millisecond})
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("a majority that took longer than the TTL: %v, want ErrUnavailable", err)
		}
		time.Sleep(time.Second)
		if n := s.votes("other"); n != 0 {
			t.Errorf("not granted, and held on %d servers", n)
		}
	})
}

// The clocks of two servers jump, so that the lock ends there: the three that remain
// still keep others out, and the holder acquires it again on the two.
func TestTwoClocksJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		locks := s.open(2)
		c, _ := acquire(t, locks[0], claimOf("k"), 10*time.Second)
		synctest.Wait()
		if n := s.votes("k"); n != 5 {
			t.Fatalf("held on %d servers, want all that answer", n)
		}
		for _, node := range s.list[:2] {
			if _, err := node.store.Break(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		if g, err := locks[1].Acquire(t.Context(), driver.Request{Claim: claimOf("k"), TTL: 10 * time.Second}); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("granted beside another: %+v, %v", g, err)
		}
		synctest.Wait()
		for range 2 { // the first may have ended before it heard of all
			if r := renew(t, locks[0], c, 10*time.Second); r.State != driver.Held {
				t.Errorf("renewed: %+v", r)
			}
			synctest.Wait()
		}
		if n := s.votes("k"); n != 5 {
			t.Errorf("put back on %d servers, want 5", n)
		}
	})
}

// Sixteen claims of one lock do not split the votes among themselves, however different
// the ways to the servers are: each hand-over takes a few round trips.
func TestNoSplitVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, rounds, slowest = 16, 10, 9 * time.Millisecond
		s := newServers(t, 5)
		stores := s.open(clients)
		for i, node := range s.list {
			node.set(func() { node.late = slowest - time.Duration(i)*2*time.Millisecond })
		}
		begun := time.Now()
		var wg sync.WaitGroup
		for _, store := range stores {
			locks, err := baton.New(store, baton.Config{})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for range rounds {
					lease, err := locks.Lock(t.Context(), "k")
					if err != nil {
						t.Error(err)
						return
					}
					if err := lease.Unlock(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		each := time.Since(begun) / (clients * rounds)
		t.Logf("a turn takes %v", each)
		if each > 6*slowest {
			t.Errorf("a turn takes %v, and the slowest round trip %v", each, slowest)
		}
	})
}

// The token of a grant is known to a majority, so that the next token is higher even if
// its majority shares only one server with it and has clocks that are behind. Nor does
// the token fall where another process repeats the request, renews or downgrades.
func TestTokensRiseBetweenMajorities(t *testing.T) {
	for name, again := range map[string]func(context.Context, driver.Locks, driver.Claim) (driver.Grant, error){
		"repeat": func(ctx context.Context, l driver.Locks, c driver.Claim) (driver.Grant, error) {
			return l.Acquire(ctx, driver.Request{Claim: c, TTL: 10 * time.Second, Retry: true})
		},
		"renew": func(ctx context.Context, l driver.Locks, c driver.Claim) (driver.Grant, error) {
			r := l.Renew(ctx, []driver.Claim{c}, 10*time.Second)[0]
			return r.Grant, r.Err
		},
		"downgrade": func(ctx context.Context, l driver.Locks, c driver.Claim) (driver.Grant, error) {
			return l.(driver.Downgrader).Downgrade(ctx, c, 10*time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { tokensRise(t, again) }) })
	}
}

func tokensRise(t *testing.T, again func(context.Context, driver.Locks, driver.Claim) (driver.Grant, error)) {
	s := newServers(t, 5)
	last := int64(0)
	if _, err := s.list[2].store.Raise(t.Context(), "k", time.Now().Add(time.Hour).UnixMicro()); err != nil {
		t.Fatal(err)
	}
	cut := func(down ...int) {
		for i, node := range s.list {
			node.set(func() { node.cut = slices.Contains(down, i) })
		}
		time.Sleep(3 * time.Second)
	}
	for _, down := range [][]int{{3, 4}, {2, 1}, {0, 2}, {1, 3}, {2, 4}} {
		cut(down...)
		l := s.open(1)[0]
		c, g := acquire(t, l, claimOf("k"), 10*time.Second)
		if g.Token <= last {
			t.Errorf("without %v: token %d after %d", down, g.Token, last)
		}
		last = g.Token
		cut()
		if r := renew(t, l, c, 20*time.Second); r.State != driver.Held || r.Grant.Token != last {
			t.Fatalf("without %v: renewed: %+v", down, r)
		}
		synctest.Wait() // all servers hold
		cut(2)          // the server of the highest token
		other := s.open(1)[0]
		known := c
		c.Ticket = 0 // the answer was lost
		switch g, err := again(t.Context(), other, c); {
		case err != nil:
			t.Errorf("without %v: again: %v", down, err)
		case g.Token < last:
			t.Errorf("without %v: the token fell from %d to %d", down, last, g.Token)
		default:
			last = g.Token
		}
		cut()
		if err := l.Release(t.Context(), known); err != nil {
			t.Error(err)
		}
	}
}
