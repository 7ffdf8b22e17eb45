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

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// The traps that the prototype of this layout fell into or came close to, each
// as the interleaving that it needs.

// lab is one server and several stores on it, as processes would have them.
type lab struct {
	*testing.T
	server *testserver.RedisServer
	stores []*Store
	key    string
}

func newLab(t *testing.T, stores int, cfg ...Config) *lab {
	t.Helper()
	t.Parallel()
	testserver.NeedRedis(t)
	l := &lab{T: t, server: testserver.Redis(t), key: "job"}
	for range stores {
		l.stores = append(l.stores, mustNew(t, ruDial(t, rueidis.ClientOption{InitAddress: []string{l.server.Addr}}), append(cfg, Config{})[0]))
	}
	return l
}

// do runs a command as an operator would.
func (l *lab) do(args ...string) string {
	l.Helper()
	reply, err := l.server.Do(args...)
	if err != nil {
		l.Fatalf("%v: %v", args, err)
	}
	return reply
}

func (l *lab) names(key string) lockNames {
	n, err := l.stores[0].names.of(key)
	if err != nil {
		l.Fatal(err)
	}
	return n
}

// hints watches a claim.
func (l *lab) hints(s *Store, c driver.Claim) <-chan driver.Hint {
	ch := make(chan driver.Hint, 100)
	l.Cleanup(s.Watch(c, func(h driver.Hint) {
		select {
		case ch <- h:
		default:
		}
	}))
	return ch
}

// awaitGrant waits for a hint that tells of a grant.
func (l *lab) awaitGrant(ch <-chan driver.Hint) driver.Grant {
	l.Helper()
	timeout := time.After(5 * time.Second)
	for {
		select {
		case h := <-ch:
			if h.Granted {
				return h.Grant
			}
		case <-timeout:
			l.Fatal("no push within 5 s")
		}
	}
}

// awaitSubscribed returns when pushes reach the store.
func (l *lab) awaitSubscribed(stores ...*Store) {
	l.Helper()
	for _, s := range stores {
		s.pushes.start()
		eventually(l, "the subscription", 5*time.Second, func() bool {
			return strings.HasSuffix(l.do("PUBSUB", "NUMSUB", s.channel), "1")
		})
	}
}

// calls is how often the server has run scripts.
func (l *lab) calls(command string) int {
	for line := range strings.Lines(l.do("INFO", "commandstats")) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			n, _, _ := strings.Cut(rest, ",")
			count, _ := strconv.Atoi(n)
			return count
		}
	}
	return 0
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
		t.Fatalf("the push has token %d, below its own place's ticket %d", stale.Token, g.Ticket)
	}
	// The process stops here; its claim runs out; another takes the lock.
	l.do("DEL", l.key)
	take(t, l.stores[2], claimOf(l.key, "c"), time.Minute, false)
	if r := renewOne(t, l.stores[1], first, time.Minute); r.State != driver.Lost {
		t.Fatalf("the place is %v, want lost", r.State)
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
			eventually(l, "somebody in line", 5*time.Second, func() bool { return l.do("EXISTS", l.names(l.key).queue()) == "1" })
			mustRelease(t, l.stores[0], holder)
		})
		w, _ = take(t, l.stores[1], w, time.Minute, true)
		w.Ticket = l.awaitGrant(hints).Ticket
		wg.Wait()
		mustRelease(t, l.stores[1], w)
	}
}

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
		t.Errorf("asked again: %+v, %v, want the place with ticket %d", again, err, g.Ticket)
	}
	if size := l.do("LLEN", n.queue()); size != "1" {
		t.Errorf("the queue has %s entries, want 1", size)
	}
	mustRelease(t, l.stores[1], w)
	if size := l.do("LLEN", n.queue()); size != "0" {
		t.Errorf("the queue has %s entries after giving up, want 0", size)
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
		t.Errorf("who was in line is %v, want held", r.State)
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

// Trap 12: everything that belongs to a lock lies on its slot, whatever braces
// its name has, and different locks never share a name.
func TestSideKeysOfKeysWithBraces(t *testing.T) {
	t.Parallel()
	keys := []string{
		"a", "a}b", "{}x", "}{", "{", "}", "{}", "a{b", "{a}", "{a}b", "x{a}y{b}z", "{{a}}", "{a", "a}", "a}:{a}", "{a}:a", "{a}:{a}",
		"0", "{0}", "}0", "baton:deploy", "baton:", "q:{a}",
	}
	for _, prefix := range []string{"", "app:", "a}p:", "{app}:", "{app}"} {
		for _, cluster := range []bool{false, true} {
			ns, err := newNames(prefix, cluster)
			if err != nil {
				t.Fatal(err)
			}
			owner := map[string]string{}
			for _, key := range keys {
				n, err := ns.of(key)
				if err != nil {
					t.Fatalf("key %q: %v", key, err)
				}
				for i, name := range n.full() {
					if name == n.counter || name == n.high {
						if cluster && slot(name) != slot(n.lock) {
							t.Errorf("prefix %q: %q is on another slot than lock %q", prefix, name, n.lock)
						}
						continue
					}
					if slot(name) != slot(n.lock) {
						t.Errorf("prefix %q: %q is on another slot than lock %q", prefix, name, n.lock)
					}
					if other, taken := owner[name]; taken {
						t.Errorf("prefix %q: %q belongs to %q and to %q", prefix, name, other, key)
					}
					owner[name] = key
					if i == 3 {
						if back, ok := ns.keyOf("q:", name); !ok || back != key {
							t.Errorf("prefix %q: the queue %q is read back as that of %q, want %q", prefix, name, back, key)
						}
					}
				}
			}
			for _, key := range append(keys, "baton:T", "baton:q:{a}", "baton:r:{a}", "baton:o:{a}", "r:{a}", "o:{a}", "d:x:{a}", "x:{a}", "x:a") {
				n := ns.beside(key)
				if back, ok := ns.keyOf("o:", n.record()); !ok || back != key {
					t.Errorf("prefix %q: the record %q is read back as that of %q, want %q", prefix, n.record(), back, key)
				}
				for _, name := range []string{n.limit(), n.record(), n.id("x"), n.id("x-"), n.id("r")} {
					if slot(name) != slot(n.lock) {
						t.Errorf("prefix %q: %q is on another slot than limit %q", prefix, name, key)
					}
					if other, taken := owner[name]; taken {
						t.Errorf("prefix %q: %q belongs to %q and to limit %q", prefix, name, other, key)
					}
					owner[name] = key
					if lock, ok := strings.CutPrefix(name, prefix); ok {
						if _, err := ns.of(lock); err == nil {
							t.Errorf("prefix %q: %q of limit %q may be a lock", prefix, name, key)
						}
					}
				}
			}
		}
	}
	for _, key := range []string{"app:baton:T", "a baton:deploy, baton:q:{x}", "baton:T", "baton:H", "baton:V", "baton:T:{1}", "baton:q:{a}", "baton:w:", "baton:s:{a}:b", "baton:i", "baton:r:{a}", "baton:d:x:{a}", "baton:o:{a}"} {
		ns, _ := newNames("", false)
		if _, err := ns.of(key); err == nil {
			t.Errorf("key %q is accepted, and may be one of the store's own", key)
		}
	}
	// Two programs, one of them with a prefix: a lock of one must not be the other's
	// counter.
	ns, err := newNames("b", false)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := ns.of("aton:T"); err == nil {
		t.Errorf("with a prefix %q is accepted as the name of a lock", n.lock)
	}
	for _, prefix := range []string{"baton:", "app:baton:", "mybaton:", "baton:q:"} {
		if _, err := newNames(prefix, false); !errors.As(err, new(*driver.KeyError)) {
			t.Errorf("prefix %q: %v, want a KeyError: others keep their own there", prefix, err)
		}
	}
	for _, prefix := range []string{"{", "{}x", "a{b"} {
		if _, err := newNames(prefix, true); err == nil {
			t.Errorf("prefix %q is accepted, which spreads side keys over slots", prefix)
		}
	}
	for s, tag := range slotTags() {
		if crc16(tag)%slots != uint16(s) {
			t.Fatalf("tag %q is not on slot %d", tag, s)
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
	for i := range 100 {
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

// Trap 13: in a batch, a key that has become something else spoils no answer but its
// own.
func TestBatchWithABadKey(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	var claims []driver.Claim
	for i := range 9 {
		c := claimOf(fmt.Sprint("job", i), "a")
		if i%3 == 2 {
			c.Weight = 1
		}
		c, _ = take(t, s, c, time.Minute, false)
		if i%3 == 1 {
			c.Ticket = 0 // as if its answer had never come
		}
		claims = append(claims, c)
	}
	broken := map[int]bool{3: true, 4: true, 5: true}
	for i := range broken {
		n := l.names(claims[i].Key)
		for _, name := range []string{n.lock, n.queue(), n.waiters(), n.shared(), n.info()} {
			l.do("DEL", name)
			l.do("XADD", name, "*", "not", "ours")
		}
	}
	for i, r := range s.Renew(t.Context(), claims, time.Minute) {
		if broken[i] {
			if r.State == driver.Held || r.State == driver.Waiting {
				t.Errorf("claim %d, whose key is gone: %v", i, r.State)
			}
		} else if r.State != driver.Held {
			t.Errorf("claim %d: %v, %v, want held", i, r.State, r.Err)
		}
	}
}

// Trap 14: a repeated acquire may be answered with another token than the
// answer that was lost had, but it is higher, and a token that was told stays.
func TestRepeatedAcquireHasAHigherToken(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	c := claimOf(l.key, "a")
	_, lost := take(t, s, c, time.Minute, false)
	again, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute, Retry: true})
	if err != nil || again.Token <= lost.Token {
		t.Fatalf("repeated: %+v, %v, want a token above %d", again, err, lost.Token)
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
		t.Errorf("the place counts from %d µs before it was taken, want at most 20 ms", slow)
	}
}
