package redlock_test

import (
	"errors"
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
