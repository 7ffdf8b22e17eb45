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
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

const long = 50 * time.Second

// Trap 1 and 4: a lease that is revoked takes everything of its process with
// it, and both its holder and its waiter hear of it at once.
func TestRevokedLeaseIsNoticed(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		h, _ := take(t, s[0], claimOf("k", "holder"), long, false)
		a := claimOf("k", "waiter")
		waiter := hintsOf(t, s[1], a)
		a, _ = take(t, s[1], a, long, true)
		synced(t, s[1], "k")
		b, _ := take(t, s[1], claimOf("other", "waiter's"), waiterSeconds*time.Second, false)

		revoke(t, s[1], waiterSeconds)
		awaitHint(t, "the waiter's name is gone", waiter, func(h driver.Hint) bool { return !h.Granted })
		mustRelease(t, s[0], h)
		for what, c := range map[string]driver.Claim{"waiter": a, "holder": b} {
			if r := renewOne(t, s[1], c, long); r.State != driver.Lost {
				t.Errorf("%s on a revoked lease: %v, want lost", what, r.State)
			}
		}
		// A new lease is granted by itself.
		c, g := take(t, s[1], claimOf("k", "next"), waiterSeconds*time.Second, true)
		if g.Waiting || g.Token <= h.Ticket {
			t.Errorf("after the revocation: %+v", g)
		}
		mustRelease(t, s[1], c)
	})
}

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

// Trap 4: the holder hears at once that its name was deleted, though it only
// renews much later.
func TestHolderHearsOfDeletion(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	c := claimOf("k", "me")
	hints := hintsOf(t, s, c)
	c, _ = take(t, s, c, long, true)
	synced(t, s, "k") // by itself, since it is held for a while
	if _, err := s.client.Delete(t.Context(), s.dir("k"), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	awaitHint(t, "deleted", hints, func(h driver.Hint) bool { return !h.Granted })
	if r := renewOne(t, s, c, long); r.State != driver.Lost {
		t.Errorf("%v, want lost", r.State)
	}
}

// Trap 7: a compaction ends watches that lag behind. The waiter is still granted the
// lock, and by a hint.
func TestCompactionUnderAWaiter(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	proxy := faultproxy.New(t, server.Addr)
	holder := openOn(t, server, 1)[0]
	waiter := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
	h, _ := take(t, holder, claimOf("k", "holder"), long, false)
	a := claimOf("k", "waiter")
	hints := hintsOf(t, waiter, a)
	a, _ = take(t, waiter, a, long, true)
	synced(t, waiter, "k")

	// The connection is lost, and what happened since is compacted before it
	// is back.
	proxy.Refuse()
	proxy.Cut()
	for range 5 {
		c, _ := take(t, holder, claimOf("k/other", "holder"), long, false)
		mustRelease(t, holder, c)
	}
	head, err := holder.client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.client.Compact(t.Context(), head.Header.Revision); err != nil {
		t.Fatal(err)
	}
	proxy.Accept()
	eventually(t, "the waiter is confirmed", 20*time.Second, func() bool {
		return renewOne(t, waiter, a, long).State != driver.Unknown
	})
	if r := renewOne(t, waiter, a, long); r.State == driver.Lost {
		t.Log("not concluded: it was away for longer than a place lives")
		return
	}
	synced(t, waiter, "k")
	mustRelease(t, holder, h)
	for {
		select {
		case g := <-hints:
			if g.Granted && g.Grant.Token == a.Ticket {
				return
			}
		case <-time.After(driver.RefreshEvery):
			if r := renewOne(t, waiter, a, long); r.State != driver.Waiting {
				if r.State != driver.Held {
					t.Errorf("%v, want held", r.State)
				}
				return // the poll was first
			}
		}
	}
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
		t.Fatal("a release that nobody answered succeeded")
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

// Trap 10: a server whose quota is used up grants nothing, but renewing and
// releasing go on.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t, "--quota-backend-bytes=4194304")
	s := openOn(t, server, 1)[0]
	c, _ := take(t, s, claimOf("k", "me"), long, false)
	fill(t, s)
	_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("other", "me"), TTL: long})
	if !errors.Is(err, driver.ErrUnknown) || !strings.Contains(err.Error(), "space") {
		t.Errorf("acquire: %v, want ErrUnknown about space", err)
	}
	if r := renewOne(t, s, c, long); r.State != driver.Held {
		t.Errorf("renew: %v (%v), want held", r.State, r.Err)
	}
	mustRelease(t, s, c)
}

// fill writes until the server has no space.
func fill(t *testing.T, s *Store) {
	t.Helper()
	text := strings.Repeat("x", 500_000)
	for i := range 100 {
		if _, err := s.client.Put(t.Context(), fmt.Sprint("fill", i), text); err != nil {
			return
		}
	}
	t.Fatal("the quota was not reached")
}

// Requests that gather are one transaction, but never two for one key: they would have
// the same position.
func TestMergedRequests(t *testing.T) {
	t.Parallel()
	steady(t, mergedRequests)
}

func mergedRequests(t testing.TB) {
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	warm, _ := take(t, s, claimOf("warm", "me"), long, false)
	mustRelease(t, s, warm)
	const keys, each = 100, 3
	var mu sync.Mutex
	revs := map[int64]int{} // names by create revision
	tickets := map[string]map[int64]bool{}
	var all []driver.Claim
	var work sync.WaitGroup
	for i := range keys * each {
		work.Go(func() {
			key := fmt.Sprint("k", i%keys)
			c, g := take(t, s, claimOf(key, "me"), long, true)
			mu.Lock()
			defer mu.Unlock()
			revs[g.Ticket]++
			if tickets[key] == nil {
				tickets[key] = map[int64]bool{}
			}
			tickets[key][g.Ticket] = true
			all = append(all, c)
		})
	}
	work.Wait()
	for key, t1 := range tickets {
		if len(t1) != each {
			t.Errorf("%s: %d claims have %d different places", key, each, len(t1))
		}
	}
	if len(revs) > keys*each/2 {
		t.Errorf("%d claims took %d transactions", keys*each, len(revs))
	}
	for _, c := range all {
		work.Go(func() { mustRelease(t, s, c) })
	}
	work.Wait()
	for i := range keys {
		if n := len(names(t, s, fmt.Sprint("k", i)).Kvs); n != 0 {
			t.Errorf("k%d: %d names are left", i, n)
		}
	}
}

// One request that cannot be done does not fail those that went with it.
func TestMergedWithABadOne(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	var items []*item
	for i := range 10 {
		it := &item{Item: batch.NewItem(), dir: fmt.Sprint("d", i), name: prefixOf(t) + fmt.Sprint(i), txn: &pb.TxnRequest{
			Success: ops(put(prefixOf(t)+fmt.Sprint(i), "x", 0)),
		}}
		if i == 5 {
			it.txn.Success[0].GetRequestPut().Lease = 4711 // there is none
		}
		items = append(items, it)
	}
	s.sendItems(t.Context(), items)
	for i, it := range items {
		if bad := i == 5; bad != (it.err != nil) || bad && !leaseGone(it.err) {
			t.Errorf("number %d: %v", i, it.err)
		}
	}
}

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

// A key below another is another lock, and has another queue.
func TestKeysBelowKeys(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		below, _ := take(t, s[0], claimOf("a/b", "one"), long, true)
		a, g := take(t, s[1], claimOf("a", "two"), long, true)
		if g.Waiting {
			t.Error("a waits for a/b")
		}
		b, g := take(t, s[0], claimOf("a", "one"), long, true)
		if !g.Waiting {
			t.Error("a is held twice")
		}
		mustRelease(t, s[1], a)
		if r := renewOne(t, s[0], b, long); r.State != driver.Held {
			t.Errorf("the next for a: %v", r.State)
		}
		mustRelease(t, s[0], b)
		mustRelease(t, s[0], below)
	})
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

// A waiter of a process that died is gone with the short lease, whatever TTL
// it wants to hold for.
func TestWaitersAreOnTheShortLease(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		h, _ := take(t, s[0], claimOf("k", "holder"), long, false)
		w, _ := take(t, s[1], claimOf("k", "waiter"), long, true)
		grantedTTL := func(rev int64) int64 {
			for _, kv := range names(t, s[0], "k").Kvs {
				if kv.CreateRevision == rev {
					resp, err := s[0].client.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease))
					if err != nil {
						t.Fatal(err)
					}
					return resp.GrantedTTL
				}
			}
			t.Fatal("no name with that revision")
			return 0
		}
		if d := grantedTTL(w.Ticket); d != waiterSeconds {
			t.Errorf("the waiter is on a lease of %d s", d)
		}
		mustRelease(t, s[0], h)
		if r := renewOne(t, s[1], w, long); r.State != driver.Held || r.Grant.TTL < long-time.Second {
			t.Fatalf("granted: %+v", r)
		}
		if d := grantedTTL(w.Ticket); d != int64(long/time.Second) {
			t.Errorf("the holder is on a lease of %d s", d)
		}
	})
}
