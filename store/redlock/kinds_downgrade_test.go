package redlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

// What is asked for where a lock is missing, while it is being downgraded, is
// not asked for as a writer: readers are to find all servers open.
func TestFillingDuringADowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		c := claimOf("k")
		g, err := l.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if n := s.votes("k"); n != 3 {
			t.Fatalf("held on %d servers, want 3: the others are asked later", n)
		}
		for _, node := range s.list[:3] {
			node.set(func() { node.late = 10 * time.Millisecond })
		}
		c.Ticket = g.Ticket
		if _, err := l.(driver.Downgrader).Downgrade(t.Context(), c, time.Minute); err != nil {
			t.Fatal(err)
		}
		if n := s.votes("k"); n != 5 {
			t.Fatalf("held on %d servers, want 5", n)
		}
		s.admitReaders("k")
	})
}

// A renewal that was sent by the writer, and is answered after the downgrade,
// does not bring the writer back where the lock was missing.
func TestRenewalDuringADowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		s.cut(true, 3, 4)
		c, _ := acquire(t, l, claimOf("k"), time.Minute)
		s.cut(false, 3, 4)
		time.Sleep(2 * time.Second) // until they are asked again
		if _, err := l.(driver.Downgrader).Downgrade(t.Context(), c, time.Minute); err != nil {
			t.Fatal(err)
		}
		if r := renew(t, l, c, time.Minute); r.State != driver.Held {
			t.Fatalf("renewed: %+v", r)
		}
		synctest.Wait()
		if n := s.votes("k"); n != 5 {
			t.Fatalf("held on %d servers, want 5", n)
		}
		s.admitReaders("k")
	})
}

// admitReaders fails the test unless every server would grant key to a reader.
func (s *servers) admitReaders(key string) {
	s.t.Helper()
	for i, node := range s.list {
		reader := claimOf(key)
		reader.Weight = 1
		if _, err := node.store.Acquire(context.Background(), driver.Request{Claim: reader, TTL: time.Minute}); err != nil {
			s.t.Errorf("server %d refuses a reader: %v", i, err)
		}
	}
}
