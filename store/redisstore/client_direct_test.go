package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// directly makes calls go by the direct connection, and returns it.
func directly(t testing.TB, s *Store) *direct {
	t.Helper()
	d := s.client.(ruClient).direct
	c, _ := take(t, s, claimOf("k", "a"), time.Minute, false) // so the server knows the scripts
	mustRelease(t, s, c)
	eventually(t, "a call by the direct connection", 20*time.Second, func() bool {
		before := d.used.Load()
		d.again.Store(0)
		if _, err := s.Inspect(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		return d.line.Load() != nil && before != 0 && d.used.Load() != before
	})
	return d
}

func TestContractDirect(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	h := singleHarness(func(t drivertest.T, addr string) *Store {
		s, err := Open(t.Context(), Server{Addrs: []string{addr}}, Config{})
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	})
	drivertest.Locks(t, h)
}

// Many calls at once go by the shared connection; a single call after them does not.
func TestDirectAfterACrowd(t *testing.T) {
	s, _ := behind(t)
	d := directly(t, s)
	var crowd sync.WaitGroup
	for i := range 16 {
		crowd.Go(func() {
			for range 20 {
				c, _ := take(t, s, claimOf(fmt.Sprint("crowd/", i), "a"), time.Minute, false)
				mustRelease(t, s, c)
			}
		})
	}
	crowd.Wait()
	if d.met.Load() == 0 {
		t.Fatal("the calls of 16 goroutines never met")
	}
	directly(t, s)
}

// A caller gives up while the server does not answer. Its call returns at once, and
// what comes after the call does not overtake it on the other connection.
func TestDirectCallThatIsLeft(t *testing.T) {
	s, proxy := behind(t, patient)
	for round := range 20 {
		d := directly(t, s)
		key := fmt.Sprint("job/", round)
		proxy.Hold(faultproxy.ToServer)
		c := claimOf(key, "a")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		began := time.Now()
		_, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute})
		took := time.Since(began)
		cancel()
		if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a call that was left: %v", err)
		}
		if took > 5*time.Second {
			t.Errorf("a call that was left took %v", took)
		}
		if d.begins(t.Context()) != nil {
			t.Fatal("the next call would be made on the other connection")
		}
		released := make(chan error, 1)
		go func() { released <- s.Release(t.Context(), c) }()
		select {
		case err := <-released:
			t.Fatalf("a release was answered by a server that hears nothing: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		proxy.Heal()
		if err := <-released; err != nil {
			t.Fatalf("the release found no claim: it overtook the acquire: %v", err)
		}
		if state, err := s.Inspect(t.Context(), key); err != nil || len(state.Holders) > 0 {
			t.Fatalf("after the release: %+v, %v", state, err)
		}
	}
}

// One that was abandoned on the shared connection is not overtaken either.
func TestDirectOvertakesNobody(t *testing.T) {
	s, proxy := behind(t, patient)
	for round := range 20 {
		d := directly(t, s)
		d.met.Store(now() + int64(time.Hour)) // so it goes by the shared one
		key := fmt.Sprint("job/", round)
		proxy.Hold(faultproxy.ToServer)
		c := claimOf(key, "a")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute})
		cancel()
		if !errors.Is(err, driver.ErrUnknown) {
			t.Fatalf("an abandoned call: %v", err)
		}
		d.met.Store(0)
		released := make(chan error, 1)
		go func() { released <- s.Release(t.Context(), c) }()
		<-time.After(20 * time.Millisecond)
		proxy.Heal()
		if err := <-released; err != nil {
			t.Fatalf("the release found no claim: it overtook the acquire: %v", err)
		}
	}
}

// Both connections are cut while no call is under way. The next call is served, as it
// would be with one connection.
func TestConnectionsCutWhileIdle(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		testserver.NeedRedis(t)
		server := testserver.Redis(t)
		cutWhileIdle(t, server, Server{Addrs: []string{server.Addr}})
	})
	t.Run("encrypted", func(t *testing.T) { // where the end is announced by something to be read
		t.Parallel()
		server, cfg := encrypted(t)
		cutWhileIdle(t, server, cfg)
	})
}

func cutWhileIdle(t *testing.T, server *testserver.RedisServer, cfg Server) {
	s, err := Open(t.Context(), cfg, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for range 20 {
		d := directly(t, s)
		noticed := func() bool {
			links := s.client.(ruClient).links
			links.mu.Lock()
			defer links.mu.Unlock()
			for l := range links.open {
				if l.aside == nil || l.isOpen() {
					return false
				}
			}
			return now()-d.used.Load() > rest
		}
		if _, err := server.Do("CLIENT", "KILL", "TYPE", "normal"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is noticed that both are cut", 5*time.Second, noticed)
		eventually(t, "the shared one is made again", 5*time.Second, func() bool {
			_, err := s.ownInfo(t.Context(), "server")
			return err == nil
		})
		c, _ := take(t, s, claimOf("job", "a"), time.Minute, false)
		mustRelease(t, s, c)
	}
}

// The direct connection is silent after it was idle, as where a NAT has forgotten it:
// that costs no call.
func TestDirectForgottenWhileIdle(t *testing.T) {
	s, proxy := behind(t)
	d := directly(t, s)
	proxy.HalfOpen()
	d.used.Store(now() - 2*idle)
	d.met.Store(0)
	calls := s.client.(ruClient).links.lanes.all[0]
	before := d.line.Load()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		_, err := s.Acquire(ctx, driver.Request{Claim: claimOf("k", "a"), TTL: time.Minute})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if before.left.Load() || calls.order.Late() {
		t.Error("a call went by a connection that was not asked before")
	}
}

// The store is closed while a call waits for an answer that never comes.
func TestCloseWithADirectCall(t *testing.T) {
	s, proxy := behind(t, patient)
	d := directly(t, s)
	proxy.Swallow(faultproxy.ToClient)
	called := make(chan error, 1)
	go func() {
		_, err := s.Acquire(context.Background(), driver.Request{Claim: claimOf("job", "a"), TTL: time.Minute})
		called <- err
	}()
	eventually(t, "the call", 5*time.Second, d.turn.Load)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	for what, ended := range map[string]<-chan error{"Close": closed, "the call": called} {
		select {
		case <-ended:
		case <-time.After(8 * time.Second):
			t.Fatalf("%s waits for an answer that does not come", what)
		}
	}
	eventually(t, "the end of all connections", 5*time.Second, func() bool { return proxy.Conns() == 0 })
}

// No goroutine reads from the direct connection while it is idle, so it is looked at.
func TestStands(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for name, tt := range map[string]struct {
		do   func(net.Conn)
		want bool
	}{
		"nothing happens": {func(net.Conn) {}, true},
		"it is closed":    {func(c net.Conn) { c.Close() }, false},
		"it is reset":     {func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); c.Close() }, false},
		"something comes": {func(c net.Conn) { _, _ = c.Write([]byte("-ERR\r\n")) }, false},
	} {
		links := newLinks(Server{Addrs: []string{server.Addr().String()}})
		l, err := links.dialed(t.Context(), server.Addr().String(), nil, true)
		if err != nil {
			t.Fatal(err)
		}
		other, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if !l.isOpen() {
			t.Errorf("%s: it does not stand before", name)
		}
		tt.do(other)
		if tt.want {
			<-time.After(20 * time.Millisecond)
			if !l.isOpen() {
				t.Errorf("%s: it does not stand", name)
			}
		} else {
			eventually(t, name, 5*time.Second, func() bool { return !l.isOpen() })
		}
		l.Close()
		other.Close()
	}
}

// encrypted starts a server with TLS.
func encrypted(t *testing.T) (*testserver.RedisServer, Server) {
	t.Helper()
	testserver.NeedRedis(t)
	web := httptest.NewUnstartedServer(nil) // has a certificate for 127.0.0.1
	web.StartTLS()
	t.Cleanup(web.Close)
	own := web.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	addr := testserver.FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	cert := file("cert", "CERTIFICATE", own.Certificate[0])
	server := testserver.Redis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-ca-cert-file", cert,
		"--tls-key-file", file("key", "PRIVATE KEY", key), "--tls-auth-clients", "no")
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	return server, Server{Addrs: []string{addr}, TLS: &tls.Config{RootCAs: roots}}
}

// With TLS, a password and another database it is no different.
func TestDirectEncrypted(t *testing.T) {
	t.Parallel()
	server, cfg := encrypted(t)
	if _, err := server.Do("CONFIG", "SET", "requirepass", "secret"); err != nil {
		t.Fatal(err)
	}
	cfg.Password, cfg.DB = "secret", 3
	links := newLinks(cfg)
	patient(links)
	s, err := open(t.Context(), cfg, links, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 5 {
		d := directly(t, s)
		server.Stop()
		c := claimOf("job", "a")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute})
		cancel()
		if !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("a call that was left: %v", err)
		}
		if d.begins(t.Context()) != nil {
			t.Fatal("the next call would be made on the other connection")
		}
		server.Cont()
		mustRelease(t, s, c)
	}
}

// A caller gives up while its request is written to a connection that takes no more.
// The server never gets that request, so the store does not wait for its answer.
func TestLeaveWhileWriting(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	links := newLinks(Server{Addrs: []string{server.Addr().String()}})
	l, err := links.dialed(t.Context(), server.Addr().String(), nil, true)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := l.Write(make([]byte, 64<<20))
		l.Close() // as rueidis does
		ended <- err
	}()
	eventually(t, "it is being written", 5*time.Second, func() bool { return l.since.Load() != 0 })
	l.leave()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("64 MB were written, and nothing read them")
		}
	case <-time.After(time.Second):
		t.Fatal("a caller that leaves waits until all is written")
	}
	<-l.ended
}

// The beginning of an answer comes, and no more. The connection is given up as one on
// which nothing comes is.
func TestPartOfAnAnswer(t *testing.T) {
	s, proxy := behind(t)
	d := directly(t, s)
	proxy.Rewrite(faultproxy.ToClient, func(b []byte) []byte { return b[:2] })
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		_, err := s.Acquire(context.Background(), driver.Request{Claim: claimOf("job", "a"), TTL: time.Minute})
		ended <- err
	}()
	eventually(t, "the call", 5*time.Second, func() bool { return d.turn.Load() })
	select {
	case err := <-ended:
		if took := time.Since(began); !errors.Is(err, driver.ErrUnknown) || took < answerPatience {
			t.Errorf("after %v: %v", took, err)
		}
	case <-time.After(4 * answerPatience):
		t.Fatal("a call waits for ever for the rest of its answer")
	}
}

// Where callers give up sooner than the server answers, the store does not make a new
// connection for each of them.
func TestDirectIsNotMadeAnewTooOften(t *testing.T) {
	s, proxy := behind(t)
	directly(t, s)
	made := s.life.connections.Load()
	proxy.Delay(faultproxy.ToServer, 8*time.Millisecond)
	began := time.Now()
	for time.Since(began) < 2500*time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, _ = s.Inspect(ctx, "k") // may be answered
		cancel()
	}
	if n := s.life.connections.Load() - made; n > uint64(time.Since(began)/time.Second)+1 {
		t.Errorf("%d connections in %v", n, time.Since(began))
	}
}

// Two servers have one address, and the one with the shared connection goes on serving
// it. Nothing goes to the other.
func TestDirectStaysOnTheServer(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	a, b := testserver.Redis(t), testserver.Redis(t)
	proxy := faultproxy.New(t, a.Addr)
	s, err := Open(t.Context(), Server{Addrs: []string{proxy.Addr}}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d := s.client.(ruClient).direct
	proxy.Retarget(b.Addr)
	eventually(t, "a connection to the other", 20*time.Second, func() bool {
		if _, err := s.Inspect(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		return d.again.Load() > now()
	})
	c, _ := take(t, s, claimOf("job", "a"), time.Minute, false)
	if reply, err := b.Do("DBSIZE"); err != nil || reply != "0" {
		t.Errorf("the other one has %s keys, %v", reply, err)
	}
	if r := renewOne(t, s, c, time.Minute); r.State != driver.Held {
		t.Errorf("%+v", r)
	}
	proxy.Cut() // now the shared one goes there, too
	eventually(t, "both are on the other", 20*time.Second, func() bool {
		d.again.Store(0)
		_, err := s.Inspect(t.Context(), "k")
		return err == nil && d.line.Load() != nil
	})
}

// A context that calls have used ends while no call is under way, and later during one.
// Only calls with that context fail, and only the second time the connection is lost.
func TestEndOfAContext(t *testing.T) {
	s, proxy := behind(t, patient)
	d := directly(t, s)
	look := func(ctx context.Context) error {
		_, err := s.Inspect(ctx, "k")
		return err
	}
	one, endOne := context.WithCancel(t.Context())
	two, endTwo := context.WithCancel(t.Context())
	defer endTwo()
	type odd struct { // two of these cannot be compared
		context.Context
		_ []int
	}
	l := d.line.Load()
	for range 3 {
		for _, ctx := range []context.Context{one, two, odd{Context: t.Context()}} {
			if err := look(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The same one serves all calls with a context, beside those with another.
	ending := d.ends.of(one, l)
	other := d.ends.of(two, l)
	if d.ends.of(one, l) != ending || d.ends.of(two, l) != other {
		t.Error("a context has got another ending")
	}
	type pooled struct{ context.Context } // one that serves one request after another
	again := &pooled{}
	for range 3 {
		request, end := context.WithCancel(t.Context())
		again.Context = request
		if err := look(again); err != nil {
			t.Fatal(err)
		}
		of := d.ends.of(again, l)
		end()
		eventually(t, "the end of a request is noticed", 10*time.Second, func() bool { return of.state.Load() == ended })
	}
	ending = d.ends.of(one, l)
	endOne()
	eventually(t, "the end of a context is noticed", 10*time.Second, func() bool { return ending.state.Load() == ended })
	if err := look(one); !errors.Is(err, context.Canceled) {
		t.Errorf("a call after the end of its context: %v", err)
	}
	if a := d.run(one, wire.Call{}, l, nil); !errors.Is(a.Err, context.Canceled) || !errors.Is(a.Err, wire.ErrNotSent) {
		t.Errorf("a call whose context ends as it begins: %v", a.Err)
	}
	if err := look(two); err != nil || d.line.Load() != l {
		t.Errorf("another call: %v, or the connection was lost", err)
	}
	other = d.ends.of(two, l)
	proxy.Hold(faultproxy.ToServer)
	looked := make(chan error, 1)
	go func() { looked <- look(two) }()
	eventually(t, "the call is under way", 10*time.Second, func() bool { return other.state.Load() == underWay })
	endTwo()
	if err := <-looked; !errors.Is(err, context.Canceled) {
		t.Errorf("a call during which its context ended: %v", err)
	}
	proxy.Heal()
	if d.line.Load() == l {
		t.Error("the connection is still used, though an answer is due on it")
	}
	for _, e := range d.ends.last {
		if e != nil {
			t.Error("a context is kept with a connection that was lost")
		}
	}
}
