package etcdstore

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/testserver"
)

// Renewing takes one lease for all claims of a TTL, and writes nothing.
func TestRenewingWritesNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	s := openOn(t, server, 1)[0]
	var claims []driver.Claim
	for i := range 250 {
		c, _ := take(t, s, claimOf(fmt.Sprint("k", i), "me"), long, true)
		claims = append(claims, c)
	}
	before := names(t, s, "k0").Header.Revision
	for range 3 {
		for i, r := range s.Renew(t.Context(), claims, long) {
			if r.State != driver.Held || r.Grant.TTL < long-time.Second {
				t.Fatalf("number %d: %+v", i, r)
			}
		}
	}
	if after := names(t, s, "k0").Header.Revision; after != before {
		t.Errorf("the revision went from %d to %d", before, after)
	}
	leases, err := s.client.Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Errorf("%v leases (%v), want one", leases, err)
	}
}

// A lease that was handed to another process belongs to it: the first process does not
// take it back when it has not renewed it for its TTL.
func TestHandedToAnotherProcess(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 3)
	const ttl = 3 * time.Second
	c, g := take(t, s[0], claimOf("k", "first"), ttl, false)
	end := time.Now().Add(ttl + time.Second)
	for time.Now().Before(end) {
		r := renewOne(t, s[1], c, ttl)
		if r.State != driver.Held || r.Grant.Token != g.Token {
			t.Fatalf("in the second process: %+v, want held with token %d", r, g.Token)
		}
		time.Sleep(100 * time.Millisecond) // time passing is what is tested
	}
	// A third one releases it, knowing nothing but the claim.
	mustRelease(t, s[2], c)
	if r := renewOne(t, s[1], c, ttl); r.State != driver.Lost {
		t.Errorf("after the release: %v", r.State)
	}
}

// The previous process of a claim has a renewal under way when another process takes
// the claim over, and the second transaction of that renewal gets no answer. What the
// previous process does at the claim's end must not touch the claim of the other.
func TestTakenOverDuringARenewal(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 2)
	const ttl = 3 * time.Second
	c, _ := take(t, s[0], claimOf("k", "first"), ttl, false)
	if r := renewOne(t, s[1], c, ttl); r.State != driver.Held {
		t.Fatalf("in the second process: %+v", r)
	}
	k := tap(s[0])
	k.before = func(n int, r *pb.TxnRequest) error {
		if n == 2 {
			return context.DeadlineExceeded
		}
		return nil
	}
	if r := renewOne(t, s[0], c, ttl); r.State != driver.Unknown || k.count() != 2 {
		t.Fatalf("in the first process: %+v after %d transactions", r, k.count())
	}
	end := time.Now().Add(ttl + time.Second)
	for time.Now().Before(end) {
		if r := renewOne(t, s[1], c, ttl); r.State != driver.Held {
			t.Fatalf("in the second process: %+v, %v before the end", r, time.Until(end))
		}
		time.Sleep(100 * time.Millisecond) // time passing is what is tested
	}
	mustRelease(t, s[1], c)
	nothingLeft(t, s[1], "k")
}

// A waiter is renewed by reading its name and the head of the queue. Several waiters of
// one process are renewed by one listing of the queue.
func TestConfirmingWaiters(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		spy := spyOn(s[1])
		h, _ := take(t, s[0], claimOf("k", "holder"), long, false)
		var waiters []driver.Claim
		for range 3 {
			c, _ := take(t, s[1], claimOf("k", "waiter"), long, true)
			waiters = append(waiters, c)
		}
		reads := func() []*pb.RangeRequest { return spy.reads(s[1].dir("k")) }
		states := func(want ...driver.State) {
			t.Helper()
			for i, r := range s[1].Renew(t.Context(), waiters[:len(want)], long) {
				if r.State != want[i] {
					t.Errorf("number %d: %v (%v), want %v", i, r.State, r.Err, want[i])
				}
			}
		}
		spy.reset()
		states(driver.Waiting)
		if r := reads(); len(r) != 2 || r[0].RangeEnd != nil || r[1].Limit != 1 {
			t.Errorf("one waiter: it read %v", r)
		}
		spy.reset()
		states(driver.Waiting, driver.Waiting, driver.Waiting)
		if r := reads(); len(r) != 1 || r[0].Limit != 0 {
			t.Errorf("three waiters: it read %v", r)
		}
		// Without a mirror, as there is no watch: the store finds it by asking.
		mustRelease(t, s[0], h)
		states(driver.Held)
		states(driver.Held, driver.Waiting, driver.Waiting)
		mustRelease(t, s[1], waiters[0])
		waiters = waiters[1:]
		states(driver.Held, driver.Waiting)
		// A waiter that was removed is not renewed, not even by the head before it.
		for _, kv := range names(t, s[0], "k").Kvs {
			if kv.CreateRevision == waiters[1].Ticket {
				if _, err := s[0].client.Delete(t.Context(), string(kv.Key)); err != nil {
					t.Fatal(err)
				}
			}
		}
		waiters[0], waiters[1] = waiters[1], waiters[0]
		states(driver.Lost)
	})
}

// A waiter whose mirror knows the contender before it reads that name and its own,
// however long the queue is; and the head if that contender has gone, or never was.
func TestRenewedByItsPredecessor(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 3)
		spy := spyOn(s[2])
		claims := fillQueue(t, s)
		me, before := claims[2], names(t, s[2], "k").Kvs
		slices.SortFunc(before, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
		expect := func(want driver.State, reads ...string) {
			t.Helper()
			spy.reset()
			if r := renewOne(t, s[2], me, long); r.State != want {
				t.Errorf("it is %v (%v), want %v", r.State, r.Err, want)
			}
			var got []string
			for _, r := range spy.reads(s[2].dir("k")) {
				if r.RangeEnd == nil {
					got = append(got, string(r.Key))
				} else {
					got = append(got, fmt.Sprint("head ", r.Limit))
				}
			}
			if reads != nil && !slices.Equal(got, reads) {
				t.Errorf("it read %q, want %q", got, reads)
			}
		}
		own, next := string(before[2].Key), string(before[1].Key)
		expect(driver.Waiting, own, next)

		mustRelease(t, s[1], claims[1])
		expect(driver.Waiting) // whether the mirror has heard of it or not

		plant := func() {
			s[2].mu.Lock()
			defer s[2].mu.Unlock()
			m := s[2].keys["k"].mirror
			gone := contender{Claim: claimOf("k", "gone"), name: s[2].dir("k") + "gone", rev: me.Ticket - 1, lease: 1}
			m.index = newQueueIndex([]contender{gone, {Claim: me, name: own, rev: me.Ticket, lease: 1}})
		}
		eventually(t, "the mirror has heard of it", 20*time.Second, func() bool {
			s[2].mu.Lock()
			defer s[2].mu.Unlock()
			return len(s[2].keys["k"].mirror.index.queue) == 2
		})
		plant()
		expect(driver.Waiting, own, s[2].dir("k")+"gone", own, "head 1")
		s[2].mu.Lock()
		s[2].keys["k"].mirror.rev = math.MaxInt64 // it hears of nothing
		s[2].mu.Unlock()
		mustRelease(t, s[0], claims[0])
		plant()
		expect(driver.Held)
	})
}

// A waiter whose grant the mirror tells in the middle of a renewal is still renewed for
// the whole TTL.
func TestGrantedWhileConfirmed(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		spy := spyOn(s[1])
		h, _ := take(t, s[0], claimOf("k", "holder"), long, false)
		c, _ := take(t, s[1], claimOf("k", "waiter"), long, true)
		mustRelease(t, s[0], h)
		spy.mu.Lock()
		spy.before = func() {
			s[1].mu.Lock()
			defer s[1].mu.Unlock()
			if c := s[1].keys["k"].claims[c.ID]; c != nil { // else it has ended on a busy machine, and steady tries again
				c.held = true
			}
		}
		spy.mu.Unlock()
		if r := renewOne(t, s[1], c, long); r.State != driver.Held || r.Grant.TTL < long-time.Second {
			t.Errorf("%+v, want it held for the whole TTL", r)
		}
		for _, kv := range names(t, s[0], "k").Kvs {
			s[1].mu.Lock()
			if l := s[1].leases[seconds(long)]; l == nil || kv.Lease != l.id {
				t.Error("it is not on the lease for that TTL")
			}
			s[1].mu.Unlock()
		}
	})
}

// Two renewals of a claim are under way when it is granted. The one that began as a
// waiter's does not move it back to the waiters' lease, which would end before the
// other renewal's caller stops trusting it.
func TestWaitersRenewalMovesNothingBack(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		h, _ := take(t, s[0], claimOf("k", "holder"), long, false)
		c, _ := take(t, s[1], claimOf("k", "waiter"), long, true)
		s[1].mu.Lock()
		w := &renewal{claim: s[1].keys["k"].claims[c.ID], class: seconds(long)}
		s[1].mu.Unlock()
		work := []*renewal{w}
		s[1].pickLeases(t.Context(), work, bootclock.Now(), long, map[*lease]*leaseRequest{})
		mustRelease(t, s[0], h)
		if r := renewOne(t, s[1], c, long); r.State != driver.Held {
			t.Fatalf("the other renewal: %+v", r)
		}
		s[1].readState(t.Context(), work, long)
		kvs := names(t, s[0], "k").Kvs
		s[1].mu.Lock()
		defer s[1].mu.Unlock()
		if l := s[1].leases[seconds(long)]; l == nil || len(kvs) != 1 || kvs[0].Lease != l.id {
			t.Errorf("the name is not on the lease for the whole TTL: %v", kvs)
		}
		if w.decided && w.state != driver.Held {
			t.Errorf("it is decided to be %v: %v", w.state, w.err)
		}
	})
}

// A renewal of the previous process takes a claim back from the process that it was
// handed to, which is then cut off: that process considers itself the holder for its TTL.
func TestTakenBackByALateRenewal(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 3)
	const ttl = 3 * time.Second
	c, _ := take(t, s[0], claimOf("k", "first"), ttl, false)
	k := tap(s[0])
	var end time.Time // until when the second process trusts it
	k.before = func(n int, r *pb.TxnRequest) error {
		if n == 1 {
			<-time.After(time.Second) // the fault itself
			sent := bootclock.Now()
			a := renewOne(t, s[1], c, ttl)
			if a.State != driver.Held {
				t.Errorf("in the second process: %+v", a)
			}
			end = sent.Add(a.Grant.TTL)
		}
		return nil
	}
	if a := renewOne(t, s[0], c, ttl); a.State != driver.Held || end.IsZero() {
		t.Fatalf("in the first process: %+v", a)
	}
	for len(names(t, s[2], "k").Kvs) > 0 {
		<-time.After(5 * time.Millisecond) // time passing is what is tested
	}
	if left := time.Until(end); left > 0 {
		t.Errorf("it ended %v too soon", left)
	}
	nothingLeft(t, s[0], "k")
}

// A process that takes a claim over gets no answer, and gives up. Its request takes
// effect late: its lease goes on, and the claim with it, unless it is removed.
func TestLateTakeover(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 3)
	const ttl = 5 * time.Second
	c, _ := take(t, s[0], claimOf("k", "first"), ttl, false)
	beside, _ := take(t, s[1], claimOf("beside", "second"), ttl, false)
	k := tap(s[1])
	var late *pb.TxnRequest
	k.before = func(n int, r *pb.TxnRequest) error {
		if n == 2 { // after the listing
			late = r
			return context.DeadlineExceeded
		}
		return nil
	}
	if a := renewOne(t, s[1], c, ttl); a.State != driver.Unknown || late == nil {
		t.Fatalf("without an answer: %+v", a)
	}
	eventually(t, "the second process has given up", 20*time.Second, func() bool {
		if a := renewOne(t, s[1], beside, ttl); a.State != driver.Held {
			t.Fatalf("the lock beside it: %+v", a)
		}
		s[1].mu.Lock()
		defer s[1].mu.Unlock()
		now := bootclock.Now()
		for _, w := range s[1].cleaner.later {
			if w.busy || !now.Before(w.at) {
				return false
			}
		}
		return s[1].claimLocked(c) == nil
	})
	if _, err := k.KVClient.Txn(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); len(names(t, s[2], "k").Kvs) > 0; <-time.After(50 * time.Millisecond) {
		if a := renewOne(t, s[1], beside, ttl); a.State != driver.Held || time.Since(begun) > 20*time.Second {
			t.Fatalf("%v later it is still there; the lock beside it: %+v", time.Since(begun), a)
		}
	}
	nothingLeft(t, s[1], "k")
}

// Two renewals of a claim are under way when its lease is replaced. The renewal that
// began before does not move the name back to the old lease, which is no longer kept
// alive.
func TestRenewalMovesNothingBackFromTheSuccessor(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	for _, queue := range []bool{false, true} {
		t.Run(fmt.Sprint("waits=", queue), func(t *testing.T) {
			t.Parallel()
			steady(t, func(t testing.TB) {
				s := openOn(t, testserver.SharedEtcd(t), 2)
				class, want := seconds(long), driver.Held
				if queue {
					class, want = waiterSeconds, driver.Waiting
					take(t, s[1], claimOf("k", "holder"), long, false)
				}
				c, _ := take(t, s[0], claimOf("k", "me"), long, queue)
				s[0].mu.Lock()
				w := &renewal{claim: s[0].keys["k"].claims[c.ID], class: seconds(long)}
				s[0].mu.Unlock()
				work := []*renewal{w}
				s[0].pickLeases(t.Context(), work, bootclock.Now(), long, map[*lease]*leaseRequest{})

				s[0].mu.Lock()
				old := s[0].leases[class]
				old.unresolved = true
				s[0].refreshLocked(old)
				s[0].mu.Unlock()
				eventually(t, "a successor", 20*time.Second, func() bool {
					s[0].mu.Lock()
					defer s[0].mu.Unlock()
					return s[0].leases[class] != old
				})
				if r := renewOne(t, s[0], c, long); r.State != want {
					t.Fatalf("the other renewal: %+v", r)
				}
				s[0].readState(t.Context(), work, long)
				var on int64
				for _, kv := range names(t, s[1], "k").Kvs {
					if kv.CreateRevision == c.Ticket {
						on = kv.Lease
					}
				}
				s[0].mu.Lock()
				defer s[0].mu.Unlock()
				if l := s[0].leases[class]; l == nil || on != l.id {
					t.Errorf("the name is not on the successor, but on %x (the old one is %x)", on, old.id)
				}
			})
		})
	}
}
