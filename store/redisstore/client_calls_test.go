package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// A caller gives up while the server does not answer, by a deadline. Its call returns at
// once, and what comes after the call does not overtake it on another connection.
func TestCallThatIsLeft(t *testing.T) {
	s, proxy := behind(t, patient)
	for round := range 20 {
		key := fmt.Sprint("job/", round)
		warm, _ := take(t, s, claimOf("warm", "a"), time.Minute, false) // so the server knows the scripts
		mustRelease(t, s, warm)
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

// A caller cancels its context while the server falls silent. Its call ends when the
// connection is given up, and those after it at once.
func TestCancelledCallOfOpen(t *testing.T) {
	s, proxy := behind(t)
	take(t, s, claimOf("warm", "a"), time.Minute, false)
	proxy.Hold(faultproxy.ToClient)
	defer proxy.Heal()
	for i, within := range []time.Duration{answerPatience + 700*time.Millisecond, 700 * time.Millisecond, 700 * time.Millisecond} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(200*time.Millisecond, cancel)
		began := time.Now()
		_, err := s.Acquire(ctx, driver.Request{Claim: claimOf(fmt.Sprint(i), "a"), TTL: time.Minute})
		if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) || time.Since(began) > within {
			t.Errorf("call %d: %v after %v, want it within %v", i, err, time.Since(began), within)
		}
	}
}

// No answer reaches another call, whatever the network and the contexts do.
func TestAnswersAreTheirOwn(t *testing.T) {
	s, proxy := behind(t)
	echo := wire.NewScript("echo", func() string { return "return ARGV[1]" })
	end := time.Now().Add(2 * time.Second)
	if testing.Short() {
		end = time.Now().Add(time.Second)
	}
	var good atomic.Int64
	var callers sync.WaitGroup
	for g := range 16 {
		callers.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				within := rand.N(6 * time.Millisecond)
				if i%8 == 1 { // long enough for a connection on a busy machine, too
					within = time.Second
				}
				ctx, cancel := context.WithTimeout(t.Context(), within)
				if i%3 == 0 && i%8 != 1 {
					time.AfterFunc(rand.N(3*time.Millisecond), cancel)
				}
				want := fmt.Sprint(g, "-", i)
				v, err := s.run(ctx, echo, []string{fmt.Sprint("k", g)}, []string{want})
				cancel()
				if err == nil && v != want {
					t.Errorf("asked for %s, answered %v", want, v)
				} else if err == nil {
					good.Add(1)
				}
			}
		})
	}
	for i := 0; time.Now().Before(end); i++ {
		switch i % 3 {
		case 0: // answers in pieces
			proxy.Slice(faultproxy.ToClient, 7)
			proxy.Delay(faultproxy.ToClient, rand.N(4*time.Millisecond))
		case 1:
			proxy.Cut() // in the middle of some
			proxy.Hold(faultproxy.ToClient)
		case 2:
			proxy.Heal()
		}
		<-time.After(30 * time.Millisecond) // a time under each fault
	}
	proxy.Heal()
	callers.Wait()
	if good.Load() == 0 {
		t.Error("no call was answered")
	}
}

// All connections are cut while no call is under way: no call is lost.
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
		cfg.DB = 3
		cutWhileIdle(t, server, cfg)
	})
}

func cutWhileIdle(t *testing.T, server *testserver.RedisServer, cfg Server) {
	s := through(cfg)(t, Config{})
	for range 20 {
		c, _ := take(t, s, claimOf("job", "a"), time.Minute, false)
		mustRelease(t, s, c)
		if _, err := server.Do("CLIENT", "KILL", "TYPE", "normal"); err != nil {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond) // until this machine knows
	}
}

// The beginning of an answer comes, and no more. The connection is given up as one on
// which nothing comes is.
func TestPartOfAnAnswer(t *testing.T) {
	s, proxy := behind(t)
	take(t, s, claimOf("warm", "a"), time.Minute, false)
	proxy.Rewrite(faultproxy.ToClient, func(b []byte) []byte { return b[:2] })
	began := time.Now()
	_, err := s.Acquire(context.Background(), driver.Request{Claim: claimOf("job", "a"), TTL: time.Minute})
	if took := time.Since(began); !errors.Is(err, driver.ErrUnknown) || took < answerPatience || took > 4*answerPatience {
		t.Errorf("after %v: %v", took, err)
	}
}

// Where callers give up sooner than the server answers, the store does not make a new
// connection for each of them.
func TestCallersThatDoNotWait(t *testing.T) {
	s, proxy := behind(t)
	take(t, s, claimOf("warm", "a"), time.Minute, false)
	made := s.life.connections.Load()
	proxy.Delay(faultproxy.ToServer, 8*time.Millisecond)
	began := time.Now()
	for time.Since(began) < 2500*time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, _ = s.Inspect(ctx, "k") // may be answered
		cancel()
	}
	// One a second is lost, and what several callers have under way is more than one.
	if n := s.life.connections.Load() - made; n > 2*uint64(time.Since(began)/time.Second)+8 {
		t.Errorf("%d connections in %v", n, time.Since(began))
	}
}

// Many callers have a password that is wrong by now. The server is not asked for each of
// their attempts, and they are served soon after it is mended.
func TestDeniedConnectionsArePaused(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	s := through(Server{Addrs: []string{server.Addr}, Username: "worker", Password: "old"})
	if _, err := server.Do("ACL", "SETUSER", "worker", "on", ">old", "~*", "&*", "+@all"); err != nil {
		t.Fatal(err)
	}
	store := s(t, Config{})
	if _, err := server.Do("ACL", "SETUSER", "worker", "<old", ">new"); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Do("CLIENT", "KILL", "TYPE", "normal"); err != nil {
		t.Fatal(err)
	}
	made, began := store.life.connections.Load(), time.Now()
	var callers sync.WaitGroup
	for i := range 20 {
		callers.Go(func() {
			for n := 0; time.Since(began) < 1500*time.Millisecond; n++ {
				_, err := store.Acquire(t.Context(), driver.Request{Claim: claimOf(fmt.Sprint(i, n), "a"), TTL: time.Minute})
				if err == nil || n > 0 && !errors.Is(err, driver.ErrDenied) {
					t.Errorf("with an old password: %v, want driver.ErrDenied", err)
				}
				<-time.After(10 * time.Millisecond) // a caller that tries again
			}
		})
	}
	callers.Wait()
	if n := store.life.connections.Load() - made; n > 60 { // the first ones at the same time, and then two times
		t.Errorf("%d connections in %v", n, time.Since(began))
	}
	if _, err := server.Do("ACL", "SETUSER", "worker", ">old"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a grant with the right password", 5*time.Second, func() bool {
		_, err := store.Acquire(t.Context(), driver.Request{Claim: claimOf("mended", "a"), TTL: time.Minute})
		return err == nil
	})
}

// Two servers have one address, and the old one goes on serving its connections. As soon
// as one connection leads to the new one, all calls go there.
func TestOneServerBehindAnAddress(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	a, b := testserver.Redis(t), testserver.Redis(t)
	proxy := faultproxy.New(t, a.Addr)
	s := through(Server{Addrs: []string{proxy.Addr}})(t, Config{})
	var crowd sync.WaitGroup
	use := func(within string) {
		for i := range 16 {
			crowd.Go(func() {
				for range 10 {
					c, _ := take(t, s, claimOf(fmt.Sprint(within, "/", i), "a"), time.Minute, false)
					// The connections may move to the other server before it is released.
					if err := s.Release(t.Context(), c); err != nil && (within != "between" || !errors.Is(err, driver.ErrLost)) {
						t.Errorf("%s: release: %v", within, err)
					}
				}
			})
		}
		crowd.Wait()
	}
	use("before")
	proxy.Retarget(b.Addr)
	made := s.life.connections.Load()
	eventually(t, "a connection to the other", 20*time.Second, func() bool {
		use("between")
		s.pushes.close() // and one more connection, which the subscription needs
		s.pushes.cancel, s.pushes.closed = nil, false
		s.pushes.started.Store(false)
		s.pushes.start()
		return s.life.connections.Load() > made
	})
	eventually(t, "all calls go to the other", 5*time.Second, func() bool {
		if _, err := a.Do("CONFIG", "RESETSTAT"); err != nil {
			t.Fatal(err)
		}
		use("after")
		stats, err := a.Do("INFO", "commandstats")
		return err == nil && !strings.Contains(stats, "cmdstat_evalsha:")
	})
}

// The store is closed while a call waits for an answer that never comes.
func TestCloseWithACall(t *testing.T) {
	s, proxy := behind(t, patient)
	take(t, s, claimOf("warm", "a"), time.Minute, false)
	proxy.Swallow(faultproxy.ToClient)
	called := make(chan error, 1)
	go func() {
		_, err := s.Acquire(context.Background(), driver.Request{Claim: claimOf("job", "a"), TTL: time.Minute})
		called <- err
	}()
	eventually(t, "the call", 5*time.Second, func() bool {
		if s.client.(*client).calls.TryLock() {
			s.client.(*client).calls.Unlock()
			return false
		}
		return true
	})
	began := time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-called; err == nil {
		t.Error("the call was answered")
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("Close and the call took %v", took)
	}
	eventually(t, "the end of all connections", 5*time.Second, func() bool { return proxy.Conns() == 0 })
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
