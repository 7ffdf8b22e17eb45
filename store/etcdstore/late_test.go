package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/testserver"
)

// Requests that take effect when no caller expects them any more, or whose effect is
// not known.

// A request without an answer takes effect late, when its repetition was refused
// because another contender was there.
func TestLatePutAfterARefusal(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		all := openOn(t, testserver.SharedEtcd(t), 2)
		me, other := all[0], all[1]
		warm, _ := take(t, me, claimOf("warm", "me"), long, false)
		mustRelease(t, me, warm)
		k := tap(me)
		keys := []string{"alone"}
		if together {
			keys = []string{"a", "b"}
		}
		r := several("me", keys...)
		acquire := func() error {
			if together {
				_, err := me.AcquireAll(t.Context(), r)
				return err
			}
			_, err := me.Acquire(t.Context(), r[0])
			return err
		}
		var late *pb.TxnRequest
		next := k.count() + 1
		k.before = func(n int, r *pb.TxnRequest) error {
			if n == next {
				late = r
				return context.DeadlineExceeded
			}
			return nil
		}
		if err := acquire(); !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("without its answer: %v", err)
		}
		theirs, _ := take(t, other, claimOf(keys[0], "other"), long, false)
		r[0].Retry = true
		if err := acquire(); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("again: %v, want it refused", err)
		}
		mustRelease(t, other, theirs)
		if _, err := k.KVClient.Txn(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		// Both wait for what may come late at the same time.
		defer nothingLeft(t, me, keys...)
	}
}

// A request without an answer takes effect late, when its repetition was granted and
// the lock released since. The name is on a lease that the process keeps alive.
func TestLatePutAfterAGrant(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{1, 2} {
		for _, downgraded := range []bool{false, true} {
			s := openOn(t, testserver.SharedEtcd(t), 1)[0]
			key := fmt.Sprintf("lost=%d,downgraded=%v", lost, downgraded)
			beside, _ := take(t, s, claimOf("beside "+key, "me"), long, false)
			t.Run(key, func(t *testing.T) {
				k := tap(s)
				var late []*pb.TxnRequest
				k.before = func(n int, r *pb.TxnRequest) error {
					if n > lost {
						return nil
					}
					late = append(late, r)
					return context.DeadlineExceeded
				}
				r := driver.Request{Claim: claimOf(key, "me"), TTL: long}
				for range lost {
					if _, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
						t.Fatalf("without its answer: %v", err)
					}
					r.Retry = true
				}
				g, err := s.Acquire(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				r.Ticket = g.Ticket
				if downgraded {
					if _, err := s.Downgrade(t.Context(), r.Claim, long); err != nil {
						t.Fatal(err)
					}
				}
				mustRelease(t, s, r.Claim)
				for _, txn := range late {
					if _, err := k.KVClient.Txn(t.Context(), txn); err != nil {
						t.Fatal(err)
					}
					awaitNames(t, s, key, 0, lateEffect/2)
				}
			})
			// All of them wait for what may come late at the same time.
			defer func() {
				nothingLeft(t, s, key)
				mustRelease(t, s, beside)
			}()
		}
	}
}

// A server may have carried out a request when it says that it is full.
func TestFullAfterTheEffect(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	held, _ := take(t, s, claimOf("held", "me"), long, false)
	k := tap(s)
	k.before = func(n int, r *pb.TxnRequest) error {
		if len(r.Success) != 1 || !strings.Contains(string(r.Success[0].GetRequestPut().GetValue()), `"me"`) {
			return nil // neither an acquire nor a downgrade
		}
		if _, err := k.KVClient.Txn(t.Context(), r); err != nil {
			t.Error(err)
		}
		return rpctypes.ErrGRPCNoSpace
	}
	r := driver.Request{Claim: claimOf("k", "me"), TTL: long}
	if _, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("acquire: %v, want ErrUnknown", err)
	}
	mustRelease(t, s, r.Claim)
	if _, err := s.Downgrade(t.Context(), held, long); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("downgrade: %v, want ErrUnknown", err)
	}
	reader := claimOf("held", "other")
	reader.Weight = 1
	beside, _ := take(t, s, reader, long, false)
	if a := renewOne(t, s, held, long); a.State != driver.Held {
		t.Errorf("downgraded, and renewed: %+v", a)
	}
	mustRelease(t, s, beside)
	mustRelease(t, s, held)
	nothingLeft(t, s, "k", "held")
}

// The same for several items that went together: each is sent again, and one that does
// not find things as they were cannot tell which request has changed them.
func TestFullAfterTheEffectOfMany(t *testing.T) {
	t.Parallel()
	for _, happened := range []bool{false, true} {
		s := openOn(t, testserver.SharedEtcd(t), 1)[0]
		held, _ := take(t, s, claimOf("held", "me"), long, false)
		k := tap(s)
		k.before = func(n int, r *pb.TxnRequest) error {
			if n > 1 {
				return nil
			}
			if happened {
				if _, err := k.KVClient.Txn(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
			return rpctypes.ErrGRPCNoSpace
		}
		c := claimOf("k", "me")
		s.mu.Lock()
		release := s.claimLocked(held).release()
		lease := s.leases[seconds(long)].id
		s.mu.Unlock()
		name := s.place(s.dir("k"), 0)
		acquire := &item{Item: batch.NewItem(), dir: s.dir("k"), name: name, puts: true, txn: &pb.TxnRequest{
			Compare: only(nobody(s.dir("k"))),
			Success: ops(put(name, encode(c), lease)),
			Failure: ops(get(name), listing(s.dir("k"))),
		}}
		s.sendItems(t.Context(), []*item{acquire, release})
		if acquire.err != nil || acquire.resp.Succeeded == happened {
			t.Errorf("happened=%v: the acquire: %v (%v)", happened, acquire.resp, acquire.err)
		}
		if happened != errors.Is(release.err, driver.ErrUnknown) || !happened && release.err != nil {
			t.Errorf("happened=%v: the release: %v", happened, release.err)
		}
		awaitNames(t, s, "held", 0, 0)
	}
}

// A renewal of the previous process takes a claim back from the process that it was
// handed to, which is then cut off: that process believes in it for its TTL.
func TestTakenBackByALateRenewal(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 3)
	const ttl = 3 * time.Second
	c, _ := take(t, s[0], claimOf("k", "first"), ttl, false)
	k := tap(s[0])
	var end time.Time // until when the second process believes in it
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
		for _, w := range s[1].house.later {
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

// A member that hung carries out a request after a long time, when the process neither
// waits nor looks for it. The process has gone on using its lease, and holds other
// locks on it.
func TestPutThatComesVeryLate(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	for _, how := range []string{"alone", "beside a reader", "together"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			all := openOn(t, testserver.SharedEtcd(t), 2)
			s := all[0]
			beside, _ := take(t, s, claimOf("beside", "me"), ttl, false)
			s.mu.Lock()
			lease := s.leases[seconds(ttl)].id
			s.mu.Unlock()
			r := several("me", "k")
			r[0].TTL = ttl
			var reader driver.Claim
			if how == "beside a reader" {
				r[0].Weight = 1
				c := claimOf("k", "reader")
				c.Weight = 1
				reader, _ = take(t, all[1], c, long, false)
			}
			k := tap(s)
			var late *pb.TxnRequest
			k.before = func(n int, r *pb.TxnRequest) error {
				if how == "beside a reader" && r.Success[0].GetRequestTxn() == nil {
					return nil // it finds the reader
				}
				if late == nil {
					late = r
					return context.DeadlineExceeded
				}
				return nil
			}
			var err error
			if how == "together" {
				_, err = s.AcquireAll(t.Context(), r)
			} else {
				_, err = s.Acquire(t.Context(), r[0])
			}
			if !errors.Is(err, driver.ErrUnknown) || late == nil {
				t.Fatalf("without its answer: %v", err)
			}
			k.before = nil
			if err := s.Release(t.Context(), r[0].Claim); !errors.Is(err, driver.ErrLost) {
				t.Fatalf("released: %v", err)
			}
			eventually(t, "the end of the lease", 30*time.Second, func() bool {
				if a := renewOne(t, s, beside, ttl); a.State != driver.Held || a.Grant.Token != beside.Ticket {
					t.Fatalf("the lock beside it: %+v", a)
				}
				<-time.After(ttl / 20) // as often as it makes sense
				left, err := s.leaser.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: lease})
				return err == nil && left.TTL < 0
			})
			if reader.Key != "" {
				mustRelease(t, all[1], reader)
			}
			if _, err := k.KVClient.Txn(t.Context(), late); !leaseGone(err) {
				t.Errorf("what came late: %v", err)
			}
			if a := renewOne(t, s, beside, ttl); a.State != driver.Held {
				t.Errorf("the lock beside it: %+v", a)
			}
			mustRelease(t, s, beside)
			nothingLeft(t, s, "k", "beside")
		})
	}
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
				s[0].aim(t.Context(), work, bootclock.Coarse(), long, map[*lease]*asking{})

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
				s[0].look(t.Context(), work, long)
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

// A request that was not sent does not count as answered for calls that waited for its
// outcome.
func TestOutcomeOfWhatWasNotSent(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	cl := claimOf("k", "me")
	it := putOf(t, "k", false)
	s.mu.Lock()
	c := s.addLocked(s.lockLocked(cl.Key), cl)
	c.item, c.unresolved = it, bootclock.Coarse().Add(time.Minute) // an earlier put may yet come
	s.mu.Unlock()
	resume := s.batch.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() { s.late(c, it) }) // as a release does that began meanwhile
	work.Go(func() {
		queued(t, s.batch, 1)
		cancel()
	})
	if err := s.do(ctx, it); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("it was not sent: %v, want the context's error alone", err)
	}
	work.Wait()
	resume()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.item != nil || c.rev != 0 {
		t.Errorf("the claim counts on it: %+v", c)
	}
	if !c.uncertain() {
		t.Error("an earlier put is no longer looked for")
	}
}
