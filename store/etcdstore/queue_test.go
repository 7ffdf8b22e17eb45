package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/testserver"
)

// spy records the requests of a store to the server.
type spy struct {
	pb.KVClient
	pb.LeaseClient
	mu     sync.Mutex
	txns   []*pb.TxnRequest
	alive  int    // how often a lease was kept alive
	before func() // done before the next transaction is sent
	after  func() // done before the answer to the next one is seen
	lose   bool   // the answer to the next one
	stingy bool   // no leases are granted
}

// spyOn must be called before the store is used.
func spyOn(s *Store) *spy {
	p := &spy{KVClient: s.kv, LeaseClient: s.leaser}
	s.kv, s.leaser = p, p
	return p
}

func (p *spy) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	p.mu.Lock()
	p.txns = append(p.txns, r)
	before, after, lose := p.before, p.after, p.lose
	p.before, p.after, p.lose = nil, nil, false
	p.mu.Unlock()
	if before != nil {
		before()
	}
	resp, err := p.KVClient.Txn(ctx, r, opts...)
	if after != nil {
		after()
	}
	if lose && err == nil {
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	return resp, err
}

func (p *spy) LeaseKeepAlive(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], error) {
	st, err := p.LeaseClient.LeaseKeepAlive(ctx, opts...)
	return spiedStream{st, p}, err
}

// spiedStream counts the requests that go by it.
type spiedStream struct {
	grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
	spy *spy
}

func (s spiedStream) Send(r *pb.LeaseKeepAliveRequest) error {
	s.spy.mu.Lock()
	s.spy.alive++
	s.spy.mu.Unlock()
	return s.BidiStreamingClient.Send(r)
}

func (p *spy) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, opts ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	p.mu.Lock()
	stingy := p.stingy
	p.mu.Unlock()
	if stingy {
		return nil, status.Error(codes.Unavailable, "no leases today")
	}
	return p.LeaseClient.LeaseGrant(ctx, r, opts...)
}

func (p *spy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.txns, p.alive = nil, 0
}

// about returns the transactions since the last reset that name dir.
func (p *spy) about(dir string) (txns []*pb.TxnRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.txns {
		if strings.Contains(r.String(), dir) {
			txns = append(txns, r)
		}
	}
	return txns
}

// reads returns what was read since the last reset by transactions that name dir.
func (p *spy) reads(dir string) (reads []*pb.RangeRequest) {
	for _, txn := range p.about(dir) {
		for _, o := range txn.Success {
			if r := o.GetRequestRange(); r != nil {
				reads = append(reads, r)
			}
		}
	}
	return reads
}

// crowded lets the first process hold a key and the others wait for it. The last one's
// mirror knows the queue.
func crowded(t testing.TB, stores []*Store) (all []driver.Claim) {
	t.Helper()
	for i, s := range stores {
		c := claimOf("k", "one of many")
		if i == len(stores)-1 {
			hintsOf(t, s, c)
		}
		c, g := take(t, s, c, long, true)
		if g.Waiting != (i > 0) {
			t.Fatalf("number %d: %+v", i, g)
		}
		all = append(all, c)
	}
	synced(t, stores[len(stores)-1], "k")
	return all
}

// A claim that joins the queue behind a contender that the mirror knows does not make
// the server read the queue.
func TestInLineBehindSomebodyKnown(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 3)
		me := s[2]
		spy := spyOn(me)
		crowd := crowded(t, s)
		spy.reset()
		a, g := take(t, me, claimOf("k", "me"), long, true)
		if !g.Waiting || g.Ticket <= crowd[2].Ticket {
			t.Errorf("%+v, want a place behind %d", g, crowd[2].Ticket)
		}
		for _, r := range spy.about(me.dir("k")) {
			if c := r.Compare; len(c) != 1 || c[0].RangeEnd != nil || c[0].GetCreateRevision() != crowd[2].Ticket {
				t.Errorf("it asked %v, want whether the last in line is there", r)
			}
		}
		for i, c := range crowd {
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
		crowd := crowded(t, s)
		for i, c := range crowd {
			mustRelease(t, s[i], c)
		}
		me := s[1]
		plant := func(e contender) {
			me.mu.Lock()
			defer me.mu.Unlock()
			me.keys["k"].mirror.line = newLine([]contender{e})
		}
		gone := contender{Claim: claimOf("k", "gone"), name: me.dir("k") + "gone", rev: crowd[0].Ticket, lease: 1}
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
func TestRepeatedBeforeSomebodyKnown(t *testing.T) {
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

// putOf is an item that puts a name.
func putOf(t *testing.T, name string, patient bool) *item {
	return &item{Item: batch.NewItem(), dir: name, name: prefixOf(t) + name, patient: patient, txn: &pb.TxnRequest{
		Success: ops(put(prefixOf(t)+name, "x", 0)),
	}}
}

// queued waits until n items are in the queue.
func queued(t testing.TB, b *batch.Batcher[*item], n int) {
	t.Helper()
	eventually(t, "it is in the queue", 20*time.Second, func() bool { return b.Waiting() == n })
}

// gather sends items by b, each on a separate goroutine, in this order.
func gather(t testing.TB, b *batch.Batcher[*item], work *sync.WaitGroup, all ...*item) {
	t.Helper()
	for i, it := range all {
		work.Go(func() {
			if err := errors.Join(b.Do(t.Context(), it), it.err); err != nil {
				t.Error(err)
			}
		})
		queued(t, b, i+1)
	}
}

// Positions are in no hurry, and go with the next item: together they are one
// transaction.
func TestPlacesGoWithOthers(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	b := s.newBatcher(time.Hour)
	patient := []*item{putOf(t, "a", true), putOf(t, "b", true)}
	var work sync.WaitGroup
	gather(t, b, &work, patient...)
	urgent := putOf(t, "c", false)
	if err := b.Do(t.Context(), urgent); err != nil {
		t.Error(err)
	}
	work.Wait()
	for _, it := range patient {
		if it.rev != urgent.rev {
			t.Errorf("revision %d, want %d as all of them", it.rev, urgent.rev)
		}
	}
	// When nothing comes they go by themselves, even two that may not go
	// together.
	for range 2 {
		work.Go(func() {
			if err := s.do(t.Context(), putOf(t, "d", true)); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
}

// Each position has its own patience: that of one which has gone with others does not
// send the next one alone.
func TestPatienceIsOfEachPlace(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	b := s.newBatcher(500 * time.Millisecond)
	do := func(name string, patient bool) {
		if err := b.Do(t.Context(), putOf(t, name, patient)); err != nil {
			t.Error(err)
		}
	}
	var work sync.WaitGroup
	gather(t, b, &work, putOf(t, "first", true))
	do("urgent", false)
	work.Wait()
	began := time.Now()
	do("second", true)
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("it went alone after %v", took)
	}
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
func TestConfirmedByWhoIsBefore(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 3)
		spy := spyOn(s[2])
		crowd := crowded(t, s)
		me, before := crowd[2], names(t, s[2], "k").Kvs
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

		mustRelease(t, s[1], crowd[1])
		expect(driver.Waiting) // whether the mirror has heard of it or not

		plant := func() {
			s[2].mu.Lock()
			defer s[2].mu.Unlock()
			m := s[2].keys["k"].mirror
			gone := contender{Claim: claimOf("k", "gone"), name: s[2].dir("k") + "gone", rev: me.Ticket - 1, lease: 1}
			m.line = newLine([]contender{gone, {Claim: me, name: own, rev: me.Ticket, lease: 1}})
		}
		eventually(t, "the mirror has heard of it", 20*time.Second, func() bool {
			s[2].mu.Lock()
			defer s[2].mu.Unlock()
			return len(s[2].keys["k"].mirror.line.queue) == 2
		})
		plant()
		expect(driver.Waiting, own, s[2].dir("k")+"gone", own, "head 1")
		s[2].mu.Lock()
		s[2].keys["k"].mirror.rev = math.MaxInt64 // it hears of nothing
		s[2].mu.Unlock()
		mustRelease(t, s[0], crowd[0])
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
			s[1].keys["k"].claims[c.ID].held = true
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
// other renewal's caller stops believing in it.
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
		s[1].aim(t.Context(), work, bootclock.Coarse(), long, map[*lease]*asking{})
		mustRelease(t, s[0], h)
		if r := renewOne(t, s[1], c, long); r.State != driver.Held {
			t.Fatalf("the other renewal: %+v", r)
		}
		s[1].look(t.Context(), work, long)
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

// A lease that was refreshed a moment ago is not refreshed for the next call,
// unless it ends before what that one is to be promised.
func TestLeaseRefreshedOnce(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	spy := spyOn(s)
	c, _ := take(t, s, claimOf("k", "me"), long, false)
	for left, want := range map[time.Duration]int{time.Hour: 0, long / 2: 1} {
		s.mu.Lock()
		l := s.leases[seconds(long)]
		under := l.asking
		s.mu.Unlock()
		if under != nil {
			<-under.done
		}
		s.mu.Lock()
		l.end = bootclock.Now().Add(left)
		s.mu.Unlock()
		spy.reset()
		r := renewOne(t, s, c, long)
		if r.State != driver.Held || r.Grant.TTL < long-time.Second {
			t.Errorf("with %v left: %+v", left, r)
		}
		spy.mu.Lock()
		if spy.alive != want {
			t.Errorf("with %v left it was refreshed %d times, want %d", left, spy.alive, want)
		}
		spy.mu.Unlock()
	}
}

// Behind another claim of the process a new position goes with the next release: one
// transaction for the two. Behind a claim of another process it goes at once.
func TestPlaceGoesWithARelease(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		me := s[0]
		spy := spyOn(me)
		crowd := crowded(t, []*Store{me, me, me})
		resume := me.batch.Pause()
		spy.reset()
		got := make(chan driver.Grant, 1)
		c := claimOf("k", "me")
		go func() {
			g, err := me.Acquire(t.Context(), driver.Request{Claim: c, TTL: long, Queue: true})
			if err != nil {
				t.Error(err)
			}
			got <- g
		}()
		queued(t, me.batch, 1)
		me.mu.Lock()
		if !me.claimLocked(c).item.patient {
			t.Error("it would not wait for others")
		}
		me.mu.Unlock()
		var work sync.WaitGroup
		work.Go(func() { mustRelease(t, me, crowd[0]) })
		queued(t, me.batch, 2)
		resume()
		work.Wait()
		if g := <-got; !g.Waiting || g.Ticket <= crowd[2].Ticket {
			t.Errorf("%+v, want a place behind %d", g, crowd[2].Ticket)
		}
		if n := len(spy.about(me.dir("k"))); n != 1 {
			t.Errorf("%d transactions, want one", n)
		}
		me.mu.Lock()
		defer me.mu.Unlock()
		k := me.keys["k"]
		k.mirror.line.queue[1].ID = driver.NewID()
		if k.soonLocked() {
			t.Error("it counts on a release of another process")
		}
	})
}
