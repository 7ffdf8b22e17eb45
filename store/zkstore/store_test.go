package zkstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// Nodes are made for one user, and no other user may use them.
func TestAccessLists(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	root := "/" + driver.NewID()
	joe, below := Server{Addrs: []string{server.Addr}, User: "joe", Password: "s3cret:word"}, Config{Root: root}
	s, same := mustOpen(t, joe, below), mustOpen(t, joe, below)
	r := writer("k")
	hold(t, s, r)
	next := writer("k")
	next.Queue = false
	if _, err := same.Acquire(t.Context(), next); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the same user: %v", err)
	}
	stranger := openOn(t, root, server.Addr)
	_, acquired := stranger.Acquire(t.Context(), next)
	_, inspected := stranger.Inspect(t.Context(), "k")
	_, broken := stranger.Break(t.Context(), "k")
	for what, err := range map[string]error{"acquire": acquired, "inspect": inspected, "break": broken} {
		if err == nil || !strings.Contains(err.Error(), "access list") || errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("a stranger's %s: %v", what, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s shows the password: %v", what, err)
		}
	}
	if a := renew(t, s, r); a.State != driver.Held {
		t.Errorf("renewed: %+v", a)
	}
	acl, _, err := s.conn.GetACL(root + "/k")
	if err != nil || len(acl) != 1 || acl[0].Scheme != "digest" || !strings.HasPrefix(acl[0].ID, "joe:") {
		t.Errorf("access list %+v, %v", acl, err)
	}
	release(t, s, r)
}

// The user is known again after a reconnect, and in a new session.
func TestUserAfterReconnect(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	s := mustOpen(t, Server{Addrs: []string{server.Addr}, User: "joe", Password: "secret"}, Config{Root: "/joes"})
	r := writer("k")
	hold(t, s, r)
	server.Restart()
	// Only the user may make a node there. What was held is lost if the start
	// took longer than its TTL.
	insist(t, s, writer("another"))
	eventually(t, "an answer about the holder", func() bool { return renew(t, s, r).State != driver.Unknown })
}

// A closed store keeps the session until its claims have ended: their holders may go on
// trusting them.
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

// The client speaks TLS to a proxy before the server.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	web := httptest.NewUnstartedServer(nil) // for its certificate
	web.StartTLS()
	defer web.Close()
	front, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: web.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	go func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				back, err := net.Dial("tcp", server.Addr)
				if err != nil {
					return
				}
				defer back.Close()
				go func() {
					_, _ = io.Copy(back, c) // ends with either side
					back.Close()
				}()
				_, _ = io.Copy(c, back)
			}()
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	s := mustOpen(t, Server{Addrs: []string{front.Addr().String()}, TLS: &tls.Config{RootCAs: roots}}, Config{Root: "/tls"})
	r := writer("k")
	hold(t, s, r)
	release(t, s, r)
}
