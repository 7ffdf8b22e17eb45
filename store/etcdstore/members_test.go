package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// hanging is a member that takes requests and carries them out when their callers no
// longer wait.
type hanging struct {
	pb.KVClient
	late  sync.WaitGroup
	until chan struct{} // nil: at once then
	works atomic.Bool   // it hangs no more, or not yet
}

func (h *hanging) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	if h.works.Load() {
		return h.KVClient.Txn(ctx, r, opts...)
	}
	<-ctx.Done()
	h.late.Go(func() {
		if h.until != nil {
			<-h.until
		}
		_, _ = h.KVClient.Txn(context.WithoutCancel(ctx), r, opts...)
	})
	return nil, ctx.Err()
}

// A renewal that goes to a member that hangs is sent to another one, too, also if it
// moves the name to another lease, and that is done once more when the member goes on.
func TestRenewalIsHedged(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		h := &hanging{KVClient: s[1].kv}
		h.works.Store(true)
		s[1].kv = h // before the store asks: the cleaner reads it at any time
		holder, _ := take(t, s[0], claimOf("k", "holder"), long, false)
		waiter, _ := take(t, s[1], claimOf("k", "waiter"), long, true)
		ask := func(want driver.State) {
			t.Helper()
			h.works.Store(false)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			r := s[1].Renew(ctx, []driver.Claim{waiter}, 4*driver.WaiterTTL)[0]
			h.works.Store(true)
			if r.State != want {
				t.Errorf("%+v, want %v", r, want)
			}
			h.late.Wait()
		}
		ask(driver.Waiting)
		mustRelease(t, s[0], holder)
		ask(driver.Held)
		if r := renewOne(t, s[1], waiter, 4*driver.WaiterTTL); r.State != driver.Held || r.Grant.Token != waiter.Ticket {
			t.Errorf("afterwards: %+v", r)
		}
		mustRelease(t, s[1], waiter)
		awaitNames(t, s[1], "k", 0, 5*time.Second)
	})
}

// An acquire and a release that go to a member that hangs are sent to another one, too.
// When the member goes on it does all its requests once more, and nothing of that
// stays.
func TestAcquireAndReleaseAreHedged(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	for _, how := range []string{"alone", "in line", "beside"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			steady(t, func(t testing.TB) { hedges(t, how) })
		})
	}
}

func hedges(t testing.TB, how string) {
	const ttl = 6 * time.Second
	s := openOn(t, testserver.SharedEtcd(t), 2)
	r := driver.Request{Claim: claimOf("k", "me"), TTL: ttl}
	var before driver.Claim
	switch how {
	case "in line":
		before, _ = take(t, s[0], claimOf("k", "other"), long, false)
		r.Queue = true
	case "beside":
		c := claimOf("k", "other")
		c.Weight, r.Weight = 1, 1
		before, _ = take(t, s[0], c, long, false)
	}
	hung := &hanging{KVClient: s[1].kv, until: make(chan struct{})}
	s[1].kv = hung
	// The contexts end before a request would be given up.
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), requestTime-time.Second/2)
		t.Cleanup(cancel)
		return ctx
	}
	g, err := s[1].Acquire(soon(), r)
	if err != nil || g.Waiting != r.Queue {
		t.Fatalf("acquire: %+v, %v", g, err)
	}
	c := r.Claim
	c.Ticket = g.Ticket
	if err := s[1].Release(soon(), c); err != nil {
		t.Errorf("release: %v", err)
	}
	if before.Key != "" {
		mustRelease(t, s[0], before)
	}
	close(hung.until)
	nothingLeft(t, s[1], "k")
	awaitNames(t, s[1], "k", 0, 5*time.Second) // nor has it come again since
}

// Where every answer takes long, other members are asked only until the store knows
// that.
func TestFarMembersAreAskedOnce(t *testing.T) {
	t.Parallel()
	server := testserver.SharedEtcd(t)
	steady(t, func(t testing.TB) {
		const ttl = 12 * time.Second
		proxy := faultproxy.New(t, server.Addr)
		s := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
		proxy.Delay(faultproxy.ToClient, hedgeAfter(ttl)*3/2)
		pair := func(key string) uint32 {
			made := s.dialed.Load()
			c, _ := take(t, s, claimOf(key, "me"), ttl, false)
			mustRelease(t, s, c)
			return s.dialed.Load() - made
		}
		if n := pair("k1"); n == 0 {
			t.Error("not concluded: no other member was asked")
		}
		if n := pair("k2"); n != 0 {
			t.Errorf("%d others were asked although answers come", n)
		}
	})
}

// A decision about limits could not tell its own effect from that of others, so no
// second member is asked, however long the first one takes.
func TestLimitsAreAskedForOnce(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	k := tap(s)
	k.before = func(int, *pb.TxnRequest) error {
		<-time.After(hedgeWithoutTTL * 3 / 2)
		return nil
	}
	if d, err := s.Take(t.Context(), asks("k", fifty, 1)); err != nil || !d.OK {
		t.Errorf("%+v, %v", d, err)
	}
	if n := s.dialed.Load(); n != 0 {
		t.Errorf("%d others were asked", n)
	}
	var work sync.WaitGroup
	limit, lock, another := putOf(t, "limit"), putOf(t, "lock"), putOf(t, "another limit")
	limit.once, another.once = true, true
	resume := s.batch.Pause()
	gather(t, s.batch, &work, limit, lock, another)
	resume()
	work.Wait()
	if limit.rev != another.rev || limit.rev == lock.rev {
		t.Errorf("revisions %d and %d of the limits, want one, and %d of the lock, want another", limit.rev, another.rev, lock.rev)
	}
}

// One of three members hangs. Every lock is still acquired and released, and the caller
// knows it.
func TestAcquireBesideAMemberThatHangs(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		cluster := testserver.EtcdThree(t)
		leader := cluster.Leader(t)
		s := mustNew(t, dial(t, cluster.Addrs()...), Config{Prefix: prefixOf(t)})
		pair := func(n int) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), requestTime-time.Second/2)
			defer cancel()
			c := claimOf(fmt.Sprint("k", n), "me")
			g, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: 6 * time.Second})
			if err != nil {
				t.Fatalf("acquire %d: %v", n, err)
			}
			c.Ticket = g.Ticket
			ctx, cancel = context.WithTimeout(t.Context(), requestTime-time.Second/2)
			defer cancel()
			err = s.Release(ctx, c)
			if errors.Is(err, driver.ErrUnknown) { // as a Locker does
				if err = s.Release(ctx, c); errors.Is(err, driver.ErrLost) {
					err = nil
				}
			}
			if err != nil {
				t.Fatalf("release %d: %v", n, err)
			}
		}
		for n := range 6 {
			pair(n) // the client connects to all
		}
		for _, m := range cluster.Members {
			if m != leader {
				m.Stop()
				t.Cleanup(m.Cont)
				break
			}
		}
		for n := range 12 {
			pair(n)
		}
		if s.dialed.Load() == 0 {
			t.Error("not concluded: no other member was asked")
		}
	})
}

// Trap 7: a member that has lost its leader ends watches, instead of leaving
// them silent, and what it is asked fails. Later the mirror is there again.
func TestMemberWithoutLeader(t *testing.T) {
	t.Parallel()
	cluster := testserver.EtcdThree(t)
	s := mustNew(t, dial(t, cluster.Members[2].Addr), Config{Prefix: prefixOf(t)})
	c := claimOf("k", "me")
	hintsOf(t, s, c)
	c, _ = take(t, s, c, long, false)
	synced(t, s, "k")
	s.mu.Lock()
	m := s.keys["k"].mirror
	s.mu.Unlock()
	cluster.Members[0].Kill()
	cluster.Members[1].Kill()
	eventually(t, "the mirror knows that it does not know", 30*time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !m.synced
	})
	if r := renewOne(t, s, c, long); r.State != driver.Unknown || !errors.Is(r.Err, driver.ErrUnavailable) {
		t.Errorf("without a leader: %v (%v), want unknown and ErrUnavailable", r.State, r.Err)
	}
	testserver.RestartEtcd(t, cluster.Members[:2]...)
	synced(t, s, "k")
	mustRelease(t, s, c)
}

// lasting is longer than anything that a test does to a server.
const lasting = 5 * time.Minute

// keepRenewing renews claims for as long as the test runs.
func keepRenewing(t *testing.T, s *Store, claims ...driver.Claim) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(driver.RefreshEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.Renew(ctx, claims, lasting)
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// insist repeats an acquire or release until there is an answer.
func insist(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	eventually(t, what, time.Minute, func() bool {
		err = f()
		return !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown)
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// A server comes back with an older state. A lock that was held then and is held now
// stays, one that was acquired since is lost and its owner hears of it, one that was
// released since is free for others, and queues are watched as they are now.
func TestServerSetBack(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	all := openOn(t, server, 2)
	s, other := all[0], all[1]
	stays, held := take(t, s, claimOf("stays", "me"), lasting, false)
	back, _ := take(t, s, claimOf("back", "me"), lasting, false)
	restore := server.Backup()

	insist(t, "a release", func() error { return s.Release(t.Context(), back) })
	since := claimOf("since", "me")
	hints := hintsOf(t, s, since)
	since, _ = take(t, s, since, lasting, false)
	synced(t, s, "since") // the mirror opens when a lock is held for a while
	for i := range 50 {   // revisions that are not reached again soon
		c, _ := take(t, other, claimOf(fmt.Sprint("k", i), "other"), lasting, false)
		mustRelease(t, other, c)
	}
	s.mu.Lock()
	seen := s.keys["since"].mirror.rev
	s.mu.Unlock()
	keepRenewing(t, s, stays, since)
	restore()

	awaitHint(t, "the end of what was acquired since", hints, func(h driver.Hint) bool { return !h.Granted })
	eventually(t, "it is lost", time.Minute, func() bool {
		r := renewOne(t, s, since, lasting)
		if r.State == driver.Held {
			t.Fatal("it is confirmed")
		}
		return r.State == driver.Lost
	})
	eventually(t, "what is held goes on", time.Minute, func() bool {
		r := renewOne(t, s, stays, lasting)
		if r.State == driver.Lost || r.State == driver.Held && r.Grant.Token != held.Token {
			t.Fatalf("%+v, want it held by %d", r, held.Token)
		}
		return r.State == driver.Held
	})
	eventually(t, "what was released is free", time.Minute, func() bool {
		_, err := other.Acquire(t.Context(), driver.Request{Claim: claimOf("back", "other"), TTL: lasting})
		return err == nil
	})
	eventually(t, "the queue is watched again", time.Minute, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		k := s.keys["since"]
		return k == nil || k.mirror == nil || k.mirror.synced && k.mirror.rev != seen
	})
	insist(t, "an acquire", func() error {
		_, err := other.Acquire(t.Context(), driver.Request{Claim: claimOf("since", "other"), TTL: lasting})
		return err
	})
}

// Other processes have written so much to a server that was set back that its revision
// does not show it. What was released since is still free.
func TestNamesThatComeBack(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	proxy := faultproxy.New(t, server.Addr)
	s := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
	stays, _ := take(t, s, claimOf("stays", "me"), lasting, false)
	back, _ := take(t, s, claimOf("back", "me"), lasting, false)
	asked, _ := take(t, s, claimOf("asked", "me"), lasting, false)
	again, _ := take(t, s, claimOf("again", "me"), lasting, false)
	restore := server.Backup()

	for _, c := range []driver.Claim{back, asked, again} {
		insist(t, "a release", func() error { return s.Release(t.Context(), c) })
	}
	again, _ = take(t, s, claimOf("again", "me once more"), lasting, false)
	// This one has the name that comes back, and does not know whether it put it.
	cut := proxy.CutBeforeRequest(func(request []byte) bool { return bytes.Contains(request, []byte("asked/")) })
	if _, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("asked", "me once more"), TTL: lasting}); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("an acquire that did not arrive: %v", err)
	}
	<-cut
	keepRenewing(t, s, stays)
	proxy.Refuse()
	proxy.Cut()
	eventually(t, "the server is missed", time.Minute, func() bool { return renewOne(t, s, stays, lasting).State == driver.Unknown })
	restore()
	other := openOn(t, server, 1)[0]
	for range 20 { // more than s has done since the backup
		c, _ := take(t, other, claimOf("k", "other"), lasting, false)
		mustRelease(t, other, c)
	}
	if n := len(names(t, other, "back").Kvs); n != 1 {
		t.Fatalf("%d names came back, want 1", n)
	}
	proxy.Accept()

	free := func(key string) {
		t.Helper()
		eventually(t, "what was released is free: "+key, time.Minute, func() bool {
			_, err := other.Acquire(t.Context(), driver.Request{Claim: claimOf(key, "other"), TTL: lasting})
			if err != nil && !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	free("back")
	free("asked")
	eventually(t, "all leases were looked at", time.Minute, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.findingLeftovers
	})
	eventually(t, "what was acquired since is lost", time.Minute, func() bool {
		return errors.Is(s.Release(t.Context(), again), driver.ErrLost)
	})
	free("again")
	eventually(t, "what is held goes on", time.Minute, func() bool {
		r := renewOne(t, s, stays, lasting)
		if r.State == driver.Lost {
			t.Fatal("it is lost")
		}
		return r.State == driver.Held
	})
	if s.history.now().restores != 0 {
		t.Error("it did show: the test is of no use")
	}
}
