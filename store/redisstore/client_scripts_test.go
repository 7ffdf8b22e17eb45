package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// The traps that the prototype of this layout fell into or came close to, each
// as the interleaving that it needs.

// Trap 4: a caller that never got the answer does not know its ticket. Giving up and
// asking again find the position by ID.
func TestEntryUnknown(t *testing.T) {
	l := newLab(t, 2)
	n := l.names(l.key)
	take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
	w := claimOf(l.key, "b")
	_, g := take(t, l.stores[1], w, time.Minute, true)

	again, err := l.stores[1].Acquire(t.Context(), driver.Request{Claim: w, TTL: time.Minute, Queue: true, Retry: true})
	if err != nil || !again.Waiting || again.Ticket != g.Ticket {
		t.Errorf("asked again: %+v, %v, want the position with ticket %d", again, err, g.Ticket)
	}
	if size := l.do("LLEN", n.queue()); size != "1" {
		t.Errorf("the queue has %s entries, want 1", size)
	}
	mustRelease(t, l.stores[1], w)
	if size := l.do("LLEN", n.queue()); size != "0" {
		t.Errorf("the queue has %s entries after giving up, want 0", size)
	}
}

// Trap 6: Lua prints numbers with 14 digits unless told otherwise, and tokens
// have 16.
func TestTokensAreExact(t *testing.T) {
	l := newLab(t, 2)
	l.awaitSubscribed(l.stores[1])
	holder, _ := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
	w := claimOf(l.key, "b")
	hints := l.hints(l.stores[1], w)
	w, g := take(t, l.stores[1], w, time.Minute, true)
	mustRelease(t, l.stores[0], holder)
	pushed := l.awaitGrant(hints).Token
	value := strings.Split(l.do("GET", l.key), ":")
	if kept := value[2]; kept != strconv.FormatInt(pushed, 10) {
		t.Errorf("the server keeps token %s, and pushed %d", kept, pushed)
	}
	if r := renewOne(t, l.stores[1], w, time.Minute); r.State != driver.Held || r.Grant.Token != pushed {
		t.Errorf("renewed by its ticket: %+v, want token %d", r, pushed)
	}
	if pushed <= g.Ticket {
		t.Errorf("token %d, ticket %d", pushed, g.Ticket)
	}
}

// Trap 11: a clock that was set back, emulated by moving counter and mark
// ahead. The next window must begin above all of the last one.
func TestTokensRiseThroughAClockSetBack(t *testing.T) {
	l := newLab(t, 1)
	n := l.names(l.key)
	s := l.stores[0]
	c, _ := take(t, s, claimOf(l.key, "a"), time.Minute, false)
	mustRelease(t, s, c)
	ahead := time.Now().Add(3 * time.Second).UnixMicro()
	l.do("SET", n.counter, strconv.FormatInt(ahead, 10), "PX", "140")
	l.do("SET", n.high, strconv.FormatInt((ahead>>17+1)<<17, 10))
	last := int64(0)
	for range 5 {
		for range 3 {
			c, g := take(t, s, claimOf(l.key, "a"), time.Minute, false)
			if g.Token <= last || g.Token <= ahead {
				t.Fatalf("token %d after %d", g.Token, max(last, ahead))
			}
			last = g.Token
			mustRelease(t, s, c)
		}
		l.do("DEL", n.counter) // its window ends
	}
}

// A window that was used up, by whichever script, must be followed by one
// above its mark.
func TestTokensRiseThroughAFullWindow(t *testing.T) {
	l := newLab(t, 2)
	n := l.names(l.key)
	mark := (time.Now().Add(time.Hour).UnixMicro()>>17 + 1) << 17
	l.do("SET", n.counter, strconv.FormatInt(mark-3, 10), "PX", "60000")
	l.do("SET", n.high, strconv.FormatInt(mark, 10))
	s := l.stores[0]
	last := int64(0)
	holder, g := take(t, s, claimOf(l.key, "0"), time.Minute, false)
	last = g.Token
	for i := range 6 { // the boundary falls on a join once, on a hand-over once
		next, w := take(t, s, claimOf(l.key, fmt.Sprint(i)), time.Minute, true)
		mustRelease(t, s, holder)
		r := renewOne(t, s, next, time.Minute)
		if r.State != driver.Held || r.Grant.Token <= last || r.Grant.Token <= w.Ticket {
			t.Fatalf("hand-over %d: %+v after token %d, ticket %d", i, r, last, w.Ticket)
		}
		last = r.Grant.Token
		next.Ticket = r.Grant.Ticket
		holder = next
		high, _ := strconv.ParseInt(l.do("GET", n.high), 10, 64)
		counter, _ := strconv.ParseInt(l.do("GET", n.counter), 10, 64)
		if last >= high || counter >= high {
			t.Fatalf("token %d, counter %d, mark %d: want both below the mark", last, counter, high)
		}
	}
}

// Trap 13: a server that lost its scripts gets them again, and no caller notices.
func TestScriptFlush(t *testing.T) {
	l := newLab(t, 2)
	ctx, stop := context.WithCancel(t.Context())
	var flusher sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			l.server.Do("SCRIPT", "FLUSH")
		}
	})
	defer flusher.Wait()
	defer stop()
	s := l.stores[0]
	for i := range testserver.Rounds(100) {
		c, _ := take(t, s, claimOf(l.key, "a"), time.Minute, false)
		began := time.Now()
		w, _ := take(t, l.stores[1], claimOf(l.key, "b"), time.Minute, true)
		for _, r := range s.Renew(t.Context(), []driver.Claim{c, w}, time.Minute) {
			if r.Err != nil {
				t.Fatalf("round %d: renew: %v", i, r.Err)
			}
		}
		// A machine that stands still for that long ends a waiter.
		if err := l.stores[1].Release(t.Context(), w); err != nil && (!errors.Is(err, driver.ErrLost) || time.Since(began) < driver.WaiterTTL) {
			t.Fatalf("round %d: release the waiter: %v", i, err)
		}
		mustRelease(t, s, c)
	}
}
