package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// The answer to the first process is lost on its way from the server. That process looks
// for what its request has left, and leaves it alone once another process has taken it
// over. Asked for the claim meanwhile, it does not take it for lost.
func TestRepeatedElsewhereAfterALostAnswer(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	const ttl = 3 * time.Second
	s := openOn(t, testserver.SharedEtcd(t), 3)
	spy := spyOn(s[0])
	warm, _ := take(t, s[0], claimOf("warm", "me"), ttl, false)
	mustRelease(t, s[0], warm)
	spy.mu.Lock()
	spy.lose = true
	spy.mu.Unlock()
	r := driver.Request{Claim: claimOf("k", "me"), TTL: ttl, Queue: true}
	begun := time.Now()
	if _, err := s[0].Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("without its answer: %v, want ErrUnknown", err)
	}
	r.Retry = true
	g, err := s[1].Acquire(t.Context(), r)
	if err != nil || g.Waiting || len(names(t, s[2], "k").Kvs) != 1 {
		t.Fatalf("repeated elsewhere: %+v, %v, with %d names", g, err, len(names(t, s[2], "k").Kvs))
	}
	r.Ticket = g.Ticket
	refused := false // the first process could not say for a while
	for {
		if a := renewOne(t, s[1], r.Claim, ttl); a.State != driver.Held || a.Grant.Token != g.Token {
			t.Fatalf("%v after the first request: %+v", time.Since(begun), a)
		}
		<-time.After(100 * time.Millisecond) // time passing is what is tested
		if time.Since(begun) < ttl+500*time.Millisecond {
			continue // the first process still waits for a repetition
		}
		a := renewOne(t, s[0], r.Claim, ttl)
		if a.State == driver.Held {
			break
		}
		refused = true
		if a.State != driver.Unknown || !errors.Is(a.Err, driver.ErrUnavailable) || time.Since(begun) > ttl+2*unresolvedTime {
			t.Fatalf("the first process, %v after its request: %+v", time.Since(begun), a)
		}
	}
	if !refused {
		t.Error("the first process did not look for what its request may have left")
	}
	mustRelease(t, s[2], r.Claim)
	nothingLeft(t, s[0], "k")
}

// The first process forgets a claim that another one has taken over, and uses its name
// again.
func TestNameThatAnotherProcessTookOver(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	const ttl = 5 * time.Second
	s := openOn(t, testserver.SharedEtcd(t), 2)
	r := driver.Request{Claim: claimOf("k", "first"), TTL: ttl}
	if _, err := s[0].Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r.Retry = true
	g, err := s[1].Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.Ticket = g.Ticket
	noticed(t, s[0], seconds(ttl))
	for range 3 {
		next := claimOf("k", "next")
		w, err := s[0].Acquire(t.Context(), driver.Request{Claim: next, TTL: ttl, Queue: true})
		if err != nil || !w.Waiting {
			t.Fatalf("behind it: %+v, %v", w, err)
		}
		next.Ticket = w.Ticket
		if a := renewOne(t, s[1], r.Claim, ttl); a.State != driver.Held {
			t.Fatalf("in the second process: %+v", a)
		}
		mustRelease(t, s[0], next)
		eventually(t, "the first process has looked for its leftovers", 20*time.Second, func() bool {
			s[0].mu.Lock()
			defer s[0].mu.Unlock()
			return len(s[0].cleaner.later) == 0
		})
		if a := renewOne(t, s[1], r.Claim, ttl); a.State != driver.Held {
			t.Fatalf("in the second process, later: %+v", a)
		}
	}
	mustRelease(t, s[1], r.Claim)
	nothingLeft(t, s[0], "k")
	nothingLeft(t, s[1], "k")
}

// What a repetition costs in a process that knows nothing of the claim. A first request
// costs what it did before there were any.
func TestWhatARepetitionCosts(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := warmed(t, 2, long)
		me, other := s[0], s[1]
		k := tap(me)
		cost := func(what string, r driver.Request, most int, waits bool) driver.Grant {
			t.Helper()
			before := k.count()
			g, err := me.Acquire(t.Context(), r)
			if n := k.count() - before; err != nil || g.Waiting != waits || n > most {
				t.Errorf("%s: %+v, %v, by %d transactions, want %d", what, g, err, n, most)
			}
			return g
		}
		request := func(key string, retry bool) driver.Request {
			return driver.Request{Claim: claimOf(key, "me"), TTL: long, Queue: true, Retry: retry}
		}
		cost("a free lock", request("free", false), 1, false)
		cost("a free lock, repeated", request("free, repeated", true), 1, false)
		for _, key := range []string{"warm", "held", "held, repeated"} {
			take(t, other, claimOf(key, "other"), long, false)
		}
		cost("the first position of all", request("warm", false), 3, true) // it asks for the lease of waiters
		cost("a position", request("held", false), 1, true)
		cost("a position, repeated", request("held, repeated", true), 2, true)
		r := request("found", true)
		if _, err := other.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		cost("found", r, 3, false)
	})
}

// The server carries out the request of the first process after that of the second. What
// it puts then holds nothing while the second has the lock, and ends with its TTL.
func TestFirstRequestComesSecond(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	const ttl = 3 * time.Second
	s := warmed(t, 2, ttl)
	k := tap(s[0])
	sent := make(chan *pb.TxnRequest, 1)
	begun := k.count() + 1
	k.before = func(n int, r *pb.TxnRequest) error {
		if n == begun {
			sent <- r
			return context.DeadlineExceeded
		}
		return nil
	}
	r := driver.Request{Claim: claimOf("k", "me"), TTL: ttl, Queue: true}
	if _, err := s[0].Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("without its answer: %v, want ErrUnknown", err)
	}
	r.Retry = true
	g, err := s[1].Acquire(t.Context(), r)
	if err != nil || g.Waiting {
		t.Fatalf("repeated elsewhere: %+v, %v", g, err)
	}
	if _, err := k.KVClient.Txn(t.Context(), <-sent); err != nil {
		t.Fatal(err)
	}
	r.Ticket = g.Ticket
	if a := renewOne(t, s[1], r.Claim, ttl); a.State != driver.Held || a.Grant.Token != g.Token {
		t.Errorf("the second: %+v", a)
	}
	mustRelease(t, s[1], r.Claim)
	nothingLeft(t, s[0], "k")
	nothingLeft(t, s[1], "k")
	next, _ := take(t, s[1], claimOf("k", "next"), ttl, false)
	mustRelease(t, s[1], next)
}

// A claim that joins the queue behind a contender that the mirror knows does not make
// the server read the queue.
func TestQueueBehindAKnownContender(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 3)
		me := s[2]
		spy := spyOn(me)
		claims := fillQueue(t, s)
		spy.reset()
		a, g := take(t, me, claimOf("k", "me"), long, true)
		if !g.Waiting || g.Ticket <= claims[2].Ticket {
			t.Errorf("%+v, want a position behind %d", g, claims[2].Ticket)
		}
		for _, r := range spy.about(me.dir("k")) {
			if c := r.Compare; len(c) != 1 || c[0].RangeEnd != nil || c[0].GetCreateRevision() != claims[2].Ticket {
				t.Errorf("it asked %v, want whether the last in line is there", r)
			}
		}
		for i, c := range claims {
			mustRelease(t, s[i], c)
		}
		if r := renewOne(t, me, a, long); r.State != driver.Held || r.Grant.Token != a.Ticket || r.Grant.TTL < long-time.Second {
			t.Errorf("at the head: %+v", r)
		}
	})
}

// A mirror that lags behind does not keep a process from a free lock.
func TestMirrorBehindTheTimes(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		claims := fillQueue(t, s)
		for i, c := range claims {
			mustRelease(t, s[i], c)
		}
		me := s[1]
		plant := func(e contender) {
			me.mu.Lock()
			defer me.mu.Unlock()
			me.keys["k"].mirror.index = newQueueIndex([]contender{e})
		}
		gone := contender{Claim: claimOf("k", "gone"), name: me.dir("k") + "gone", rev: claims[0].Ticket, lease: 1}
		plant(gone)
		c, g := take(t, me, claimOf("k", "me"), long, true)
		if g.Waiting || g.TTL < long-time.Second {
			t.Errorf("the lock was free: %+v", g)
		}
		mustRelease(t, me, c)

		// Nor does it let a process in beside a holder that the mirror has not heard
		// of, or hide a name that is not a lock.
		h, _ := take(t, s[0], claimOf("k", "holder"), long, false)
		plant(gone)
		c, g = take(t, me, claimOf("k", "me"), long, true)
		if !g.Waiting {
			t.Errorf("beside a holder: %+v", g)
		}
		mustRelease(t, me, c)
		mustRelease(t, s[0], h)
		if _, err := s[0].client.Put(t.Context(), me.dir("k")+"data", "theirs"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the mirror has heard of it", 20*time.Second, func() bool {
			me.mu.Lock()
			defer me.mu.Unlock()
			_, ok := me.keys["k"].lastLocked("")
			return !ok
		})
		_, err := me.Acquire(t.Context(), driver.Request{Claim: claimOf("k", "me"), TTL: long, Queue: true})
		if _, ok := errors.AsType[*driver.NotLockError](err); !ok {
			t.Errorf("beside a name without a lease: %v, want a *NotLockError", err)
		}
	})
}

// A name whose acquire got no answer holds, others wait behind it, and the repetition
// finds it: by asking whether the last of those is there, or, as a retry, in the queue.
func TestRepeatedBeforeAKnownContender(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		me := openOn(t, testserver.SharedEtcd(t), 1)[0]
		spy := spyOn(me)
		warm, _ := take(t, me, claimOf("warm", "me"), long, false)
		mustRelease(t, me, warm)
		for _, retry := range []bool{false, true} {
			key := fmt.Sprint("retry=", retry)
			spy.mu.Lock()
			spy.lose = true
			spy.mu.Unlock()
			r := driver.Request{Claim: claimOf(key, "me"), TTL: long, Queue: true}
			if _, err := me.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
				t.Fatalf("without its answer: %v, want ErrUnknown", err)
			}
			next := claimOf(key, "next")
			hintsOf(t, me, next)
			next, g := take(t, me, next, long, true)
			if !g.Waiting {
				t.Fatalf("behind the first: %+v", g)
			}
			synced(t, me, key)
			r.Retry = retry
			g, err := me.Acquire(t.Context(), r)
			if err != nil || g.Waiting || g.Token >= next.Ticket || g.TTL < long-time.Second {
				t.Errorf("repeated: %+v (%v), want it held before %d", g, err, next.Ticket)
			}
			r.Claim.Ticket = g.Ticket
			mustRelease(t, me, r.Claim)
			if r := renewOne(t, me, next, long); r.State != driver.Held {
				t.Errorf("the next: %+v", r)
			}
			mustRelease(t, me, next)
		}
	})
}

// A lease ends while the answer to an acquire that was put on it is under way.
func TestLeaseEndsBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	spy := spyOn(s)
	warm, _ := take(t, s, claimOf("warm", "me"), long, false)
	mustRelease(t, s, warm)
	spy.mu.Lock()
	spy.after = func() { noticed(t, s, seconds(long)) }
	spy.mu.Unlock()
	_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("k", "me"), TTL: long})
	if !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	c, _ := take(t, s, claimOf("k", "me"), long, false)
	mustRelease(t, s, c)
}

// The same beside other holders.
func TestLeaseEndsBeforeTheAnswerBeside(t *testing.T) {
	t.Parallel()
	all := openOn(t, testserver.SharedEtcd(t), 2)
	s, reader := all[0], claimOf("k", "me")
	reader.Weight = 1
	other := reader
	other.ID, other.Owner = driver.NewID(), "other"
	spy := spyOn(s)
	warm, _ := take(t, s, claimOf("warm", "me"), long, false)
	mustRelease(t, s, warm)
	first, _ := take(t, all[1], other, long, false)
	spy.mu.Lock()
	spy.after = func() { // the answer says which names there are; the next request joins the queue
		spy.mu.Lock()
		defer spy.mu.Unlock()
		spy.after = func() { noticed(t, s, seconds(long)) }
	}
	spy.mu.Unlock()
	if _, err := s.Acquire(t.Context(), driver.Request{Claim: reader, TTL: long}); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	again := reader
	again.ID = driver.NewID()
	c, _ := take(t, s, again, long, false)
	mustRelease(t, s, c)
	mustRelease(t, all[1], first)
	nothingLeft(t, s, "k")
}

// Trap 9: an acquire whose answer was lost is found by its repetition, and
// removed by a release that knows only the ID.
func TestAnswerCutAfterTheEffect(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.New(t, testserver.SharedEtcd(t).Addr)
	s := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
	txn := func(request []byte) bool { return strings.Contains(string(request), prefixOf(t)+"/k") }
	for i, queue := range []bool{false, true, false, true} {
		c, _ := take(t, s, claimOf("warm", "me"), long, false)
		mustRelease(t, s, c)
		sprung := proxy.CutAfterRequest(txn)
		r := driver.Request{Claim: claimOf("k", "me"), TTL: long, Queue: queue}
		_, err := s.Acquire(t.Context(), r)
		<-sprung
		if !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("with its answer cut: %v, want ErrUnknown", err)
		}
		if i < 2 {
			r.Retry = true
			var g driver.Grant
			eventually(t, "the repetition is answered", 20*time.Second, func() bool {
				g, err = s.Acquire(t.Context(), r)
				return err == nil
			})
			if g.Waiting || len(names(t, s, "k").Kvs) != 1 {
				t.Errorf("repeated: %+v, with %d names", g, len(names(t, s, "k").Kvs))
			}
		}
		// A server may drop a request whose connection is gone, and a release
		// without an answer may have been one.
		unsure := i >= 2
		eventually(t, "the release is answered", 20*time.Second, func() bool {
			err = s.Release(t.Context(), r.Claim)
			unsure = unsure || errors.Is(err, driver.ErrUnknown)
			return !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable)
		})
		if err != nil && !(unsure && errors.Is(err, driver.ErrLost)) {
			t.Errorf("release: %v", err)
		}
		awaitNames(t, s, "k", 0, 20*time.Second)
	}
}
