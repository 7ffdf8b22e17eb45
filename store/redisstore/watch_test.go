package redisstore

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// The connection that brings hints is made again: waiters look again, as they may have
// missed their grant. Holders, of which there may be thousands, do not.
func TestHintsAfterReconnection(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	l.awaitSubscribed(s)
	watch := func(c driver.Claim) *atomic.Int32 {
		hints := new(atomic.Int32)
		t.Cleanup(s.Watch(c, func(h driver.Hint) {
			if !h.Granted {
				hints.Add(1)
			}
		}))
		return hints
	}
	var held []*atomic.Int32
	for _, key := range []string{l.key, l.key + "/2", l.key + "/3"} {
		c := claimOf(key, "a")
		held = append(held, watch(c))
		take(t, s, c, time.Minute, false)
	}
	granted := claimOf(l.key+"/4", "b") // by the queue, later
	held = append(held, watch(granted))
	first, _ := take(t, s, claimOf(granted.Key, "a"), time.Minute, false)
	granted, _ = take(t, s, granted, time.Minute, true)
	mustRelease(t, s, first)
	eventually(t, "the grant", 10*time.Second, func() bool { return renewOne(t, s, granted, time.Minute).State == driver.Held })

	waiter := claimOf(l.key, "b")
	waits := watch(waiter)
	take(t, s, waiter, time.Minute, true)
	for n := int32(1); n <= 2; n++ { // what the first one leads to is over with the second
		l.do("CLIENT", "KILL", "TYPE", "pubsub")
		eventually(t, "a hint for the waiter", 20*time.Second, func() bool { return waits.Load() >= n })
	}
	for i, hints := range held {
		if n := hints.Load(); n != 0 {
			t.Errorf("holder %d was told to look %d times", i, n)
		}
	}
}

// Messages that were published while the connection was down are gone, so all waiters
// look again when it is back; and it must come back, each time.
func TestPushConnectionIsMadeAnew(t *testing.T) {
	l := newLab(t, 2)
	l.awaitSubscribed(l.stores...)
	for range 3 {
		holder, _ := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
		w := claimOf(l.key, "b")
		hints := l.hints(l.stores[1], w)
		w, _ = take(t, l.stores[1], w, time.Minute, true)
		l.do("CLIENT", "KILL", "TYPE", "pubsub")
		select {
		case h := <-hints:
			if h.Granted {
				t.Errorf("a grant out of nothing: %+v", h)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no waiter was told to look again")
		}
		l.awaitSubscribed(l.stores[1]) // the hint may have been that of the subscription before
		mustRelease(t, l.stores[0], holder)
		w.Ticket = l.awaitGrant(hints).Ticket
		mustRelease(t, l.stores[1], w)
	}
}

// Trap 2: a hint that was on its way while the claim ran out must not be taken for one
// that belongs to a later position of the same ID. Its token, which is below the new
// ticket, tells.
func TestStalePushIsBelowTheNewTicket(t *testing.T) {
	l := newLab(t, 3)
	l.awaitSubscribed(l.stores[1])
	holder, _ := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
	w := claimOf(l.key, "b")
	hints := l.hints(l.stores[1], w)
	first, g := take(t, l.stores[1], w, time.Minute, true)
	mustRelease(t, l.stores[0], holder)
	stale := l.awaitGrant(hints)
	if stale.Token < g.Ticket {
		t.Fatalf("the push has token %d, below its own position's ticket %d", stale.Token, g.Ticket)
	}
	// The process stops here; its claim runs out; another takes the lock.
	l.do("DEL", l.key)
	take(t, l.stores[2], claimOf(l.key, "c"), time.Minute, false)
	if r := renewOne(t, l.stores[1], first, time.Minute); r.State != driver.Lost {
		t.Fatalf("the position is %v, want lost", r.State)
	}
	_, again := take(t, l.stores[1], w, time.Minute, true)
	if !again.Waiting || again.Ticket <= stale.Token {
		t.Errorf("queued again: %+v, want a ticket above the old push's token %d", again, stale.Token)
	}
}

// Trap 3: the push may overtake the answer to the request that queued, so it
// must find its watcher though no answer has come.
func TestEarlyPushFindsItsWatcher(t *testing.T) {
	l := newLab(t, 2)
	l.awaitSubscribed(l.stores[1])
	for range 30 {
		holder, _ := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
		w := claimOf(l.key, "b")
		hints := l.hints(l.stores[1], w)
		var wg sync.WaitGroup
		wg.Go(func() {
			eventually(l, "a waiter", 5*time.Second, func() bool { return l.do("EXISTS", l.names(l.key).queue()) == "1" })
			mustRelease(t, l.stores[0], holder)
		})
		w, _ = take(t, l.stores[1], w, time.Minute, true)
		w.Ticket = l.awaitGrant(hints).Ticket
		wg.Wait()
		mustRelease(t, l.stores[1], w)
	}
}
