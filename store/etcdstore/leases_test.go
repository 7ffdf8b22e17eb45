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
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

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
// of which its successor hears nothing. The store believes it neither before the answer
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
						return l.told != nil
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
func TestWhatBearsOut(t *testing.T) {
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
			a := &asking{no: 7, term: 5, end: begin.Add(time.Hour)}
			l := &lease{end: begin, asking: a}
			s := &Store{leases: map[int64]*lease{1: l}}
			for _, r := range test.early {
				s.bear(r.asks, r.term)
			}
			if l.end != begin {
				t.Error("it is believed before it is said")
			}
			l.asking, l.told = nil, a
			l.believeLocked()
			for _, r := range test.late {
				s.bear(r.asks, r.term)
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
func TestRenewalAsksElsewhere(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	steady(t, func(t testing.TB) {
		s := openOn(t, testserver.SharedEtcd(t), 2)
		h := &hanging{KVClient: s[1].kv}
		h.works.Store(true)
		s[1].kv = h // before the store asks: the housekeeping reads it at any time
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
func TestAcquireAndReleaseAskElsewhere(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	for _, how := range []string{"alone", "in line", "beside", "together"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			steady(t, func(t testing.TB) { askElsewhere(t, how) })
		})
	}
}

func askElsewhere(t testing.TB, how string) {
	const ttl = 6 * time.Second
	s := openOn(t, testserver.SharedEtcd(t), 2)
	r := several("me", "k")
	r[0].TTL = ttl
	var before driver.Claim
	switch how {
	case "in line":
		before, _ = take(t, s[0], claimOf("k", "other"), long, false)
		r[0].Queue = true
	case "beside":
		c := claimOf("k", "other")
		c.Weight, r[0].Weight = 1, 1
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
	var g driver.Grant
	var err error
	if how == "together" {
		var all []driver.Grant
		if all, err = s[1].AcquireAll(soon(), r); err == nil {
			g = all[0]
		}
	} else {
		g, err = s[1].Acquire(soon(), r[0])
	}
	if err != nil || g.Waiting != r[0].Queue {
		t.Fatalf("acquire: %+v, %v", g, err)
	}
	c := r[0].Claim
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
		proxy.Delay(faultproxy.ToClient, patienceFor(ttl)*3/2)
		pair := func(key string) uint32 {
			made := s.spares.Load()
			c, _ := take(t, s, claimOf(key, "me"), ttl, false)
			mustRelease(t, s, c)
			return s.spares.Load() - made
		}
		if n := pair("k1"); n == 0 {
			t.Error("not concluded: nobody else was asked")
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
		<-time.After(alonePatience * 3 / 2)
		return nil
	}
	if d, err := s.Take(t.Context(), asks("k", fifty, 1)); err != nil || !d.OK {
		t.Errorf("%+v, %v", d, err)
	}
	if n := s.spares.Load(); n != 0 {
		t.Errorf("%d others were asked", n)
	}
	var work sync.WaitGroup
	limit, lock, another := putOf(t, "limit", false), putOf(t, "lock", false), putOf(t, "another limit", false)
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
		if s.spares.Load() == 0 {
			t.Error("not concluded: nobody else was asked")
		}
	})
}
