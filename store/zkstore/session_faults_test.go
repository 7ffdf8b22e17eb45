package zkstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// trust is until when a grant may be trusted.
type trust struct {
	mu    sync.Mutex
	until time.Time
}

func (b *trust) hear(sent time.Time, g driver.Grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if end := sent.Add(g.TTL); end.After(b.until) {
		b.until = end
	}
}

// keep renews a claim until it is lost, each attempt for a while.
func (b *trust) keep(ctx context.Context, s *Store, r driver.Request) {
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

// A connection falls silent. The holder stops trusting it before the server ends its
// session and grants the next, and what it held stays lost.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "tickTime=500")
	proxy := faultproxy.New(t, server.Addr)
	s := mustOpen(t, Server{Addrs: []string{proxy.Addr}, Session: 2 * time.Second})
	other := longWaiting(mustOpen(t, Server{Addrs: []string{server.Addr}}))
	r := writer("k")
	r.TTL = time.Second
	var b trust
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
		t.Errorf("the silent holder trusted its lock for %v after the next was granted", b.until.Sub(granted))
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
// nodes exist, after the others have deleted them. No store trusts that.
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
		b     trust
		hints <-chan driver.Hint

		granted time.Time // when next was
	}
	var pairs []*pair
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	other := longWaiting(mustOpen(t, Server{Addrs: []string{e.Nodes[third].Addr}, Session: 20 * tick}, Config{Root: "/p"}))
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
			t.Errorf("session of %s: trusted for %v after the next was granted", p.name, p.b.until.Sub(p.granted))
		}
		p.b.mu.Unlock()
	}
}

// The leader is killed: sessions and locks go on with the next one, tokens rise, and
// the waiter is granted.
func TestLeaderKilled(t *testing.T) {
	testserver.Long(t)
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
	// lost, and no process trusts it.
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

// After a silence the server may count from long ago, and a grant lasts less.
func TestTrustAfterSilence(t *testing.T) {
	t.Parallel()
	const T = 16 * time.Second
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for name, c := range map[string]struct {
		since  float64
		active []float64
		sent   float64
		want   float64
	}{
		"a new connection":            {0, nil, 0, 8},
		"soon after":                  {0, nil, 5, 8},
		"long after, in silence":      {0, nil, 10, 5},
		"at the end":                  {0, nil, 15, 0},
		"beyond":                      {0, nil, 40, 0},
		"reported often":              {0, []float64{90, 92, 94, 96, 98}, 100, 8},
		"the last not yet passed on":  {0, []float64{85, 99}, 100, 0},
		"and a little before, passed": {0, []float64{93, 99}, 100, 8},
	} {
		var s Session
		l := &link{id: 1, timeout: T, since: at(c.since)}
		for _, a := range c.active {
			s.active(l, at(a))
		}
		if got := s.committed(l, at(c.sent)); got != time.Duration(c.want*float64(time.Second)) {
			t.Errorf("%s: %v, want %vs", name, got, c.want)
		}
	}
}

// A process that was stopped for long does not take a lock in a session that may end
// before the answer is used.
func TestAcquireAfterSilence(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := openOn(t, "", server.Addr)
	kept := writer("kept")
	hold(t, s, kept)
	// As if nothing had been heard for nearly the whole session.
	s.session.mu.Lock()
	clear(s.session.marks[:])
	s.session.mu.Unlock()
	l := *s.session.link()
	l.since = l.since.Add(-l.timeout)
	s.session.now.Store(&l)

	r := writer("k")
	if g, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("acquire: %+v, %v", g, err)
	}
	if a := renew(t, s, kept); a.State != driver.Unknown || !errors.Is(a.Err, driver.ErrUnavailable) {
		t.Errorf("renew: %+v", a)
	}
	direct := plain(t, server.Addr)
	eventually(t, "an empty line", func() bool { return len(queueIn(t, direct, s, "k")) == 0 })
	release(t, s, kept)
}
