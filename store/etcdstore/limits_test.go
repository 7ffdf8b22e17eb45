package etcdstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/testserver"
)

func limitHarness(addrs ...string) drivertest.LimitHarness {
	return drivertest.LimitHarness{
		Open: func(t drivertest.T, n int) []limits.Store {
			prefix := rand.Text()
			all := make([]limits.Store, n)
			for i := range all {
				all[i] = mustNew(t, dial(t, addrs...), Config{Prefix: prefix})
			}
			return all
		},
		Kept: func(t drivertest.T, l limits.Store) int { return int(countKept(t, l.(*Store))) },
	}
}

// kept counts what is on the server for limits.
func countKept(t drivertest.T, s *Store) (n int64) {
	t.Helper()
	return countBelow(t, s, stateDir) + countBelow(t, s, memoryDir)
}

// countBelow counts the names in one of the store's folders.
func countBelow(t drivertest.T, s *Store, folder string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	dir := s.prefix + folder
	resp, err := s.client.Get(ctx, dir, clientv3.WithRange(dirEnd(dir)), clientv3.WithCountOnly())
	if err != nil {
		t.Fatalf("count: %v", err)
	}
	return resp.Count
}

func TestLimitsSingle(t *testing.T) {
	testserver.NeedEtcd(t)
	t.Parallel()
	drivertest.Limits(t, limitHarness(testserver.SharedEtcd(t).Addr))
}

func TestLimitsThree(t *testing.T) {
	testserver.Long(t)
	testserver.NeedEtcd(t)
	t.Parallel()
	h := limitHarness(testserver.SharedEtcdThree(t).Addrs()...)
	h.Steps = 50
	drivertest.Limits(t, h)
}

var (
	five  = limits.Limit{Algorithm: limits.FixedWindow, N: 5, Period: 100_000 * time.Hour}
	fifty = limits.Limit{Algorithm: limits.SlidingWindow, N: 50, Period: 1000 * time.Hour, Parts: 10}
)

func asks(key string, l limits.Limit, cost int64) limits.Request {
	return limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}}
}

func withID(r limits.Request) limits.Request {
	r.ID, r.Keep = driver.NewID(), time.Hour
	return r
}

func mustTake(t testing.TB, s *Store, r limits.Request) limits.Taken {
	t.Helper()
	d, err := s.Take(t.Context(), r)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	return d
}

// tapped is the server as a test wants it: before is called with each transaction,
// numbered from 1, and may answer it.
type tapped struct {
	pb.KVClient
	mu     sync.Mutex
	n      int
	before func(n int, r *pb.TxnRequest) error
}

func (k *tapped) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	k.mu.Lock()
	k.n++
	n := k.n
	k.mu.Unlock()
	if k.before != nil {
		if err := k.before(n, r); err != nil {
			return nil, err
		}
	}
	return k.KVClient.Txn(ctx, r, opts...)
}

func (k *tapped) count() int { k.mu.Lock(); defer k.mu.Unlock(); return k.n }

// lose loses the answer to the next transaction, after it has happened or instead of
// it.
func (k *tapped) lose(t *testing.T, happened bool) {
	next := k.count() + 1
	k.before = func(n int, r *pb.TxnRequest) error {
		if n != next {
			return nil
		}
		if happened {
			if _, err := k.KVClient.Txn(t.Context(), r); err != nil {
				t.Error(err)
			}
		}
		return io.EOF
	}
}

func tap(s *Store) *tapped {
	k := &tapped{KVClient: s.kv}
	s.kv = k
	return k
}

// Callers of two processes together get what there is, and those of one process share
// transactions instead of competing for the key.
func TestLimitManyCallsAtOnce(t *testing.T) {
	t.Parallel()
	all := openOn(t, testserver.SharedEtcd(t), 2)
	taps := []*tapped{tap(all[0]), tap(all[1])}
	const callers, each = 64, 10
	var ok atomic.Int64
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			for range each {
				d, err := all[i%2].Take(t.Context(), asks("k", fifty, 1))
				if err != nil {
					t.Error(err)
				}
				if d.OK {
					ok.Add(1)
				}
			}
		})
	}
	work.Wait()
	if n := ok.Load(); n != 50 {
		t.Errorf("%d of 50 were allowed", n)
	}
	if n := taps[0].count() + taps[1].count(); n > callers*each/2 {
		t.Errorf("%d decisions of two processes took %d transactions", callers*each, n)
	}
}

// What a decision costs: one round trip, two if another process was faster meanwhile,
// and none more for calls that come while it is under way.
func TestLimitRoundTrips(t *testing.T) {
	t.Parallel()
	all := openOn(t, testserver.SharedEtcd(t), 2)
	k := tap(all[0])
	cost := func(what string, want int, f func()) {
		t.Helper()
		before := k.count()
		if f(); k.count()-before != want {
			t.Errorf("%s: %d transactions, want %d", what, k.count()-before, want)
		}
	}
	cost("fresh", 1, func() { mustTake(t, all[0], asks("k", fifty, 1)) })
	cost("again", 1, func() { mustTake(t, all[0], asks("k", fifty, 1)) })
	cost("with an ID", 1, func() { mustTake(t, all[0], withID(asks("k", fifty, 1))) })
	cost("refused", 1, func() { mustTake(t, all[0], asks("k", fifty, 51)) })
	cost("two keys", 1, func() {
		r := asks("k", fifty, 1)
		r.Takes = append(r.Takes, limits.Take{Key: "l", Limit: five, Cost: 1})
		mustTake(t, all[0], r)
	})
	mustTake(t, all[1], asks("k", fifty, 1))
	cost("after another", 2, func() {
		if d := mustTake(t, all[0], asks("k", fifty, 1)); d.Limits[0].Remaining != 44 {
			t.Errorf("%+v", d)
		}
	})

	held, release := make(chan struct{}), make(chan struct{})
	k.before = func(int, *pb.TxnRequest) error {
		k.before = nil
		close(held)
		<-release
		return nil
	}
	cost("many calls", 2, func() {
		var work sync.WaitGroup
		work.Go(func() { mustTake(t, all[0], asks("k", fifty, 1)) })
		<-held
		for range 20 {
			work.Go(func() { mustTake(t, all[0], asks("k", fifty, 1)) })
		}
		eventually(t, "they wait", 20*time.Second, func() bool { return waitingCalls(all[0], "k") == 20 })
		close(release)
		work.Wait()
	})
	if d := mustTake(t, all[1], asks("k", fifty, 0)); d.Limits[0].Remaining != 23 {
		t.Errorf("%+v", d)
	}
}

// lined is how many calls wait for a key.
func waitingCalls(s *Store, key string) int {
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	if k := s.limits.keys[key]; k != nil {
		return len(k.queue)
	}
	return 0
}

// A refusal is not remembered from memory alone: what another process gave back is
// available at once.
func TestLimitOthersGiveBack(t *testing.T) {
	t.Parallel()
	all := openOn(t, testserver.SharedEtcd(t), 2)
	first := mustTake(t, all[0], asks("k", five, 5))
	if d := mustTake(t, all[0], asks("k", five, 1)); d.OK {
		t.Fatalf("%+v", d)
	}
	back := asks("k", five, 5)
	back.Mode, back.At = limits.GiveBack, first.At
	mustTake(t, all[1], back)
	if d := mustTake(t, all[0], asks("k", five, 1)); !d.OK {
		t.Errorf("%+v", d)
	}
}

// Clients whose clocks are apart. Hours take the part of seconds, so that the time
// that the test takes does not matter.
func TestLimitClocks(t *testing.T) {
	t.Parallel()
	const s = time.Hour
	origin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limits := map[string]limits.Limit{
		"bucket": {Algorithm: limits.TokenBucket, N: 1, Period: s, Burst: 4},
		"log":    {Algorithm: limits.SlidingLog, N: 4, Period: 4 * s},
		"window": {Algorithm: limits.SlidingWindow, N: 4, Period: 4 * s, Parts: 4},
		"fixed":  {Algorithm: limits.FixedWindow, N: 4, Period: 4 * s},
	}
	for name, l := range limits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := openOn(t, testserver.SharedEtcd(t), 3)
			clocks := []time.Duration{0, 10 * s, -10 * s}
			for i, c := range all {
				c.limits.wall = func() int64 { return origin.Add(clocks[i]).UnixMicro() }
			}
			taken := func(key string, first, n int) (ok int) {
				for i := range n {
					if mustTake(t, all[(first+i)%2], asks(key, l, 1)).OK {
						ok++
					}
				}
				return ok
			}
			// The caller that is ahead comes first: its time becomes the limit's.
			if n := taken("a", 1, 12); n != 4 {
				t.Errorf("%d of 4 were allowed", n)
			}
			// The caller that is behind comes first: what it took has come back by the
			// time of the other, once.
			if d := mustTake(t, all[0], asks("b", l, 4)); !d.OK {
				t.Errorf("%+v", d)
			}
			if n := taken("b", 0, 12); n != 4 {
				t.Errorf("%d of 4 were allowed by the later clock", n)
			}
			for range 3 {
				if n := taken("b", 0, 12); n != 0 {
					t.Errorf("%d more were allowed", n)
				}
			}
			// A clock that goes back gives nothing either, and does not stop
			// still: it catches up at half the speed.
			if d := mustTake(t, all[2], asks("b", l, 1)); d.OK || d.At < origin.Add(10*s).UnixMicro() {
				t.Errorf("ten seconds behind: %+v", d)
			}
			elapse(t, all[2], "b", 10*s)
			if d := mustTake(t, all[2], asks("b", l, 4)); !d.OK || d.At < origin.Add(15*s).UnixMicro() || d.At > origin.Add(16*s).UnixMicro() {
				t.Errorf("ten seconds later: %+v", d)
			}
		})
	}
}

// elapse makes time pass for a process since it last heard of a limit. It first waits
// until all calls about the key are answered.
func elapse(t testing.TB, s *Store, key string, d time.Duration) {
	t.Helper()
	l := s.limits
	eventually(t, "no call is under way", 20*time.Second, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.keys[key] == nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	p := *l.cache.get(s.stateName(key))
	p.seen, p.end = p.seen.Add(-d), time.Time{}
	l.cache.set(s.stateName(key), &p)
}

// A clock that is set back within one process is as one that is behind.
func TestLimitClockSetBack(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s.limits.wall = func() int64 { return now.UnixMicro() }
	l := limits.Limit{Algorithm: limits.TokenBucket, N: 4, Period: time.Minute, Burst: 4}
	first := mustTake(t, s, asks("k", l, 4))
	for _, back := range []time.Duration{5 * time.Second, 5 * time.Minute, 24 * time.Hour} {
		now = now.Add(-back)
		if d := mustTake(t, s, asks("k", l, 4)); d.OK || d.At < first.At || d.Retry > time.Minute {
			t.Errorf("%v back: %+v", back, d)
		}
	}
}

// Leases are few, last longer than what is on them has to, and may end early.
func TestLimitLeases(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	bucket := limits.Limit{Algorithm: limits.TokenBucket, N: 1, Period: time.Minute, Burst: 10}
	for i := range 30 {
		mustTake(t, s, withID(asks(fmt.Sprint("k", i), bucket, 5)))
	}
	leases := map[int64]bool{}
	list := func(dir string, want time.Duration) {
		t.Helper()
		dir = s.prefix + dir
		resp, err := s.client.Get(t.Context(), dir, clientv3.WithRange(dirEnd(dir)))
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Kvs) != 30 {
			t.Errorf("%d below %q", len(resp.Kvs), dir)
		}
		for _, kv := range resp.Kvs {
			leases[kv.Lease] = true
			left, err := s.client.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease))
			if err != nil {
				t.Fatal(err)
			}
			if ttl := time.Duration(left.GrantedTTL) * time.Second; ttl < want || ttl > 4*want {
				t.Errorf("%q is kept for %v, has to be for %v", kv.Key, ttl, want)
			}
		}
	}
	list(stateDir, 5*time.Minute)
	list(memoryDir, time.Hour)
	if len(leases) != 2 {
		t.Errorf("%d leases", len(leases))
	}
	for id := range leases {
		if _, err := s.client.Revoke(t.Context(), clientv3.LeaseID(id)); err != nil {
			t.Fatal(err)
		}
	}
	if n := countKept(t, s); n != 0 {
		t.Errorf("%d are kept", n)
	}
	if d := mustTake(t, s, asks("k0", bucket, 1)); !d.OK || d.Limits[0].Remaining != 9 {
		t.Errorf("%+v", d)
	}
}

// A lease that is too short for what comes is replaced.
func TestLimitLeaseSeconds(t *testing.T) {
	t.Parallel()
	for keep, want := range map[time.Duration]int64{
		0: 8, time.Microsecond: 8, 4 * time.Second: 8, 4*time.Second + 1: 16, time.Minute: 128, 24 * time.Hour: 1 << 18,
		1 << 62: maxLease,
	} {
		if got := leaseSeconds(keep); got != want {
			t.Errorf("%v: %d s, want %d", keep, got, want)
		}
	}
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	p := &page{keep: 4 * time.Second}
	on := func(boot time.Time) int64 {
		t.Helper()
		if err := s.leasePage(p, boot); err != nil {
			t.Fatal(err)
		}
		return p.lease
	}
	first := on(bootclock.Now())
	end := p.end
	if second := on(end.Add(-4 * time.Second)); second != first {
		t.Error("it would have lasted")
	}
	if third := on(end.Add(-4*time.Second + 1)); third == first {
		t.Error("it ends too early")
	}
}

// What the process remembers of keys has a bound.
func TestLimitKnowledge(t *testing.T) {
	t.Parallel()
	var k pageCache
	for i := range 1000 {
		k.set(fmt.Sprint(i), &page{rev: 1, numbers: make(rate.State, 10_000)})
		if k.get(fmt.Sprint(i)) == nil {
			t.Fatal("the newest is not known")
		}
	}
	if k.size > maxCached || len(k.pages) > maxCached/10_000 || len(k.pages) < 50 {
		t.Errorf("%d pages, %d numbers", len(k.pages), k.size)
	}
	for name := range k.pages {
		k.set(name, nil)
	}
	if k.size != 0 {
		t.Errorf("%d numbers of nothing", k.size)
	}
	for i := range 100_000 { // keys that are not asked for again, whose leases have ended
		k.set(fmt.Sprint(i), &page{rev: 1, numbers: make(rate.State, 3), end: bootclock.Now().Add(-time.Second)})
	}
	if len(k.pages) > 100 {
		t.Errorf("%d pages of the past are kept", len(k.pages))
	}
}

// Text that another program wrote there is no state, and is replaced.
func TestLimitGarbage(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	for i, text := range []string{"", "x", "1 2 x", "{}", "9223372036854775807 3 9 9 9 9 9", "-5 1 5 99", "1 1 5", "1 1", "7"} {
		key := fmt.Sprint("k", i)
		if _, err := s.client.Put(t.Context(), s.stateName(key), text); err != nil {
			t.Fatal(err)
		}
		for want := int64(4); want >= 3; want-- {
			if d := mustTake(t, s, asks(key, five, 1)); !d.OK || d.Limits[0].Remaining != want {
				t.Errorf("%q: %+v", text, d)
			}
		}
	}
}

// The limits below a prefix are in no queue of the locks of another store, whose prefix
// is shorter.
func TestLimitsAreInNoQueue(t *testing.T) {
	t.Parallel()
	server := testserver.SharedEtcd(t)
	s := openOn(t, server, 1)[0]
	outer := mustNew(t, dial(t, server.Addr))
	r := withID(asks("k", five, 1))
	mustTake(t, s, r)
	key := prefixOf(t)
	c, g := take(t, outer, claimOf(key, "me"), long, false)
	if g.Waiting {
		t.Error("a limit holds the lock")
	}
	for info, err := range outer.List(t.Context(), key) {
		if err != nil || info.Key != key {
			t.Errorf("%+v, %v", info, err)
		}
	}
	mustRelease(t, outer, c)
}
