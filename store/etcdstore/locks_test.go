package etcdstore

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// A claim that one process has asked for, and another asks for again.

// warmed makes stores whose leases for that TTL are granted.
func warmed(t testing.TB, n int, ttl time.Duration) []*Store {
	t.Helper()
	all := openOn(t, testserver.SharedEtcd(t), n)
	for _, s := range all {
		c, _ := take(t, s, claimOf("warm "+s.process, "me"), ttl, false)
		mustRelease(t, s, c)
	}
	return all
}

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
		if a.State != driver.Unknown || !errors.Is(a.Err, driver.ErrUnavailable) || time.Since(begun) > ttl+2*lateEffect {
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
			return len(s[0].house.later) == 0
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
