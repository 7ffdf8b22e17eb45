package etcdstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/testserver"
)

var prefixes sync.Map // by test

// prefixOf is the prefix of a test's keys, different for each run of the test.
func prefixOf(t testing.TB) string {
	p, _ := prefixes.LoadOrStore(t, t.Name()+"-"+rand.Text())
	return p.(string)
}

// openOn makes n stores on one server, each as a separate process has it, below the
// test's prefix.
func openOn(t testing.TB, server *testserver.EtcdServer, n int) []*Store {
	t.Helper()
	var all []*Store
	for range n {
		all = append(all, mustNew(t, dial(t, server.Addr), Config{Prefix: prefixOf(t)}))
	}
	return all
}

func claimOf(key, owner string) driver.Claim {
	return driver.Claim{Key: key, ID: driver.NewID(), Owner: owner, Weight: driver.Whole, Capacity: driver.Whole}
}

// take acquires and returns the claim with its ticket.
func take(t testing.TB, s *Store, c driver.Claim, ttl time.Duration, queue bool) (driver.Claim, driver.Grant) {
	t.Helper()
	g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: ttl, Queue: queue})
	if err != nil {
		t.Fatalf("acquire %s for %s: %v", c.Key, c.Owner, err)
	}
	c.Ticket = g.Ticket
	return c, g
}

// nothingLeft asserts that the keys have no names, and the process no claims.
func nothingLeft(t testing.TB, s *Store, keys ...string) {
	t.Helper()
	for _, key := range keys {
		awaitNames(t, s, key, 0, 20*time.Second)
	}
	eventually(t, "the process has forgotten", 20*time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, key := range keys {
			if k := s.keys[key]; k != nil && len(k.all) > 0 {
				return false
			}
		}
		return true
	})
}

func mustRelease(t testing.TB, s *Store, c driver.Claim) {
	t.Helper()
	if err := s.Release(t.Context(), c); err != nil {
		t.Fatalf("release %s by %s: %v", c.Key, c.Owner, err)
	}
}

func renewOne(t testing.TB, s *Store, c driver.Claim, ttl time.Duration) driver.Renewal {
	t.Helper()
	r := s.Renew(t.Context(), []driver.Claim{c}, ttl)
	if len(r) != 1 {
		t.Fatalf("renewing one claim gave %d answers", len(r))
	}
	return r[0]
}

// names reads all names below a key, as another client would.
func names(t testing.TB, s *Store, key string) *clientv3.GetResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	dir := s.dir(key)
	resp, err := s.client.Get(ctx, dir, clientv3.WithRange(dirEnd(dir)))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// awaitNames polls until there are n names below a key.
func awaitNames(t testing.TB, s *Store, key string, n int, within time.Duration) {
	t.Helper()
	eventually(t, "the names below "+key, within, func() bool { return len(names(t, s, key).Kvs) == n })
}

// hintsOf watches a claim until the test ends.
func hintsOf(t testing.TB, s *Store, c driver.Claim) <-chan driver.Hint {
	t.Helper()
	hints := make(chan driver.Hint, 64)
	t.Cleanup(s.Watch(c, func(h driver.Hint) {
		select {
		case hints <- h:
		default:
		}
	}))
	return hints
}

// awaitHint returns the next hint for which ok is true.
func awaitHint(t testing.TB, what string, hints <-chan driver.Hint, ok func(driver.Hint) bool) driver.Hint {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case h := <-hints:
			if ok(h) {
				return h
			}
		case <-late:
			t.Fatalf("no hint: %s", what)
		}
	}
}

// revoke ends a lease of the store on the server.
func revoke(t testing.TB, s *Store, class int64) {
	t.Helper()
	s.mu.Lock()
	id := s.leases[class].id
	s.mu.Unlock()
	if _, err := s.client.Revoke(t.Context(), clientv3.LeaseID(id)); err != nil {
		t.Fatal(err)
	}
}

// noticed revokes a lease and lets the store hear of it.
func noticed(t testing.TB, s *Store, class int64) {
	t.Helper()
	revoke(t, s, class)
	s.mu.Lock()
	asking := s.refreshLocked(s.leases[class])
	s.mu.Unlock()
	<-asking.done
}

// synced waits until the store's mirror of key knows the queue.
func synced(t testing.TB, s *Store, key string) {
	t.Helper()
	eventually(t, "a mirror", 20*time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		k := s.keys[key]
		return k != nil && k.mirror != nil && k.mirror.synced
	})
}

// A trial is a test that may be repeated.
type trial struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

// steady runs f, and again if it failed after more than a second: a position lives for
// one and a half seconds, and a busy machine may stall for longer. Each run has its own
// keys.
func steady(t *testing.T, f func(t testing.TB)) {
	t.Helper()
	for n := 1; ; n++ {
		r := &trial{TB: t}
		begun := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				for _, f := range slices.Backward(r.cleanups) {
					f()
				}
			}()
			f(r)
		}()
		<-done
		took := time.Since(begun)
		if len(r.failures) == 0 {
			return
		}
		if took < time.Second || n == 6 {
			t.Fatal(strings.Join(r.failures, "\n"))
		}
		t.Logf("again, as it took %v: %q", took, r.failures)
	}
}

func (r *trial) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *trial) Failed() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.failures) > 0 }

func (r *trial) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *trial) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }

func (r *trial) Error(args ...any) { r.Errorf("%s", fmt.Sprintln(args...)) }

func (r *trial) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprintln(args...)) }

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
func fillQueue(t testing.TB, stores []*Store) (all []driver.Claim) {
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

// putOf is an item that puts a name.
func putOf(t *testing.T, name string) *item {
	return &item{Item: batch.NewItem(), dir: name, name: prefixOf(t) + name, txn: &pb.TxnRequest{
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

// Claims that go from process to process, and come back.

// swept waits until the store has removed what it was about to remove.
func swept(t testing.TB, s *Store) {
	t.Helper()
	eventually(t, "nothing is left to remove", 20*time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.cleaner.later) == 0 && !s.findingLeftovers
	})
}

// takenOver makes n readers that s[0] has named and s[1] has taken over, and of which s[0]
// knows nothing any more.
func takenOver(t testing.TB, s []*Store, key string, n int) (all []driver.Request) {
	t.Helper()
	for i := range n {
		r := driver.Request{Claim: claimOf(key, fmt.Sprint("reader ", i)), TTL: long}
		r.Weight = 1
		if n == 1 {
			r.Weight = driver.Whole
		}
		for _, s := range s[:2] {
			g, err := s.Acquire(t.Context(), r)
			if err != nil || g.Waiting {
				t.Fatalf("acquire: %+v, %v", g, err)
			}
			r.Ticket, r.Retry = g.Ticket, true
		}
		all = append(all, r)
	}
	noticed(t, s[0], seconds(long))
	s[0].mu.Lock()
	defer s[0].mu.Unlock()
	if s[0].keys[key] != nil {
		t.Fatal("the first process still knows of the lock")
	}
	return all
}
