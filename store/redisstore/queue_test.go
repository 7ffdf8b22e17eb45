package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// A long queue is searched by ticket, which must find every position, whatever an
// operator or a lost counter has done to the order.
func TestPlaceInALongLine(t *testing.T) {
	testserver.Long(t)
	l := newLab(t, 1)
	s, queue, alive := l.stores[0], l.names(l.key).queue(), l.names(l.key).waiters()
	holder, _ := take(t, s, claimOf(l.key, "holder"), time.Minute, false)
	const n = 301
	line := make([]driver.Claim, n)
	for i := range line {
		line[i], _ = take(t, s, claimOf(l.key, fmt.Sprint("w", i)), time.Minute, true)
	}
	revive := func() { // however slow the machine is
		stay := []string{"HSET", alive}
		for _, c := range line {
			stay = append(stay, c.ID, "9000000000000000")
		}
		l.do(stay...)
	}
	check := func(what string, gone ...int) {
		t.Helper()
		revive()
		for i, r := range s.Renew(t.Context(), line, time.Minute) {
			want := driver.Waiting
			if slices.Contains(gone, i) {
				want = driver.Lost
			}
			if r.State != want || r.Err != nil {
				t.Errorf("%s: position %d is %v, %v, want %v", what, i, r.State, r.Err, want)
			}
		}
	}
	scans := l.calls("lpos") + l.calls("lrange")
	check("in order")
	if more := l.calls("lpos") + l.calls("lrange") - scans; more != 0 {
		t.Errorf("the whole line was read %d times for %d places", more, n)
	}
	revive()
	mustRelease(t, s, line[150])
	check("one has left", 150)
	l.do("LMOVE", queue, queue, "RIGHT", "LEFT") // the last is the first
	check("in disorder", 150)
	l.do("LSET", queue, "149", "nonsense")
	check("with nonsense in it", 148, 150)
	revive()
	mustRelease(t, s, holder)
	if r := renewOne(t, s, line[n-1], time.Minute); r.State != driver.Held {
		t.Errorf("the waiter that was moved to the head is %v, want held", r.State)
	}
}

// A claim that is queued twice, because an attempt came late, is granted once.
func TestTwoPlacesOfOneID(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	permits := func(owner string, weight int64) driver.Claim {
		c := claimOf(l.key, owner)
		c.Weight, c.Capacity = weight, 4
		return c
	}
	a, _ := take(t, s, permits("a", 2), time.Minute, false)
	b, _ := take(t, s, permits("b", 2), time.Minute, false)
	unheard := permits("w", 1)
	w, _ := take(t, s, unheard, time.Minute, true)
	late, _ := take(t, s, unheard, time.Minute, true)
	next, _ := take(t, s, permits("next", 1), time.Minute, true)
	if n := l.do("LLEN", l.names(l.key).queue()); late.Ticket == w.Ticket || n != "3" {
		t.Fatalf("queued are %s, want two entries of one claim and one of another", n)
	}
	used := func(when, want string) {
		t.Helper()
		if v := l.do("GET", l.key); v != "b1:~permits/4:"+want {
			t.Errorf("%s: %q, want %s in use", when, v, want)
		}
	}
	mustRelease(t, s, a)
	used("two granted", "4")
	grants := s.Renew(t.Context(), []driver.Claim{w, next}, time.Minute)
	for i, r := range grants {
		if r.State != driver.Held {
			t.Errorf("claim %d: %+v", i, r)
		}
	}
	if grants[1].Grant.Token <= grants[0].Grant.Token {
		t.Errorf("tokens %d and %d do not rise", grants[0].Grant.Token, grants[1].Grant.Token)
	}
	mustRelease(t, s, w)
	used("one released", "3")
	mustRelease(t, s, next)
	used("two released", "2")
	mustRelease(t, s, b)
	if l.do("EXISTS", l.key) != "0" {
		t.Error("it is not free")
	}
}

// A waiter's request, or its repeat, comes late: the waiter has since been granted the
// lock for a long time, and the request takes none of that. A holder that knows of its
// grant may ask for less.
func TestLateRequestsShortenNothing(t *testing.T) {
	for name, weight := range map[string]int64{"exclusive": driver.Whole, "reader": 1} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1)
			s := l.stores[0]
			holder, _ := take(t, s, claimOf(l.key, "holder"), time.Minute, false)
			c := claimOf(l.key, "w")
			c.Weight = weight
			waiter, _ := take(t, s, c, time.Minute, true)
			mustRelease(t, s, holder)
			held := renewOne(t, s, waiter, time.Hour)
			if held.State != driver.Held {
				t.Fatalf("%+v, want held", held)
			}
			left := func(what string, least, most time.Duration) {
				t.Helper()
				if d := time.Duration(number(l.do("PTTL", l.key))) * time.Millisecond; d < least || d > most {
					t.Errorf("%s: held for another %v, want %v to %v", what, d, least, most)
				}
				if weight == 1 {
					ends := number(l.do("ZSCORE", l.names(l.key).shared(), c.ID))
					now := strings.Fields(l.do("TIME"))
					if d := time.Duration(ends-number(now[0])*1_000_000-number(now[1])) * time.Microsecond; d < least || d > most {
						t.Errorf("%s: the reader for another %v, want %v to %v", what, d, least, most)
					}
				}
			}
			renewOne(t, s, waiter, time.Second)
			left("a poll", 59*time.Minute, time.Hour)
			again := driver.Request{Claim: c, TTL: time.Second, Retry: true}
			if _, err := s.Acquire(t.Context(), again); err != nil {
				t.Error(err)
			}
			left("an attempt", 59*time.Minute, time.Hour)
			if weight == driver.Whole { // other readers may need the rest
				c.Ticket = held.Grant.Ticket
				renewOne(t, s, c, time.Minute)
				left("a holder that asks for less", 50*time.Second, time.Minute)
			}
		})
	}
}

// Traps 8 and 9: the lock's key is absent while there are waiters, after an expiry or a
// foreign DEL. A new request must not take it.
func TestNoBargingWhenTheKeyIsGone(t *testing.T) {
	l := newLab(t, 3)
	if l.do("SET", l.key, "somebody", "NX", "PX", "60000") != "OK" {
		t.Fatal("SET NX")
	}
	w, _ := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, true)
	l.do("DEL", l.key)
	_, err := l.stores[1].Acquire(t.Context(), driver.Request{Claim: claimOf(l.key, "b"), TTL: time.Minute})
	if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Owner != "a" {
		t.Errorf("a newcomer: %v, want it refused in favour of a", err)
	}
	if r := renewOne(t, l.stores[0], w, time.Minute); r.State != driver.Held {
		t.Errorf("the waiter is %v, want held", r.State)
	}
}

// Trap 10: waiters that are served within a refresh never prolong the queue;
// joining does, or the queue would vanish under load.
func TestQueueIsProlongedByJoining(t *testing.T) {
	l := newLab(t, 2)
	queue := l.names(l.key).queue()
	s := l.stores[0]
	holder, _ := take(t, s, claimOf(l.key, "0"), time.Minute, false)
	next, _ := take(t, s, claimOf(l.key, "1"), time.Minute, true)
	l.do("EXPIRE", queue, "30")
	eventually(t, "a queue that lives a minute", 20*time.Second, func() bool {
		last, _ := take(t, s, claimOf(l.key, "n"), time.Minute, true)
		mustRelease(t, s, holder)
		holder, next = next, last
		holder.Ticket = -1 // it was granted
		left, _ := strconv.Atoi(l.do("TTL", queue))
		return left > 40
	})
}

// A position lives for WaiterTTL, even if the counter, which is the clock of the queue,
// was slow when it was taken.
func TestPlaceTakenByASlowCounter(t *testing.T) {
	l := newLab(t, 2)
	n := l.names(l.key)
	take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
	l.do("SET", n.counter, strconv.FormatInt(time.Now().UnixMicro()-130_000, 10), "PX", "60000")
	before := time.Now().UnixMicro()
	_, g := take(t, l.stores[1], claimOf(l.key, "b"), time.Minute, true)
	if slow := before - g.Ticket; slow > 20_000 {
		t.Errorf("the position counts from %d µs before it was taken, want at most 20 ms", slow)
	}
}
