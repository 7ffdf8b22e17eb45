package redisstore

import (
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
