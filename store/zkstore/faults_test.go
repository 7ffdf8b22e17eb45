package zkstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// creates matches the transaction that makes or deletes nodes of a key.
func creates(s *Store, key string) func(request []byte) bool {
	return func(request []byte) bool { return bytes.Contains(request, []byte(s.parent(key)+"/_c_")) }
}

// The answer is lost after the nodes were made, twenty times: a caller that asks again
// finds them, and a caller that gives up leaves none behind, nor does one that is never
// heard of again.
func TestLostAnswersLeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, "", proxy.Addr)
	direct := plain(t, server.Addr)
	first := writer("k")
	token := hold(t, s, first).Token // the parent is known from now on
	release(t, s, first)
	var left []string // the keys of the callers that were never heard of again
	for i := range 20 {
		r := writer("k")
		if i%3 == 2 {
			r.Key, r.TTL = fmt.Sprint("left", i), time.Second
			left = append(left, r.Key)
		}
		eventually(t, "a connection", func() bool { return s.session.link().up })
		cut := proxy.CutAfterRequest(creates(s, r.Key))
		_, err := s.Acquire(t.Context(), r)
		if !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("round %d: %v, want driver.ErrUnknown", i, err)
		}
		<-cut
		switch r.Retry = true; i % 3 {
		case 0: // asks again
			var g driver.Grant
			eventually(t, "a repeated acquire", func() bool {
				g, err = s.Acquire(t.Context(), r)
				return err == nil
			})
			if g.Waiting || g.Token <= token {
				t.Fatalf("round %d: repeated: %+v after token %d", i, g, token)
			}
			if n := len(lineOf(t, direct, s, "k")); n != 2 {
				t.Errorf("round %d: %d nodes, want the two of one request", i, n)
			}
			token = g.Token
			release(t, s, r)
		case 1: // gives up
			eventually(t, "a release", func() bool {
				err := s.Release(t.Context(), r.Claim)
				return err == nil || errors.Is(err, driver.ErrLost)
			})
		}
		eventually(t, "an empty line", func() bool { return len(lineOf(t, direct, s, "k")) == 0 })
	}
	for _, key := range left {
		eventually(t, "an empty line", func() bool { return len(lineOf(t, direct, s, key)) == 0 })
	}
}

// The answer to a release is lost: it was done, or it will be.
func TestReleaseWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	for name, arm := range map[string]func(p *faultproxy.Proxy, deletes func([]byte) bool) <-chan struct{}{
		"done":     (*faultproxy.Proxy).CutAfterRequest,
		"not done": (*faultproxy.Proxy).CutBeforeRequest,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := faultproxy.New(t, server.Addr)
			s := openOn(t, "", proxy.Addr)
			r := writer("k")
			hold(t, s, r)
			cut := arm(proxy, creates(s, r.Key))
			if err := s.Release(t.Context(), r.Claim); !errors.Is(err, driver.ErrUnknown) {
				t.Errorf("release: %v, want driver.ErrUnknown", err)
			}
			<-cut
			direct := plain(t, server.Addr)
			eventually(t, "an empty line", func() bool { return len(lineOf(t, direct, s, "k")) == 0 })
			if a := renew(t, s, r); a.State != driver.Lost {
				t.Errorf("renewed: %+v", a)
			}
		})
	}
}

// The answer to a downgrade is lost: the next one finds what it did.
func TestDowngradeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, "", proxy.Addr)
	other := openOn(t, s.root, server.Addr)
	r := writer("k")
	g := hold(t, s, r)
	cut := proxy.CutAfterRequest(func(b []byte) bool { return bytes.Contains(b, []byte(markRead)) })
	if _, err := s.Downgrade(t.Context(), r.Claim, ttl); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("downgrade: %v, want driver.ErrUnknown", err)
	}
	<-cut
	var again driver.Grant
	eventually(t, "a repeated downgrade", func() (ok bool) {
		var err error
		again, err = s.Downgrade(t.Context(), r.Claim, ttl)
		return err == nil
	})
	if again.Token != g.Token {
		t.Errorf("token %d became %d", g.Token, again.Token)
	}
	read := reader("k")
	hold(t, other, read)
	release(t, other, read)
	release(t, s, r)
	if left := lineOf(t, plain(t, server.Addr), s, "k"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A downgrade that got no answer takes effect right before the second one: its reader's
// node belongs to the claim, and is removed with it.
func TestDowngradeComesThroughLate(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, "", proxy.Addr)
	direct := plain(t, server.Addr)
	r := writer("k")
	g := hold(t, s, r)
	c := s.find(r.Claim)
	write := c.nodes[1]
	reader := strings.Replace(write, markWrite, markRead, 1)
	var first sync.Once
	proxy.Rewrite(faultproxy.ToServer, func(request []byte) []byte {
		if bytes.Contains(request, []byte(reader)) {
			first.Do(func() {
				if _, err := direct.Multi(
					&zk.DeleteRequest{Path: c.parent + "/" + write, Version: -1},
					&zk.CreateRequest{Path: c.parent + "/" + reader, Acl: s.acl, Flags: zk.FlagEphemeral},
				); err != nil {
					t.Error(err)
				}
			})
		}
		return request
	})
	if again, err := s.Downgrade(t.Context(), r.Claim, ttl); err != nil || again.Token != g.Token {
		t.Errorf("downgrade: %+v, %v, want token %d", again, err, g.Token)
	}
	if a := renew(t, s, r); a.State != driver.Held {
		t.Errorf("renewed: %+v", a)
	}
	_ = s.Release(t.Context(), r.Claim)
	mustEmpty(t, s, "k")
}

// belief is until when a grant may be believed in.
type belief struct {
	mu    sync.Mutex
	until time.Time
}

func (b *belief) hear(sent time.Time, g driver.Grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if end := sent.Add(g.TTL); end.After(b.until) {
		b.until = end
	}
}

// keep renews a claim until it is lost, each attempt for a while.
func (b *belief) keep(ctx context.Context, s *Store, r driver.Request) {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, r.TTL/2)
		sent := bootclock.Now()
		a := s.Renew(call, []driver.Claim{r.Claim}, r.TTL)[0]
		if a.State == driver.Held {
			b.hear(sent, a.Grant)
		}
		<-call.Done() // the next one at a known distance
		cancel()
		if a.State == driver.Lost {
			return
		}
	}
}

// A connection falls silent. The holder stops believing before the server ends its
// session and grants the next, and what it held stays lost.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "tickTime=500")
	proxy := faultproxy.New(t, server.Addr)
	s := mustOpen(t, Server{Addrs: []string{proxy.Addr}, Session: 2 * time.Second})
	other := patient(mustOpen(t, Server{Addrs: []string{server.Addr}}))
	r := writer("k")
	r.TTL = time.Second
	var b belief
	sent := bootclock.Now()
	g := hold(t, s, r)
	b.hear(sent, g)
	lost := watching(t, s, r)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { b.keep(ctx, s, r) })
	defer wg.Wait()
	defer cancel()

	next := writer("k")
	next.TTL = 2 * time.Second
	hints := watching(t, other, next)
	if !acquire(t, other, next).Waiting {
		t.Fatal("two hold")
	}
	proxy.Hold(faultproxy.ToServer)
	proxy.Hold(faultproxy.ToClient)
	after, granted := awaitHeld(t, other, next, hints)
	b.mu.Lock()
	if b.until.After(granted) {
		t.Errorf("the silent holder believed in its lock for %v after the next was granted", b.until.Sub(granted))
	}
	b.mu.Unlock()
	if after.Token <= g.Token {
		t.Errorf("token %d after %d", after.Token, g.Token)
	}
	proxy.Heal()
	proxy.Cut()
	<-lost
	eventually(t, "a new session", func() bool { return renew(t, s, r).State == driver.Lost })
	eventually(t, "a request in the new session", func() bool {
		_, err := s.Acquire(t.Context(), func() driver.Request { r := writer("k"); r.Queue, r.TTL = false, time.Second; return r }())
		return errors.Is(err, driver.ErrHeld)
	})
}

// keepRenewing renews a claim for as long as the test runs.
func keepRenewing(t *testing.T, s *Store, r driver.Request) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(driver.RefreshEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.Renew(ctx, []driver.Claim{r.Claim}, r.TTL)
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// A follower that was cut off from its leader goes on telling its clients that their
// nodes exist, after the others have deleted them. No store believes it.
func TestPartitionedFollower(t *testing.T) {
	t.Parallel()
	testserver.NeedZooKeeper(t)
	const tick = 500 * time.Millisecond
	var proxies [3][3]*faultproxy.Proxy
	e := testserver.ZooKeeperEnsemble(t, func(from, to int, addr string) string {
		proxies[from][to] = faultproxy.New(t, addr)
		return proxies[from][to].Addr
	}, "tickTime=500", "syncLimit=12")
	leader := e.AwaitLeader(t)
	follower, third := (leader+1)%3, (leader+2)%3

	type pair struct {
		name  string
		s     *Store
		r     driver.Request
		next  driver.Request
		b     belief
		hints <-chan driver.Hint

		granted time.Time // when next was
	}
	var pairs []*pair
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	other := patient(mustOpen(t, Server{Addrs: []string{e.Nodes[third].Addr}, Session: 20 * tick}, Config{Root: "/p"}))
	for _, ticks := range []time.Duration{2, 4, 10} {
		p := &pair{name: (ticks * tick).String()}
		p.s = mustOpen(t, Server{Addrs: []string{e.Nodes[follower].Addr}, Session: ticks * tick}, Config{Root: "/p"})
		p.r = writer(p.name)
		p.r.TTL = ticks * tick / 2
		g, sent := insist(t, p.s, p.r)
		p.b.hear(sent, g)
		next := writer(p.name)
		next.TTL = 10 * tick
		p.next = next
		p.hints = watching(t, other, next)
		if g, _ := insist(t, other, next); !g.Waiting { // its session ended in a pause
			p.granted = bootclock.Now()
		}
		wg.Go(func() { p.b.keep(ctx, p.s, p.r) })
		pairs = append(pairs, p)
	}
	for _, dir := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
		proxies[follower][leader].Hold(dir)
	}
	for _, p := range pairs {
		if p.granted.IsZero() {
			_, p.granted = awaitHeld(t, other, p.next, p.hints)
		}
		p.b.mu.Lock()
		if p.b.until.After(p.granted) {
			t.Errorf("session of %s: believed for %v after the next was granted", p.name, p.b.until.Sub(p.granted))
		}
		p.b.mu.Unlock()
	}
}

// The leader is killed: sessions and locks go on with the next one, tokens rise, and
// the waiter is granted.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	testserver.NeedZooKeeper(t)
	e := testserver.ZooKeeperEnsemble(t, nil, "tickTime=500")
	leader := e.AwaitLeader(t)
	s := mustOpen(t, Server{Addrs: e.Addrs(), Session: 10 * time.Second}, Config{Root: "/l"})
	other := mustOpen(t, Server{Addrs: []string{e.Nodes[leader].Addr, e.Nodes[(leader+1)%3].Addr}, Session: 10 * time.Second}, Config{Root: "/l"})
	r := writer("k")
	r.TTL = 5 * time.Second
	g, _ := insist(t, s, r)
	next := writer("k")
	next.TTL = 5 * time.Second
	hints := watching(t, other, next)
	if !acquire(t, other, next).Waiting {
		t.Fatal("two hold")
	}
	e.Nodes[leader].Kill()
	e.AwaitLeader(t)
	var a driver.Renewal
	eventually(t, "an answer from the others", func() bool {
		a = renew(t, s, r)
		return a.State != driver.Unknown
	})
	// An election on a busy machine may last longer than the lease. Then the lease is
	// lost, and no process believes in it.
	if a.State == driver.Held {
		if a.Grant.Token != g.Token {
			t.Errorf("token %d became %d", g.Token, a.Grant.Token)
		}
		eventually(t, "a release", func() bool {
			err := s.Release(t.Context(), r.Claim)
			return err == nil || errors.Is(err, driver.ErrLost)
		})
	}
	var after driver.Grant
	eventually(t, "the next one served", func() bool {
		select {
		case h := <-hints:
			if h.Granted {
				after = h.Grant
				return true
			}
		default:
		}
		switch a := renew(t, other, next); a.State {
		case driver.Held:
			after = a.Grant
		case driver.Lost: // its position did not live as long as the election
			next.ID = driver.NewID()
			if g, err := other.Acquire(t.Context(), next); err == nil && !g.Waiting {
				after = g
			}
		}
		return after.Token > 0
	})
	if after.Token <= g.Token {
		t.Errorf("token %d after %d", after.Token, g.Token)
	}
}

// A request without an answer obeys its context, and its effect is found later.
func TestContextEndsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, "", proxy.Addr)
	warm := writer("k")
	hold(t, s, warm)
	release(t, s, warm)
	proxy.Hold(faultproxy.ToClient)
	for _, call := range []func(context.Context) error{
		func(ctx context.Context) error {
			r := writer("k")
			r.TTL = time.Second // it may be repeated for that long
			_, err := s.Acquire(ctx, r)
			return err
		},
		func(ctx context.Context) error { _, err := s.Inspect(ctx, "k"); return err },
		func(ctx context.Context) error { _, err := s.Break(ctx, "k"); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the context's error", err)
		}
		cancel()
	}
	proxy.Heal()
	direct := plain(t, server.Addr)
	eventually(t, "an empty line", func() bool { return len(lineOf(t, direct, s, "k")) == 0 })
}

// A closed store keeps the session until its claims have ended: their holders may go on
// believing in them.
func TestCloseKeepsLocksForTheirTime(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := openOn(t, "", server.Addr)
	other := openOn(t, s.root, server.Addr)
	r := writer("k")
	r.TTL = time.Second
	sent := time.Now()
	g := hold(t, s, r)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	next := writer("k")
	next.Queue = false
	eventually(t, "the lock is free", func() bool {
		_, err := other.Acquire(t.Context(), next)
		return err == nil
	})
	if d := time.Since(sent); d < g.TTL {
		t.Errorf("granted for %v, and free after %v", g.TTL, d)
	}
	if _, err := s.Acquire(t.Context(), writer("k")); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := s.Inspect(t.Context(), "k"); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	eventually(t, "the connection is closed", func() bool { return s.life.Err() != nil && !strings.Contains(s.conn.State().String(), "Session") })
}
