package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
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

// 10 000 leases are renewed by at most 100 commands.
func TestRenewalInBatches(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	claims := make([]driver.Claim, 10_000)
	for i := range claims {
		c := claimOf(fmt.Sprint("job/", i), "a")
		// As acquire.lua leaves it, without ten thousand round trips.
		c.Ticket = -time.Now().UnixMicro()
		claims[i] = c
	}
	for part := range slices.Chunk(claims, 1000) {
		args := []string{"EVAL", `for i = 1, #KEYS do redis.call('SET', KEYS[i], ARGV[i], 'PX', 60000) end`, fmt.Sprint(len(part))}
		for _, c := range part {
			args = append(args, c.Key)
		}
		for _, c := range part {
			args = append(args, value(c.ID)+"1700000000000:a")
		}
		l.do(args...)
	}
	l.do("DEL", "job/77")
	for i, r := range s.Renew(t.Context(), claims, 10*time.Minute) {
		switch {
		case i == 77:
			if r.State != driver.Lost {
				t.Errorf("the deleted one is %v", r.State)
			}
		case r.State != driver.Held || r.Grant.Token != -claims[i].Ticket:
			t.Fatalf("claim %d: %+v", i, r)
		}
	}
	l.do("CONFIG", "RESETSTAT") // that run may have sent the script's text
	s.Renew(t.Context(), claims, 10*time.Minute)
	if n := l.calls("evalsha") + l.calls("eval"); n > 100 {
		t.Errorf("renewing 10 000 leases took %d commands, want at most 100", n)
	}
}

// List finds what is held and what is only waited for, through prefixes that
// mean something to SCAN, on all servers.
func TestList(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	single := testserver.Redis(t)
	for name, client := range map[string]rueidis.Client{
		"single":  ruDial(t, rueidis.ClientOption{InitAddress: []string{single.Addr}}),
		"Cluster": ruDial(t, rueidis.ClientOption{InitAddress: cluster.Addrs()}),
	} {
		prefix := "li*st[a]?" + driver.NewID() + ":"
		s := mustNew(t, client, Config{Prefix: prefix})
		other := mustNew(t, client, Config{Prefix: "li-other-sta?" + driver.NewID() + ":"})
		take(t, other, claimOf("a/x", "other"), time.Minute, false)
		want := []string{}
		for i := range 50 {
			key := fmt.Sprintf("a/%d", i)
			if i%7 == 0 {
				key = fmt.Sprintf("a/}%d{", i)
			}
			c := claimOf(key, "a")
			if i%3 == 0 {
				c.Weight = 1
			}
			take(t, s, c, time.Minute, false)
			want = append(want, key)
		}
		take(t, s, claimOf("b", "a"), time.Minute, false)
		// A queue whose lock is gone.
		take(t, s, claimOf("a/50", "b"), time.Minute, true)
		plain(t, s, "DEL", prefix+"a/1")
		take(t, s, claimOf("a/2", "b"), time.Minute, true)
		plain(t, s, "DEL", prefix+"a/2")
		plain(t, s, "SET", prefix+"a/not", "a lock")
		want = slices.DeleteFunc(want, func(k string) bool { return k == "a/1" })
		want = append(want, "a/50")

		var got []string
		for info, err := range s.List(t.Context(), "a/") {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(info.Holders)+len(info.Waiters) != 1 {
				t.Errorf("%s: %+v", name, info)
			}
			got = append(got, info.Key)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: listed %q, want %q", name, got, want)
		}
		n := 0
		for range s.List(t.Context(), "") {
			if n++; n == 3 {
				break
			}
		}
		if n != 3 {
			t.Errorf("%s: stopped after 3, saw %d", name, n)
		}
	}
}

// The holder of a lock that is broken is told so, though the lock does not say which
// process that is.
func TestBreakTellsTheHolder(t *testing.T) {
	l := newLab(t, 2)
	l.awaitSubscribed(l.stores...)
	for _, weight := range []int64{driver.Whole, 1} {
		c := claimOf(l.key, "a")
		c.Weight = weight
		hints := l.hints(l.stores[0], c)
		c, _ = take(t, l.stores[0], c, time.Minute, false)
		if n, err := l.stores[1].Break(t.Context(), l.key); n != 1 || err != nil {
			t.Fatalf("broke %d holders: %v", n, err)
		}
		select {
		case h := <-hints:
			if h.Granted {
				t.Errorf("the hint tells of a grant: %+v", h)
			}
		case <-time.After(5 * time.Second):
			t.Error("the holder was not told")
		}
		if r := renewOne(t, l.stores[0], c, time.Minute); r.State != driver.Lost {
			t.Errorf("broken, and %v", r.State)
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

// The answer to a downgrade may be lost; the claim is then still thought to be
// exclusive.
func TestLostAnswerToDowngrade(t *testing.T) {
	l := newLab(t, 2)
	s := l.stores[0]
	c, g := take(t, s, claimOf(l.key, "a"), time.Minute, false)
	if _, err := s.Downgrade(t.Context(), c, time.Minute); err != nil {
		t.Fatal(err)
	}
	if r := renewOne(t, s, c, time.Minute); r.State != driver.Held || r.Grant.Token != g.Token {
		t.Errorf("renewed as it was thought to be: %+v, want held with token %d", r, g.Token)
	}
	mustRelease(t, s, c)
	take(t, l.stores[1], claimOf(l.key, "b"), time.Minute, false)
}
