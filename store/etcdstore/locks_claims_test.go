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

// Trap 2: a name is used again and again, and a release is for one use of it.
func TestOneNameForAllAcquisitions(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	name := ""
	var last driver.Claim
	for i := range 50 {
		c, g := take(t, s, claimOf("k", "me"), long, true)
		kvs := names(t, s, "k").Kvs
		if len(kvs) != 1 || kvs[0].CreateRevision != g.Token {
			t.Fatalf("%d names, want one, created at the token %d: %v", len(kvs), g.Token, kvs)
		}
		if i > 0 && string(kvs[0].Key) != name {
			t.Fatalf("the name %s became %s", name, kvs[0].Key)
		}
		name = string(kvs[0].Key)
		if i > 0 {
			if err := s.Release(t.Context(), last); !errors.Is(err, driver.ErrLost) {
				t.Fatalf("a release of the use before: %v", err)
			}
		}
		mustRelease(t, s, c)
		last = c
	}
}

// A claim comes back to the process that made its name, which gives that name to no other
// claim, and does not take it for what another claim has left.
func TestClaimThatComesBack(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	for _, how := range []string{"before the other claim", "while the other claim is asked for"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := openOn(t, testserver.SharedEtcd(t), 2)
			me := takenOver(t, s, "k", 1)[0].Claim
			back := func() {
				if a := renewOne(t, s[0], me, long); a.State != driver.Held || a.Grant.Token != me.Ticket {
					t.Fatalf("back in the first process: %+v", a)
				}
			}
			k := tap(s[0])
			if how == "before the other claim" {
				back()
			} else {
				next := k.count() + 1
				k.before = func(n int, _ *pb.TxnRequest) error {
					if n == next {
						back()
					}
					return nil
				}
			}
			for range 3 {
				for _, queue := range []bool{false, true} {
					other := claimOf("k", "other")
					g, err := s[0].Acquire(t.Context(), driver.Request{Claim: other, TTL: long, Queue: queue})
					switch {
					case queue && err == nil && g.Waiting:
						mustRelease(t, s[0], other)
					case queue || !errors.Is(err, driver.ErrHeld):
						t.Errorf("another claim (queue %v): %+v, %v", queue, g, err)
					}
					swept(t, s[0])
					back()
				}
			}
			mustRelease(t, s[0], me)
			nothingLeft(t, s[0], "k")
		})
	}
}

// The names that a process would use next have all been taken over by another one.
func TestNamesThatOthersHaveTakenOver(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	s := openOn(t, testserver.SharedEtcd(t), 2)
	readers := takenOver(t, s, "k", attempts+3)
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: %v, want it refused", what, err)
		}
		swept(t, s[0])
	}
	for range 2 {
		_, err := s[0].Acquire(t.Context(), driver.Request{Claim: claimOf("k", "writer"), TTL: long})
		refused("a writer", err)
	}
	noticed(t, s[0], seconds(long))
	waiter, g := take(t, s[0], claimOf("k", "waiter"), long, true)
	if !g.Waiting {
		t.Errorf("in line: %+v", g)
	}
	mustRelease(t, s[0], waiter)
	reader := claimOf("k", "another reader")
	reader.Weight = 1
	reader, _ = take(t, s[0], reader, long, false)
	mustRelease(t, s[0], reader)
	for i, r := range readers { // they come back, and go elsewhere
		if a := renewOne(t, s[i%2], r.Claim, long); a.State != driver.Held || a.Grant.Token != r.Ticket {
			t.Errorf("reader %d: %+v", i, a)
		}
	}
	for _, r := range readers {
		mustRelease(t, s[0], r.Claim)
	}
	nothingLeft(t, s[0], "k")
}

// A release comes to a process whose own name for the claim is not there, and finds the
// name that another process has put.
func TestReleaseFindsTheNameOfAnother(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	for _, how := range []string{"no answer", "another name"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := warmed(t, 2, long)
			r := driver.Request{Claim: claimOf("k", "me"), TTL: long}
			if how == "no answer" {
				k := tap(s[0])
				next := k.count() + 1
				k.before = func(n int, _ *pb.TxnRequest) error {
					if n == next {
						return context.DeadlineExceeded
					}
					return nil
				}
			}
			switch _, err := s[0].Acquire(t.Context(), r); {
			case how == "no answer" && !errors.Is(err, driver.ErrUnknown), how != "no answer" && err != nil:
				t.Fatalf("in the first process: %v", err)
			case err == nil:
				mustRelease(t, s[1], r.Claim)
			}
			r.Retry = true
			g, err := s[1].Acquire(t.Context(), r)
			if err != nil || g.Waiting {
				t.Fatalf("in the second process: %+v, %v", g, err)
			}
			r.Ticket = g.Ticket
			mustRelease(t, s[0], r.Claim)
			awaitNames(t, s[0], "k", 0, 0)
			if a := renewOne(t, s[1], r.Claim, long); a.State != driver.Lost {
				t.Errorf("after its release: %+v", a)
			}
			nothingLeft(t, s[0], "k")
		})
	}
}

// The first request of a claim is carried out after its repetition in another process, and
// its process hears of that. It answers by the name that holds.
func TestFirstRequestComesSecondAndIsAnswered(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	for _, how := range []string{"renewed", "released", "repeated", "renewed behind another"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := warmed(t, 3, long)
			warm, _ := take(t, s[2], claimOf("warm", "holder"), long, false)
			waiter, _ := take(t, s[0], claimOf("warm", "waiter"), long, true) // which has the lease of waiters granted
			mustRelease(t, s[0], waiter)
			mustRelease(t, s[2], warm)
			k := tap(s[0])
			sent, carry := make(chan bool), make(chan bool)
			next := k.count() + 1
			k.before = func(n int, _ *pb.TxnRequest) error {
				if n == next {
					close(sent)
					<-carry
				}
				return nil
			}
			r := driver.Request{Claim: claimOf("k", "me"), TTL: long, Queue: true}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-sent
				cancel()
			}()
			if _, err := s[0].Acquire(ctx, r); !errors.Is(err, driver.ErrUnknown) {
				t.Fatalf("without its answer: %v, want ErrUnknown", err)
			}
			r.Retry = true
			g, err := s[1].Acquire(t.Context(), r)
			if err != nil || g.Waiting {
				t.Fatalf("repeated elsewhere: %+v, %v", g, err)
			}
			r.Ticket = g.Ticket
			if how == "renewed behind another" {
				take(t, s[2], claimOf("k", "between"), long, true)
			}
			close(carry)
			eventually(t, "the answer", 20*time.Second, func() bool {
				s[0].mu.Lock()
				defer s[0].mu.Unlock()
				c := s[0].claimLocked(r.Claim)
				return c != nil && c.rev > 0
			})
			switch how {
			case "repeated":
				if again, err := s[0].Acquire(t.Context(), r); err != nil || again.Waiting || again.Token != g.Token {
					t.Fatalf("repeated in the first process: %+v, %v", again, err)
				}
			case "renewed", "renewed behind another":
				for range 2 {
					if a := renewOne(t, s[0], r.Claim, long); a.State != driver.Held || a.Grant.Token != g.Token {
						t.Fatalf("renewed in the first process: %+v", a)
					}
				}
			}
			mine := func() (n int) {
				for _, kv := range names(t, s[2], "k").Kvs {
					if e, _ := contenderOf(s[2].dir("k"), "k", kv); e.ID == r.ID {
						n++
					}
				}
				return n
			}
			if how != "released" {
				eventually(t, "the second name has gone", 20*time.Second, func() bool { return mine() == 1 })
			}
			mustRelease(t, s[0], r.Claim)
			if err := s[1].Release(t.Context(), r.Claim); !errors.Is(err, driver.ErrLost) {
				t.Errorf("released again: %v, want ErrLost", err)
			}
			if n := mine(); n > 0 {
				t.Errorf("%d names are left", n)
			}
			swept(t, s[0])
		})
	}
}
