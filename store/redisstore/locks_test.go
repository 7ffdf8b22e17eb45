package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

const compareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// A classic Redis lock, written by hand, on the same key: it excludes Baton
// and is excluded, both ways, by all kinds of locks.
func TestClassicLocksAndBatonExcludeEachOther(t *testing.T) {
	l := newLab(t, 1, Config{Prefix: "app:"})
	s := l.stores[0]
	name := "app:" + l.key
	for _, weight := range []int64{driver.Whole, 1} {
		c := claimOf(l.key, "baton")
		c.Weight = weight

		if l.do("SET", name, "theirs", "NX", "PX", "60000") != "OK" {
			t.Fatal("the classic client did not get a free lock")
		}
		_, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
		held, ok := errors.AsType[*driver.HeldError](err)
		if !ok || !held.Foreign || held.Remaining <= 0 || held.Remaining > time.Minute {
			t.Errorf("Baton beside a classic holder: %v, want it refused with what is known", err)
		}
		if reply := l.do("EVAL", compareAndDelete, "1", name, "theirs"); reply != "1" {
			t.Errorf("the classic client's release answered %s", reply)
		}

		c, _ = take(t, s, c, time.Minute, false)
		if reply := l.do("SET", name, "theirs", "NX", "PX", "60000"); reply != "" {
			t.Errorf("the classic client beside a holder of weight %d: %q", weight, reply)
		}
		if reply := l.do("EVAL", compareAndDelete, "1", name, "theirs"); reply != "0" {
			t.Errorf("the classic client's release of another's lock answered %s", reply)
		}
		mustRelease(t, s, c)
	}
}

// The end of a foreign lock hands nothing over, so waiters look often.
func TestWaitersBehindAForeignLockLookOften(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	l.do("SET", l.key, "theirs", "PX", "60000")
	w, g := take(t, s, claimOf(l.key, "b"), time.Minute, true)
	if !g.Waiting || g.Again < 5*time.Millisecond || g.Again > 50*time.Millisecond {
		t.Errorf("behind a foreign lock: %+v, want Again of 10 to 50 ms", g)
	}
	eventually(t, "a slower pace", 10*time.Second, func() bool {
		return renewOne(t, s, w, time.Minute).Grant.Again == 50*time.Millisecond
	})
	l.do("PEXPIRE", l.key, "15")
	if r := renewOne(t, s, w, time.Minute); r.State == driver.Waiting && r.Grant.Again > 16*time.Millisecond {
		t.Errorf("15 ms before the expiry: %+v", r.Grant)
	}
	eventually(t, "the grant", 5*time.Second, func() bool { return renewOne(t, s, w, time.Minute).State == driver.Held })
}

func TestWhatIsNotALock(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	l.do("SET", "string", "value")
	l.do("HSET", "hash", "field", "value")
	for key, found := range map[string]string{"string": "a string without expiry", "hash": "a hash"} {
		for _, queue := range []bool{false, true} {
			for range 2 { // as an unknown key, then as one known to be contended
				_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf(key, "a"), TTL: time.Minute, Queue: queue})
				if e, ok := errors.AsType[*driver.NotLockError](err); !ok || e.Found != found {
					t.Errorf("%s: %v, want a *driver.NotLockError that found %s", key, err, found)
				}
			}
		}
		if _, err := s.Inspect(t.Context(), key); err == nil {
			t.Errorf("%s: inspected as a lock", key)
		}
		if _, err := s.Break(t.Context(), key); err == nil {
			t.Errorf("%s: broken as a lock", key)
		}
		if l.do("EXISTS", key) != "1" {
			t.Errorf("%s is gone", key)
		}
	}
}

// Nothing is left of a lock that was used in every way, but the counter.
func TestNothingIsLeft(t *testing.T) {
	l := newLab(t, 2)
	n := l.names(l.key)
	for range 3 {
		holder, _ := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
		r1, r2 := claimOf(l.key, "r1"), claimOf(l.key, "r2")
		r1.Weight, r2.Weight = 1, 1
		r1, _ = take(t, l.stores[1], r1, time.Minute, true)
		r2, _ = take(t, l.stores[0], r2, time.Minute, true)
		w, _ := take(t, l.stores[1], claimOf(l.key, "w"), time.Minute, true)
		l.stores[1].Renew(t.Context(), []driver.Claim{r1, r2, w}, time.Minute)
		mustRelease(t, l.stores[0], holder)
		mustRelease(t, l.stores[1], r1)
		mustRelease(t, l.stores[0], r2)
		mustRelease(t, l.stores[1], w)
	}
	left := map[string]bool{n.counter: true, n.high: true, "": true}
	for _, name := range splitLines(l.do("KEYS", "*")) {
		if !left[name] {
			t.Errorf("left over: %s", name)
		}
	}
}

// What is kept of readers and permits outlives the lock's key, however they are
// renewed, and goes soon after it if they die: the key may never be asked for again.
func TestWhatIsKeptOfSharedHoldersGoes(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	n := l.names(l.key)
	check := func(what string, ttl time.Duration) {
		t.Helper()
		for _, key := range []string{n.shared(), n.info()} {
			lock, err1 := strconv.Atoi(l.do("PTTL", l.key))
			left, err2 := strconv.Atoi(l.do("PTTL", key))
			if err1 != nil || err2 != nil || left <= lock || time.Duration(left)*time.Millisecond > ttl+time.Minute {
				t.Errorf("%s: %s goes in %d ms, the lock in %d", what, key, left, lock)
			}
		}
	}
	for _, capacity := range []int64{driver.Whole, 3} {
		c := claimOf(l.key, "long")
		c.Weight, c.Capacity = 1, capacity
		long, _ := take(t, s, c, time.Minute, false)
		check("one holder", time.Minute)
		c.ID = driver.NewID()
		short, _ := take(t, s, c, time.Second, false)
		check("and one that is short", time.Minute)
		if r := renewOne(t, s, short, 5*time.Minute); r.State != driver.Held {
			t.Fatalf("%+v", r)
		}
		check("renewed for longer", 5*time.Minute)
		if r := renewOne(t, s, long, time.Minute); r.State != driver.Held {
			t.Fatalf("%+v", r)
		}
		check("the other one", 5*time.Minute)
		mustRelease(t, s, long)
		mustRelease(t, s, short)
		if left := l.do("EXISTS", n.shared(), n.info()); left != "0" {
			t.Errorf("%s keys are left of holders that are gone", left)
		}
	}
}

// Trap 1: a flush of several commands is not atomic, so grant and token come
// from one script. One command each way, and nothing else.
func TestUncontendedIsOneCommandEach(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	// The first call of a script sends its text.
	c, _ := take(t, s, claimOf(l.key, "first"), time.Minute, false)
	mustRelease(t, s, c)
	l.do("CONFIG", "RESETSTAT")
	for range 10 {
		c, _ := take(t, s, claimOf(l.key, "me"), time.Minute, false)
		mustRelease(t, s, c)
	}
	if n := l.calls("evalsha"); n != 20 {
		t.Errorf("10 acquisitions and releases were %d scripts, want 20", n)
	}
	if processed := l.calls("eval") + l.calls("exec") + l.calls("script|load"); processed != 0 {
		t.Errorf("and %d other commands", processed)
	}
}

// Commands of a hand-over: enter and release, and a push.
func TestHandOverIsTwoCommandsAndOnePush(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.stores[0], l.stores[1]
	l.awaitSubscribed(a, b)
	holder, _ := take(t, a, claimOf(l.key, "a"), time.Minute, false)
	for range 3 { // warm: every script known, the key known as contended
		next := claimOf(l.key, "b")
		hints := l.hints(b, next)
		next, _ = take(t, b, next, time.Minute, true)
		mustRelease(t, a, holder)
		next.Ticket = l.awaitGrant(hints).Ticket
		a, b, holder = b, a, next
	}
	l.do("CONFIG", "RESETSTAT")
	const rounds = 10
	began := time.Now()
	for range rounds {
		next := claimOf(l.key, "b")
		hints := l.hints(b, next)
		next, g := take(t, b, next, time.Minute, true)
		if !g.Waiting {
			t.Fatal("granted beside a holder")
		}
		mustRelease(t, a, holder)
		next.Ticket = l.awaitGrant(hints).Ticket
		a, b, holder = b, a, next
	}
	// A release that meets the end of the counter's life takes a second one.
	seeds := 1 + int(time.Since(began)/(140*time.Millisecond))
	if n := l.calls("evalsha"); n > 2*rounds+seeds {
		t.Errorf("%d hand-overs took %d scripts, want at most 2 each, and %d", rounds, n, seeds)
	}
	if n := l.calls("publish"); n != rounds {
		t.Errorf("%d hand-overs took %d pushes", rounds, n)
	}
}

// Trap 5: the claim of a dead waiter must not be longer than the TTL that it
// asked for.
func TestClaimIsNoLongerThanTheTTL(t *testing.T) {
	l := newLab(t, 2)
	for _, ttl := range []time.Duration{300 * time.Millisecond, time.Minute} {
		holder, _ := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
		w, _ := take(t, l.stores[1], claimOf(l.key, "b"), ttl, true)
		mustRelease(t, l.stores[0], holder)
		left, _ := strconv.Atoi(l.do("PTTL", l.key))
		if most := min(ttl, driver.ClaimTTL); time.Duration(left)*time.Millisecond > most {
			t.Errorf("handed over to a waiter with TTL %v for %d ms, want at most %v", ttl, left, most)
		}
		mustRelease(t, l.stores[1], w)
	}
}

// Trap 7: readers of one hand-over get different tokens, all above their
// tickets.
func TestReadersOfOneHandOver(t *testing.T) {
	l := newLab(t, 2)
	holder, _ := take(t, l.stores[0], claimOf(l.key, "a"), time.Minute, false)
	var readers []driver.Claim
	for i := range 5 {
		r := claimOf(l.key, fmt.Sprint("reader ", i))
		r.Weight = 1
		r, _ = take(t, l.stores[1], r, time.Minute, true)
		readers = append(readers, r)
	}
	mustRelease(t, l.stores[0], holder)
	last := readers[len(readers)-1].Ticket
	for i, r := range l.stores[1].Renew(t.Context(), readers, time.Minute) {
		if r.State != driver.Held || r.Grant.Token <= last {
			t.Errorf("reader %d: %+v, want it held with a token above %d", i, r, last)
		}
		last = r.Grant.Token
	}
}

// Trap 14: a repeated acquire is answered with the token of the answer that was lost.
func TestRepeatedAcquireHasItsToken(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	c := claimOf(l.key, "a")
	_, lost := take(t, s, c, time.Minute, false)
	again, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute, Retry: true})
	if err != nil || again.Token != lost.Token {
		t.Fatalf("repeated: %+v, %v, want token %d", again, err, lost.Token)
	}
	c.Ticket = again.Ticket
	for range 3 {
		if r := renewOne(t, s, c, time.Minute); r.State != driver.Held || r.Grant.Token != again.Token {
			t.Errorf("renewed: %+v, want token %d", r, again.Token)
		}
		if same, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute, Retry: true}); err != nil || same.Token != again.Token {
			t.Errorf("acquired once more: %+v, %v, want token %d", same, err, again.Token)
		}
	}
}
