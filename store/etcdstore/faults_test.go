package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

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

// Trap 7: after a lost connection the store lists the queue again, so that a hint tells
// what happened meanwhile.
func TestReconnectListsAnew(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		server := testserver.SharedEtcd(t)
		proxy := faultproxy.New(t, server.Addr)
		holder := openOn(t, server, 1)[0]
		waiter := mustNew(t, dial(t, proxy.Addr), Config{Prefix: prefixOf(t)})
		h, _ := take(t, holder, claimOf("k", "holder"), long, false)
		a := claimOf("k", "waiter")
		hints := hintsOf(t, waiter, a)
		a, _ = take(t, waiter, a, long, true)
		synced(t, waiter, "k")
		proxy.Refuse()
		proxy.Cut()
		mustRelease(t, holder, h)
		proxy.Accept()
		// No renewal asks: the waiter gets a hint, or its position ends.
		if got := awaitHint(t, "granted", hints, func(driver.Hint) bool { return true }); !got.Granted || got.Grant.Token != a.Ticket {
			t.Errorf("%+v, want it granted with token %d", got, a.Ticket)
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

// The tokens of a server with passwords are gone after a restart, or after a while.
func TestAuthenticationSurvivesRestart(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t, "--auth-token-ttl=1")
	enableAuth(t, server)
	s, err := Open(t.Context(), Server{Endpoints: []string{server.Addr}, Username: "app", Password: "canary-app"}, Config{Prefix: "app"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := claimOf("k", "me")
	hints := hintsOf(t, s, c)
	c, _ = take(t, s, c, long, true)
	check := func(when string) {
		t.Helper()
		eventually(t, "it can be renewed "+when, 30*time.Second, func() bool {
			s.mu.Lock()
			s.leases[seconds(long)].end = s.leases[seconds(long)].end.Add(-time.Second) // so that it is prolonged
			s.mu.Unlock()
			r := renewOne(t, s, c, long)
			if r.State == driver.Lost {
				t.Fatal("lost " + when)
			}
			return r.State == driver.Held
		})
		other, _ := take(t, s, claimOf("other", "me"), long, true)
		mustRelease(t, s, other)
		third, _ := take(t, s, claimOf("third", "me"), 5*time.Second, true) // a new lease
		mustRelease(t, s, third)
	}
	check("at first")
	server.Restart()
	check("after a restart")
	<-time.After(3 * time.Second) // the token ends
	check("with a token that has ended")
	synced(t, s, "k")
	if _, err := s.Break(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	awaitHint(t, "broken", hints, func(h driver.Hint) bool { return !h.Granted })
}

// Trap 12: what certainly had no effect is distinguished from what may have had one.
func TestFailures(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		err  error
		ctx  context.Context
		want error
	}{
		{rpctypes.ErrGRPCNoSpace, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCRequestTooManyRequests, t.Context(), driver.ErrUnavailable}, // the server's queue is full
		{rpctypes.ErrGRPCTooManyOps, t.Context(), driver.ErrUnavailable},             // --max-txn-ops
		{rpctypes.ErrGRPCRequestTooLarge, t.Context(), driver.ErrUnavailable},
		{rpctypes.ErrGRPCNoLeader, t.Context(), driver.ErrUnavailable},
		{rpctypes.ErrGRPCLeaseNotFound, t.Context(), driver.ErrUnavailable},
		{rpctypes.ErrGRPCPermissionDenied, t.Context(), driver.ErrUnavailable},
		{rpctypes.ErrGRPCInvalidAuthToken, t.Context(), driver.ErrUnavailable},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: error while dialing: refused"`), t.Context(), driver.ErrUnavailable},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (3041058 vs. 2097152)"), t.Context(), driver.ErrUnavailable},
		{status.Error(codes.ResourceExhausted, "trying to send message larger than max (3000000 vs. 2097152)"), t.Context(), driver.ErrUnavailable},

		{rpctypes.ErrGRPCTimeout, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCTimeoutDueToLeaderFail, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCTimeoutDueToConnectionLost, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCLeaderChanged, t.Context(), driver.ErrUnknown},
		{rpctypes.ErrGRPCStopped, t.Context(), driver.ErrUnknown},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), t.Context(), driver.ErrUnknown},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), t.Context(), driver.ErrUnknown},
		{status.Error(codes.Internal, "error while dialing"), t.Context(), driver.ErrUnknown},
		{io.EOF, t.Context(), driver.ErrUnknown},
		{context.Canceled, over, driver.ErrUnknown},
	} {
		t.Run(fmt.Sprint(test.err), func(t *testing.T) {
			got := failure(test.ctx, test.err)
			if !errors.Is(got, test.want) || errors.Is(got, driver.ErrUnknown) && errors.Is(got, driver.ErrUnavailable) {
				t.Errorf("%v, want %v", got, test.want)
			}
			if c := test.ctx.Err(); c != nil && !errors.Is(got, c) {
				t.Errorf("%v does not say that the context has ended", got)
			}
			if err := readFailure(t.Context(), test.err); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
				t.Errorf("of a read: %v, want ErrUnavailable", err)
			}
		})
	}
}

// A lease ends while the answer to an acquire that was put on it is under way.
func TestLeaseEndsBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	spy := spyOn(s)
	warm, _ := take(t, s, claimOf("warm", "me"), long, false)
	mustRelease(t, s, warm)
	spy.mu.Lock()
	spy.after = func() { noticed(t, s, seconds(long)) }
	spy.mu.Unlock()
	_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("k", "me"), TTL: long})
	if !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	c, _ := take(t, s, claimOf("k", "me"), long, false)
	mustRelease(t, s, c)
}

// The same beside other holders.
func TestLeaseEndsBeforeTheAnswerBeside(t *testing.T) {
	t.Parallel()
	all := openOn(t, testserver.SharedEtcd(t), 2)
	s, reader := all[0], claimOf("k", "me")
	reader.Weight = 1
	other := reader
	other.ID, other.Owner = driver.NewID(), "other"
	spy := spyOn(s)
	warm, _ := take(t, s, claimOf("warm", "me"), long, false)
	mustRelease(t, s, warm)
	first, _ := take(t, all[1], other, long, false)
	spy.mu.Lock()
	spy.after = func() { // the answer says which names there are; the next request joins the queue
		spy.mu.Lock()
		defer spy.mu.Unlock()
		spy.after = func() { noticed(t, s, seconds(long)) }
	}
	spy.mu.Unlock()
	if _, err := s.Acquire(t.Context(), driver.Request{Claim: reader, TTL: long}); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	again := reader
	again.ID = driver.NewID()
	c, _ := take(t, s, again, long, false)
	mustRelease(t, s, c)
	mustRelease(t, all[1], first)
	nothingLeft(t, s, "k")
}

// A renewal does not restore the writer that a downgrade has made a reader: neither a
// renewal beside the downgrade, nor one after a downgrade that got no answer.
func TestRenewalBesideADowngrade(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			t.Parallel()
			all := openOn(t, testserver.SharedEtcd(t), 2)
			s := all[0]
			spy := spyOn(s)
			c, g := take(t, s, claimOf("k", "me"), long, false)
			spy.mu.Lock()
			spy.after = func() { // of the renewal, which comes first; the next request downgrades
				spy.mu.Lock()
				defer spy.mu.Unlock()
				if spy.lose = lost; lost {
					return
				}
				spy.after = func() {
					s.mu.Lock()
					s.keys["k"].claims[c.ID].moving = true // as if an answer had been lost before
					s.mu.Unlock()
					if a := renewOne(t, s, c, long); a.State == driver.Lost {
						t.Errorf("beside a downgrade: %+v", a)
					}
				}
			}
			spy.mu.Unlock()
			_, err := s.Downgrade(t.Context(), c, long)
			if lost != errors.Is(err, driver.ErrUnknown) || !lost && err != nil {
				t.Fatalf("downgraded: %v", err)
			}
			if a := renewOne(t, s, c, long); a.State != driver.Held || a.Grant.Token != g.Token {
				t.Errorf("renewed: %+v", a)
			}
			reader := claimOf("k", "other")
			reader.Weight = 1
			other, _ := take(t, all[1], reader, long, false)
			mustRelease(t, all[1], other)
			mustRelease(t, s, c)
			nothingLeft(t, s, "k")
		})
	}
}
