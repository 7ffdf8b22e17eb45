package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

const long = 50 * time.Second

// Trap 3 and 6: a process that is not heard of has lost its locks, by its own clock and
// by the server's, and goes on with a new lease.
func TestLeaseExpires(t *testing.T) {
	t.Parallel()
	server := testserver.SharedEtcd(t)
	proxy := faultproxy.New(t, server.Addr)
	s := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
	other := openOn(t, server, 1)[0]
	c := claimOf("k", "me")
	hints := hintsOf(t, s, c)
	c, _ = take(t, s, c, waiterSeconds*time.Second, false)
	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)
	awaitHint(t, "it has expired", hints, func(h driver.Hint) bool { return !h.Granted })
	awaitNames(t, other, "k", 0, 20*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if r := s.Renew(ctx, []driver.Claim{c}, long)[0]; r.State == driver.Held {
		t.Errorf("without an answer: %+v", r)
	}
	proxy.Heal()
	proxy.Cut()
	awaitReachable(t, s)
	if r := renewOne(t, s, c, long); r.State != driver.Lost {
		t.Errorf("%v (%v), want lost", r.State, r.Err)
	}
	next, g := take(t, s, claimOf("k", "me"), waiterSeconds*time.Second, false)
	if g.Token <= c.Ticket {
		t.Errorf("token %d after %d", g.Token, c.Ticket)
	}
	mustRelease(t, s, next)
}

// slowLeases delays the answers that prolong a lease.
type slowLeases struct {
	pb.LeaseClient
	late time.Duration
}

type slowStream struct {
	grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
	late time.Duration
}

func (c slowLeases) LeaseKeepAlive(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], error) {
	s, err := c.LeaseClient.LeaseKeepAlive(ctx, opts...)
	return slowStream{s, c.late}, err
}

func (s slowStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	r, err := s.BidiStreamingClient.Recv()
	<-time.After(s.late) // the fault itself
	return r, err
}

// Trap 3: a lease is trusted from when the request to prolong it was sent, not
// from when the answer came.
func TestTrustCountsFromSending(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	c, _ := take(t, s, claimOf("k", "me"), long, false)
	const late = 300 * time.Millisecond
	s.leaser = slowLeases{s.leaser, late}
	s.mu.Lock()
	l := s.leases[seconds(long)]
	l.end = l.end.Add(-long / 2) // so that it has to be prolonged
	s.mu.Unlock()
	sent := time.Now()
	r := renewOne(t, s, c, long)
	if r.State != driver.Held || time.Since(sent) < late {
		t.Fatalf("after %v: %+v", time.Since(sent), r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := time.Until(l.end); left > long-late {
		t.Errorf("%v are left of a lease of %v that was prolonged %v ago", left, long, time.Since(sent))
	}
}

// Trap 5: on a server that grants no short leases, a lock is still free after its TTL,
// as long as the process lives.
func TestLeaseFloor(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t, "--heartbeat-interval=400", "--election-timeout=4000")
	s := openOn(t, server, 2)
	c, g := take(t, s[0], claimOf("k", "me"), waiterSeconds*time.Second, false)
	if g.TTL > waiterSeconds*time.Second {
		t.Errorf("granted for %v", g.TTL)
	}
	kvs := names(t, s[1], "k").Kvs
	if len(kvs) != 1 {
		t.Fatalf("%d names", len(kvs))
	}
	awaitNames(t, s[1], "k", 0, 20*time.Second)
	left, err := s[1].client.TimeToLive(t.Context(), clientv3.LeaseID(kvs[0].Lease))
	if err != nil || left.TTL != -1 && left.GrantedTTL < 6 {
		t.Errorf("its lease: %+v (%v)", left, err)
	}
	if left.TTL == -1 {
		t.Log("not concluded: the lease has ended, too")
	}
	if r := renewOne(t, s[0], c, long); r.State != driver.Lost {
		t.Errorf("%v, want lost", r.State)
	}
}

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
		under := l.request
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

// shortened makes the lease of a class end earlier for the store, so that the next
// renewal keeps it alive.
func shortened(s *Store, class int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[class]
	l.end = l.end.Add(-time.Duration(class) * time.Second / 2)
}

// logins returns the number of logins to a server.
func logins(t *testing.T, server *testserver.EtcdServer) int {
	t.Helper()
	resp, err := http.Get("http://" + server.Addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^grpc_server_started_total\{grpc_method="Authenticate".*\} (\d+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("the server does not count logins")
	}
	n, _ := strconv.Atoi(string(m[1])) // digits
	return n
}

// A user logs in once for all requests that keep leases alive.
func TestKeepingAliveLogsInOnce(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	enableAuth(t, server)
	s, err := Open(t.Context(), Server{Endpoints: []string{server.Addr}, Username: "app", Password: "canary-app"}, Config{Prefix: "app"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, _ := take(t, s, claimOf("k", "me"), long, false)
	before := logins(t, server)
	for range 8 {
		shortened(s, seconds(long))
		if r := renewOne(t, s, c, long); r.State != driver.Held || r.Grant.TTL < long-2*time.Second {
			t.Fatalf("%+v", r)
		}
	}
	// A busy machine may answer a request so late that the store opens another stream.
	if n := logins(t, server) - before; n > 3 {
		t.Errorf("%d logins for 8 renewals", n)
	}
}

// deposed is a member that led at a lower term and does not know that it no longer
// does: it says that it prolongs leases. before runs before each answer.
type deposed struct {
	pb.LeaseClient
	s      *Store
	before func()

	mu      sync.Mutex
	answers int
}

type deposedStream struct {
	grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]
	ctx   context.Context
	asked chan int64
	of    *deposed
}

func (d *deposed) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], error) {
	return deposedStream{nil, ctx, make(chan int64, 10), d}, nil
}

func (d deposedStream) Send(r *pb.LeaseKeepAliveRequest) error { d.asked <- r.ID; return nil }

func (d deposedStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case id := <-d.asked:
		d.of.before()
		d.of.mu.Lock()
		defer d.of.mu.Unlock()
		d.of.answers++
		return &pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{RaftTerm: 1}, ID: id, TTL: seconds(long)}, nil
	case <-d.ctx.Done():
		return nil, d.ctx.Err()
	}
}

// A leader that was deposed while it waited for its disk says that it prolongs a lease,
// of which its successor hears nothing. The store trusts it neither before the answer
// of the other members nor after; and it asks another member.
func TestDeposedLeaderProlongsNothing(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		for _, others := range []bool{true, false} {
			t.Run(fmt.Sprintf("first=%v,others=%v", first, others), func(t *testing.T) {
				t.Parallel()
				s := openOn(t, testserver.SharedEtcd(t), 1)[0] // at a term of 2 or more
				c, _ := take(t, s, claimOf("k", "me"), long, false)
				spy := spyOn(s)
				told, read := make(chan bool), make(chan bool)
				var once, again sync.Once
				d := &deposed{LeaseClient: s.leaser, s: s, before: func() {}}
				if first {
					spy.before = func() { <-told }
				} else {
					spy.after = func() { once.Do(func() { close(read) }) }
					d.before = func() { again.Do(func() { <-read }) }
				}
				s.leaser = d
				if !others {
					s.client.SetEndpoints() // for connections that are made from now on
				}
				shortened(s, seconds(long))
				s.mu.Lock()
				l := s.leases[seconds(long)]
				end := l.end
				s.mu.Unlock()
				done := make(chan driver.Renewal)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				go func() { done <- s.Renew(ctx, []driver.Claim{c}, long)[0] }()
				if first {
					eventually(t, "an answer", 10*time.Second, func() bool {
						s.mu.Lock()
						defer s.mu.Unlock()
						return l.unconfirmed != nil
					})
					close(told)
				}
				r := <-done
				d.mu.Lock()
				if d.answers == 0 {
					t.Error("not concluded: the deposed leader was not asked")
				}
				d.mu.Unlock()
				s.mu.Lock()
				defer s.mu.Unlock()
				if !others {
					if r.State != driver.Unknown || l.end != end {
						t.Errorf("%+v, and the lease ends %v later", r, l.end.Sub(end))
					}
					return
				}
				if r.State != driver.Held || r.Grant.TTL < long-2*time.Second {
					t.Errorf("with others who answer: %+v", r)
				}
				if !l.end.After(end) {
					t.Errorf("the lease ends %v later", l.end.Sub(end))
				}
			})
		}
	}
}

// Only answers to later requests confirm what was said of a lease, if their term is no
// higher.
func TestWhatConfirmsALease(t *testing.T) {
	t.Parallel()
	type read struct {
		asks int
		term uint64
	}
	for _, test := range []struct {
		what        string
		early, late []read // before and after it was said, by one at term 5
		want        bool
	}{
		{"nothing", nil, nil, false},
		{"a later read of that term", nil, []read{{7, 5}}, true},
		{"an earlier read of that term", nil, []read{{6, 5}}, false},
		{"a later read of a higher term", nil, []read{{7, 6}}, false},
		{"a later read of a lower term", nil, []read{{7, 4}}, true},
		{"of that term, and a higher one after that", []read{{7, 5}}, []read{{8, 6}}, true},
		{"of a higher term, and that one, which was on its way for longer", []read{{8, 6}}, []read{{7, 5}}, true},
		{"a higher one, known before", []read{{7, 6}}, nil, false},
		{"an earlier one of that term, and a later one of a higher", []read{{6, 5}}, []read{{7, 6}}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			begin := bootclock.Now()
			a := &leaseRequest{number: 7, term: 5, end: begin.Add(time.Hour)}
			l := &lease{end: begin, request: a}
			s := &Store{leases: map[int64]*lease{1: l}}
			for _, r := range test.early {
				s.confirmTerm(r.asks, r.term)
			}
			if l.end != begin {
				t.Error("it is trusted before it is confirmed")
			}
			l.request, l.unconfirmed = nil, a
			l.extendLocked()
			for _, r := range test.late {
				s.confirmTerm(r.asks, r.term)
			}
			if got := l.end == a.end; got != test.want {
				t.Errorf("borne out: %v, want %v", got, test.want)
			}
		})
	}
}

// keepsAll makes clients renew as a Locker does, each with a lock, and fails if one of
// them loses it within that time after the fault.
func keepsAll(t *testing.T, cluster *testserver.EtcdCluster, ttl, within time.Duration, fault func()) {
	var all []drivertest.Holder
	for i := range 6 {
		s := mustNew(t, dial(t, cluster.Addrs()...), Config{Prefix: prefixOf(t)})
		sent := bootclock.Now()
		c, g := take(t, s, claimOf(fmt.Sprintf("k%d", i), "me"), ttl, false)
		all = append(all, drivertest.Holder{Locks: s, Claim: c, Sent: sent, Until: sent.Add(g.TTL)})
	}
	fault()
	drivertest.KeepAll(t, all, ttl, within)
}

// A member whose disk hangs, or that hangs itself, keeps its connections; one whose
// disk hangs answers pings for ever. No lease is lost by it.
func TestMemberThatHangs(t *testing.T) {
	t.Parallel()
	const ttl, within = 6 * time.Second, 15 * time.Second
	t.Run("disk", func(t *testing.T) {
		t.Parallel()
		cluster := testserver.EtcdThree(testserver.Stalling(t))
		keepsAll(t, cluster, ttl, within, func() {
			leader := cluster.Leader(t)
			leader.StallDisk()
			// It hangs as soon as it has something to write.
			writer := mustNew(t, dial(t, leader.Addr), Config{Prefix: prefixOf(t)})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := writer.Acquire(ctx, driver.Request{Claim: claimOf("written", "me"), TTL: ttl})
				done <- err
			}()
			leader.AwaitStalled()
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, driver.ErrUnavailable) {
				t.Error(err)
			}
		})
	})
	t.Run("process", func(t *testing.T) {
		t.Parallel()
		cluster := testserver.EtcdThree(t)
		keepsAll(t, cluster, ttl, within, func() {
			m := cluster.Members[0]
			m.Stop()
			t.Cleanup(m.Cont)
		})
	})
}
