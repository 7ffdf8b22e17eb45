package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// behind opens a store whose connections go through a proxy.
func behind(t *testing.T, tune ...func(*links)) (*Store, *faultproxy.Proxy) {
	t.Helper()
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.SharedRedis(t)
	proxy := faultproxy.New(t, server.Addr)
	cfg := Server{Addrs: []string{proxy.Addr}}
	links := newLinks(cfg)
	for _, f := range tune {
		f(links)
	}
	s, err := open(t.Context(), cfg, links, Config{Prefix: driver.NewID() + ":"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, proxy
}

// patient gives up no connection while a test waits for something.
func patient(l *links) { l.dial, l.answer = 4*time.Second, 4*time.Second }

// renewSoon renews as a renewer does, with a patience of its own for each attempt, and
// returns how long it took until a renewal was answered.
func renewSoon(t *testing.T, s *Store, c driver.Claim, patience, within time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		r := s.Renew(ctx, []driver.Claim{c}, time.Minute)[0]
		cancel()
		took := time.Since(began)
		if r.State == driver.Held {
			return took
		}
		if took > within {
			t.Fatalf("not renewed within %v: %+v", took, r)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// A NAT forgets the connections: nothing comes back on them, and new ones work. A
// lease of fifteen seconds has to be renewed in the ten that are left of it when its
// renewal begins.
func TestHalfOpenConnections(t *testing.T) {
	s, proxy := behind(t)
	s.pushes.start()
	c, _ := take(t, s, claimOf("k", "a"), time.Minute, false)
	for _, busy := range []bool{false, true} {
		if busy { // and requests whose callers have given up go on coming
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						call, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
						s.Acquire(call, driver.Request{Claim: claimOf(fmt.Sprintf("other/%d/%d", i, n), "a"), TTL: time.Second})
						cancel()
					}
				})
			}
			defer wg.Wait()
			defer cancel()
		}
		proxy.HalfOpen()
		if took := renewSoon(t, s, c, time.Second, 20*time.Second); took > 8*time.Second {
			t.Errorf("with requests %v: renewed after %v", busy, took)
		}
	}
}

// One call connects to a server that accepts and does not answer. Its caller does not
// give up, and no other call has to wait for it.
func TestContextsWhileConnecting(t *testing.T) {
	s, proxy := behind(t, patient)
	c, _ := take(t, s, claimOf("k", "a"), time.Minute, false)
	proxy.Swallow(faultproxy.ToServer)
	proxy.Cut()
	undated, give := context.WithCancel(t.Context())
	defer give()
	connecting := make(chan error, 1)
	go func() {
		var err error
		for undated.Err() == nil { // the first ones find that the connection is lost
			_, err = s.Acquire(undated, driver.Request{Claim: claimOf("other", "a"), TTL: time.Minute})
		}
		connecting <- err
	}()
	eventually(t, "a connection", 20*time.Second, func() bool { return proxy.Conns() > 0 })

	calls := map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, driver.Request{Claim: claimOf("free", "a"), TTL: time.Minute})
			return err
		},
		"queue": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, driver.Request{Claim: claimOf("k", "b"), TTL: time.Minute, Queue: true})
			return err
		},
		"renew":   func(ctx context.Context) error { return s.Renew(ctx, []driver.Claim{c}, time.Minute)[0].Err },
		"release": func(ctx context.Context) error { return s.Release(ctx, claimOf("other", "z")) },
		"inspect": func(ctx context.Context) error { _, err := s.Inspect(ctx, "k"); return err },
		"take": func(ctx context.Context) error {
			_, err := s.Take(ctx, asking("limit", tokens(1, time.Hour, 100), 1))
			return err
		},
		"life": func(ctx context.Context) error { _, err := s.Life(ctx); return err },
	}
	for name, call := range calls {
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			ended <- call(ctx)
		}()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s succeeded without a server", name)
			}
		case <-time.After(2 * time.Second): // the connection itself takes four
			t.Errorf("%s waits for another's connection after its context has ended", name)
		}
	}
	give()
	if err := <-connecting; err == nil {
		t.Error("it was granted without a server")
	}
	proxy.Heal()
	renewSoon(t, s, c, time.Second, 20*time.Second)
}

// A connection hangs, and more requests are abandoned on it than the client has
// places for.
func TestAbandonedRequestsLeaveRoom(t *testing.T) {
	s, proxy := behind(t, patient)
	take(t, s, claimOf("k", "a"), time.Minute, false)
	proxy.Swallow(faultproxy.ToClient)
	brief := func(n int, d time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		_, err := s.Acquire(ctx, driver.Request{Claim: claimOf(fmt.Sprint("k", n), "a"), TTL: time.Minute, Retry: n > 0})
		return err
	}
	all := make(chan error, 1)
	go func() {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				for n := range 40 {
					if err := brief(1+i*1000+n, 10*time.Millisecond); err == nil {
						t.Errorf("request %d of %d was answered", n, i)
					}
				}
			})
		}
		wg.Wait()
		all <- brief(1<<20, 10*time.Millisecond)
	}()
	select {
	case err := <-all:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the last one ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("requests wait although their contexts have ended")
	}
	proxy.Heal()
	more := 1 << 21
	eventually(t, "a grant after that", 20*time.Second, func() bool {
		more++ // the one before may be granted by now
		return brief(more, time.Second) == nil
	})
}

// The way to the server becomes so long that an answer takes longer than the client's
// patience. The client has to learn that.
func TestServerBecomesFar(t *testing.T) {
	s, proxy := behind(t, func(l *links) { l.dial, l.answer = dialPatience/4, answerPatience/4 })
	c, _ := take(t, s, claimOf("k", "a"), time.Minute, false)
	for _, dir := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
		proxy.Delay(dir, 300*time.Millisecond)
	}
	renewSoon(t, s, c, 2*time.Second, 30*time.Second)
	links := s.client.(*client).links
	for range 2 { // and then it stays
		made := links.born.connections.Load()
		renewSoon(t, s, c, 5*time.Second, 30*time.Second)
		if again := links.born.connections.Load(); again != made {
			t.Errorf("%d connections were made although answers come", again-made)
		}
	}
}

// A store is closed while it connects. It does not wait for that for long, and no
// connection stays.
func TestCloseLeavesNoConnection(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprint("hangs=", hangs), func(t *testing.T) {
			s, proxy := behind(t, patient)
			if hangs {
				s.pushes.start()                                                                           // which connects, too
				eventually(t, "a subscription", 20*time.Second, func() bool { return proxy.Conns() == 2 }) // one is for calls
				proxy.Swallow(faultproxy.ToClient)
			} else {
				proxy.Delay(faultproxy.ToClient, 200*time.Millisecond)
			}
			proxy.Cut()
			for range 3 { // the first ones find that the connection is lost
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				if _, err := s.Inspect(ctx, "k"); err == nil {
					t.Error("it was answered")
				}
				cancel()
			}
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(2500 * time.Millisecond): // an answer is awaited for four
				t.Error("Close waits for answers that do not come")
			}
			proxy.Heal()
			eventually(t, "the end of all connections", 5*time.Second, func() bool { return proxy.Conns() == 0 })
		})
	}
}

// One server never answers, such as a primary whose host is gone. Another one that
// falls silent, such as a Sentinel, is given up as soon as ever, and then gets no more
// time for a new connection than the first time.
func TestSilentServerCostsOthersNoTime(t *testing.T) {
	t.Parallel()
	serve := func(answer bool) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var conns []net.Conn
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				conns = append(conns, c)
				if answer { // once
					b := make([]byte, 1)
					if _, err := c.Read(b); err == nil {
						_, _ = c.Write(b)
					}
				}
			}
		}()
		t.Cleanup(func() {
			l.Close()
			<-done
			for _, c := range conns {
				c.Close()
			}
		})
		return l.Addr().String()
	}
	sentinel, primary := serve(true), serve(false)
	links := newLinks(Server{Addrs: []string{sentinel}})
	links.dial, links.answer = 50*time.Millisecond, 500*time.Millisecond
	ask := func(c net.Conn) error { // as the client does
		b := make([]byte, 1)
		if _, err := c.Write(b); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(mostAnswer)); err != nil {
			return err
		}
		_, err := c.Read(b)
		return err
	}
	c, err := links.connect(t.Context(), "tcp", sentinel)
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(c); err != nil {
		t.Fatal(err)
	}
	links.rtt.Store(0) // a busy machine may have been slow
	for range 5 {
		eventually(t, "the end of a pause", 5*time.Second, func() bool { return links.peer(primary).rests() == nil })
		c, err := links.connect(t.Context(), "tcp", primary)
		if err == nil { // a busy machine may take too long to connect, which counts as well
			err = ask(c)
		}
		if !errors.Is(err, wire.ErrNotSent) {
			t.Errorf("a connection that never answered: %v", err)
		}
	}
	if d := links.patience(links.peer(primary), false); d <= links.dial {
		t.Errorf("the next connection to it is given %v", d)
	}
	began := time.Now()
	if err := ask(c); err == nil || errors.Is(err, wire.ErrNotSent) {
		t.Errorf("a connection that fell silent: %v", err)
	}
	if took := time.Since(began); took > 4*links.answer {
		t.Errorf("it was given up after %v, not %v", took, links.answer)
	}
	if d := links.patience(links.peer(sentinel), false); d != links.dial {
		t.Errorf("the next connection to that is given %v, not %v", d, links.dial)
	}
}

// A fail-over behind one name: the old primary lives on as a replica, and the open
// connections still lead to it.
func TestTheAddressLeadsToAnotherServer(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	old, successor := testserver.Redis(t), testserver.Redis(t)
	proxy := faultproxy.New(t, old.Addr)
	s, err := Open(t.Context(), Server{Addrs: []string{proxy.Addr}}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	drivertest.Elsewhere(t, s, func() {
		proxy.Retarget(successor.Addr)
		if _, err := old.Do("REPLICAOF", "127.0.0.1", "1"); err != nil {
			t.Fatal(err)
		}
	})
}

// A connection that is being made does not hold Close up: the host may be gone.
func TestCloseWhileConnecting(t *testing.T) {
	var gone atomic.Bool
	dialing := make(chan struct{}, 64)
	s, proxy := behind(t, patient, func(l *links) {
		l.dialer.ControlContext = func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
			if gone.Load() {
				dialing <- struct{}{}
				<-ctx.Done()
			}
			return ctx.Err()
		}
	})
	gone.Store(true)
	proxy.Cut()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls sync.WaitGroup
	calls.Go(func() {
		for n := 0; ctx.Err() == nil; n++ { // the first ones find that the connection is lost
			if _, err := s.Acquire(ctx, driver.Request{Claim: claimOf(fmt.Sprint(n), "a"), TTL: time.Minute}); errors.Is(err, driver.ErrClosed) {
				return
			}
		}
	})
	<-dialing
	began := time.Now()
	s.Close()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
	cancel()
	calls.Wait()
}
