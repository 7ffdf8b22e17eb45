package redlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

// What a server holds for a claim that is only the head of the queue, it holds for a
// little while. A request for that which was not answered may come late, and take its
// time off a lock that has been granted since: so that server is not counted.
func TestUnansweredPollOfTheHead(t *testing.T) {
	for _, unanswered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newServers(t, 3)
			l := s.open(1)[0]
			r := driver.Request{Claim: claimOf("k"), TTL: time.Minute, Queue: true}
			leave := s.stands(claimOf("k"), 0, 1, 2)
			g, err := l.Acquire(t.Context(), r)
			if err != nil || !g.Waiting {
				t.Fatalf("got %+v, %v, want a position", g, err)
			}
			r.Ticket = g.Ticket
			line := s.positionsOf(r.Claim)
			leave(line)
			if a := renew(t, l, r.Claim, time.Minute); a.State != driver.Waiting {
				t.Fatalf("the head: %+v", a)
			}
			synctest.Wait()
			others := []int{(line + 1) % 3, (line + 2) % 3}
			if unanswered {
				s.list[line].set(func() { s.list[line].lose = 1 })
			}
			renew(t, l, r.Claim, time.Minute)
			synctest.Wait()

			s.cut(true, others[0])
			leave(others[1])
			state := driver.Waiting
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && state == driver.Waiting; time.Sleep(10 * time.Millisecond) {
				state = renew(t, l, r.Claim, time.Minute).State
			}
			if held := state == driver.Held; held == unanswered {
				t.Errorf("unanswered %v: %v by two servers of three", unanswered, state)
			}
			if !unanswered {
				return
			}
			// Under another ID it is asked for again.
			next := claimOf("k")
			s.cut(false, others[0])
			leave(others[0])
			if err := l.Release(t.Context(), r.Claim); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Errorf("release: %v", err)
			}
			time.Sleep(3 * time.Second)
			acquire(t, l, next, time.Minute)
		})
	}
}

// lineOf is the server on which c waits.
func (s *servers) positionsOf(c driver.Claim) int {
	s.t.Helper()
	for i, n := range s.list {
		a := n.store.Renew(context.Background(), []driver.Claim{{Key: c.Key, ID: c.ID, Owner: c.Owner, Weight: c.Weight, Capacity: c.Capacity}}, time.Minute)
		if a[0].State == driver.Waiting {
			return i
		}
	}
	s.t.Fatalf("%q waits nowhere", c.Key)
	return 0
}

// Servers that would be asked next, if the first take long, are not asked for a claim
// that has been given up.
func TestSpareServersOfWhoHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 5)
		l := s.open(1)[0]
		for _, n := range s.list[1:] { // the first answers: others are soon asked, too
			n.set(func() { n.late = 20 * time.Millisecond })
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Microsecond)
		defer cancel()
		if _, err := l.Acquire(ctx, driver.Request{Claim: claimOf("k"), TTL: time.Minute}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("acquire: %v", err)
		}
		time.Sleep(5 * time.Millisecond) // they are asked after one
		if n := s.votes("k"); n > 3 {
			t.Errorf("%d servers have been asked, want 3", n)
		}
		time.Sleep(time.Second)
		if n := s.votes("k"); n != 0 {
			t.Errorf("it is left on %d servers", n)
		}
	})
}
