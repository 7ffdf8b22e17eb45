package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// With very many claims a run of clean takes longer than the pause between two
// runs. It leaves most of the time to calls all the same, however often it is due.
func TestCleanerLeavesTime(t *testing.T) {
	s := &Store{keys: make(map[string]*lock)}
	for i := range 20_000 {
		key := fmt.Sprint(i)
		k := &lock{key: key}
		k.all = map[*claim]bool{{Claim: driver.Claim{Key: key}, lock: k, held: true, deadline: bootclock.Now().Add(time.Hour)}: true}
		s.keys[key] = k
	}
	for range 10 { // the machine may stop this test in the middle
		began := bootclock.Now()
		s.clean()
		s.mu.Lock()
		ended := bootclock.Now()
		s.cleanByLocked(ended) // as after every removal of a name
		pause := s.cleaner.at.Sub(ended)
		s.cleaner.timer.Stop()
		s.mu.Unlock()
		if pause > 5*ended.Sub(began) {
			return
		}
	}
	t.Error("the next run begins before calls had five times as long as the last one took")
}

// The cleaner never pauses for so long that a claim that was not renewed lasts much
// longer than it was to, even if the process stood still in the middle of a run.
func TestCleanerPausesBriefly(t *testing.T) {
	for run, want := range map[time.Duration]time.Duration{
		0:                      0,
		10 * time.Millisecond:  90 * time.Millisecond,
		100 * time.Millisecond: 900 * time.Millisecond,
		time.Second:            maxPause,
		10 * time.Hour:         maxPause,
		math.MaxInt64:          maxPause,
	} {
		if got := pauseAfter(run); got != want {
			t.Errorf("after a run of %v: %v, want %v", run, got, want)
		}
	}
}

// Very many claims end at once, on a process that holds very many others: their names are
// removed one after the other, and none waits for the next run of clean.
func TestManyClaimsEndAtOnce(t *testing.T) {
	t.Parallel()
	const n = 8 * maxRemovals
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	keep, _ := take(t, s, claimOf("keep", "a"), time.Minute, false)
	var wg sync.WaitGroup
	claims := make(chan driver.Claim, n)
	for range 64 {
		wg.Go(func() {
			for i := len(claims); i < n; i = len(claims) {
				c := claimOf(fmt.Sprint("k/", driver.NewID()), "a")
				g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				c.Ticket = g.Ticket
				select {
				case claims <- c:
				default:
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	most := 0
	s.mu.Lock()
	for _, k := range s.keys {
		for c := range k.all {
			if c.ID != keep.ID {
				c.deadline = bootclock.Now()
			}
		}
	}
	s.mu.Unlock()
	s.clean()
	s.mu.Lock()
	s.cleaner.pausedUntil = bootclock.Now().Add(time.Hour) // as if it had very much to look at
	s.cleaner.timer.Stop()
	s.cleaner.at = s.cleaner.pausedUntil
	s.mu.Unlock()
	began := time.Now()
	eventually(t, "all names are removed but one", 20*time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		most = max(most, s.cleaner.removers)
		return len(s.cleaner.later) == 0
	})
	if most > maxRemovals {
		t.Errorf("%d names were being removed at a time, want at most %d", most, maxRemovals)
	}
	t.Logf("%d names were removed in %v, at most %d at a time", n, time.Since(began), most)
	if r := renewOne(t, s, keep, time.Minute); r.State != driver.Held {
		t.Errorf("the one that did not end: %+v", r)
	}
	if got, err := s.client.Get(t.Context(), s.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || got.Count != 1 {
		t.Errorf("%d names are on the server, %v, want 1", got.Count, err)
	}
}

// Trap 9: a request that reaches the server when its caller no longer waits leaves
// nothing, though the lease that it is on lives on.
func TestLatePutIsRemoved(t *testing.T) {
	t.Parallel()
	server := testserver.SharedEtcd(t)
	proxy := faultproxy.New(t, server.Addr)
	s := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
	watcher := openOn(t, server, 1)[0]
	c, _ := take(t, s, claimOf("warm", "me"), long, false)
	underWay := make(chan struct{})
	tap(s).before = func(n int, _ *pb.TxnRequest) error {
		if n == 1 {
			close(underWay)
		}
		return nil
	}
	proxy.Hold(faultproxy.ToServer)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := driver.Request{Claim: claimOf("k", "me"), TTL: long, Queue: true}
	unanswered := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, r)
		unanswered <- err
	}()
	<-underWay
	cancel()
	if err := <-unanswered; !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Fatalf("unanswered: %v, want ErrUnknown and the context's error", err)
	}
	if err := s.Release(ctx, r.Claim); err == nil {
		t.Fatal("a release without an answer succeeded")
	}
	proxy.Heal()
	eventually(t, "the release is answered", 20*time.Second, func() bool {
		err := s.Release(t.Context(), r.Claim)
		return err == nil || errors.Is(err, driver.ErrLost)
	})
	awaitNames(t, watcher, "k", 0, 20*time.Second)
	if got := renewOne(t, s, c, long); got.State != driver.Held {
		t.Errorf("the lock beside it: %v (%v)", got.State, got.Err)
	}
}

// Requests that take effect when no caller expects them any more, or whose effect is
// not known.

// A request without an answer takes effect late, when its repetition was refused
// because another contender was there.
func TestLatePutAfterARefusal(t *testing.T) {
	t.Parallel()
	all := openOn(t, testserver.SharedEtcd(t), 2)
	me, other := all[0], all[1]
	warm, _ := take(t, me, claimOf("warm", "me"), long, false)
	mustRelease(t, me, warm)
	k := tap(me)
	r := driver.Request{Claim: claimOf("k", "me"), TTL: long}
	var late *pb.TxnRequest
	next := k.count() + 1
	k.before = func(n int, r *pb.TxnRequest) error {
		if n == next {
			late = r
			return context.DeadlineExceeded
		}
		return nil
	}
	if _, err := me.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("without its answer: %v", err)
	}
	theirs, _ := take(t, other, claimOf("k", "other"), long, false)
	r.Retry = true
	if _, err := me.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("again: %v, want it refused", err)
	}
	mustRelease(t, other, theirs)
	if _, err := k.KVClient.Txn(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, me, "k")
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
					awaitNames(t, s, key, 0, unresolvedTime/2)
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

// A member that hung carries out a request after a long time, when the process neither
// waits nor looks for it. The process has gone on using its lease, and holds other
// locks on it.
func TestPutThatComesVeryLate(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	for _, how := range []string{"alone", "beside a reader"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			all := openOn(t, testserver.SharedEtcd(t), 2)
			s := all[0]
			beside, _ := take(t, s, claimOf("beside", "me"), ttl, false)
			s.mu.Lock()
			lease := s.leases[seconds(ttl)].id
			s.mu.Unlock()
			r := driver.Request{Claim: claimOf("k", "me"), TTL: ttl}
			var reader driver.Claim
			if how == "beside a reader" {
				r.Weight = 1
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
			if _, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) || late == nil {
				t.Fatalf("without its answer: %v", err)
			}
			k.before = nil
			if err := s.Release(t.Context(), r.Claim); !errors.Is(err, driver.ErrLost) {
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
