package httpguard

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/internal/remote"
	"github.com/batonhq/baton/internal/roles"
)

// patience bounds every wait.
const patience = 30 * time.Second

func rolesOf(t *testing.T) *roles.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "roles")
	if err := os.WriteFile(path, []byte("a "+roles.Credential("secret")+" a/=lock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, _, err := roles.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// What other machines can reach needs TLS and callers.
func TestUnsafe(t *testing.T) {
	t.Parallel()
	known := rolesOf(t)
	none := filepath.Join(t.TempDir(), "none") // such files are read only if all else is safe
	for _, c := range []struct {
		cfg  Config
		want string // "": safe; "file": it goes on to the files
	}{
		{Config{Address: "127.0.0.1:0"}, ""},
		{Config{Address: "localhost:0"}, ""},
		{Config{Address: "127.8.9.10:0"}, ""},
		{Config{Address: "[::1]:0"}, ""},
		{Config{Address: "127.0.0.1:0", Roles: known}, ""},
		{Config{Address: "127.0.0.1:0", Certificate: none, Key: none}, "file"},
		{Config{Address: ":0"}, "could reach this address"},
		{Config{Address: "0.0.0.0:0"}, "could reach this address"},
		{Config{Address: "[::]:0"}, "could reach this address"},
		{Config{Address: "[::ffff:0.0.0.0]:0"}, "could reach this address"},
		{Config{Address: "10.0.0.1:0"}, "could reach this address"},
		{Config{Address: ":0", Roles: known}, "read the access tokens on the way"},
		{Config{Address: ":0", Roles: known, Plaintext: true}, ""},
		{Config{Address: ":0", Plaintext: true}, "and do everything"},
		{Config{Address: ":0", ClientCA: none, Plaintext: true}, "certificates of clients need TLS"},
		{Config{Socket: true}, ""},
		{Config{Socket: true, Roles: known}, ""},
		{Config{Socket: true, Certificate: none, Key: none}, "file"},
		{Config{Socket: true, ClientCA: none}, "certificates of clients need TLS"},
		{Config{Address: ":0", Certificate: none, Key: none}, "and do everything"},
		{Config{Address: ":0", Certificate: none, Key: none, Roles: known}, "file"},
		{Config{Address: ":0", Certificate: none, Key: none, ClientCA: none}, "file"},
		{Config{Address: "127.0.0.1:0", Certificate: none}, "both the certificate and its key"},
		{Config{Address: "127.0.0.1:0", Key: none}, "both the certificate and its key"},
		{Config{Address: "127.0.0.1:0", ClientCA: none}, "certificates of clients need TLS"},
		{Config{Address: ":0", ClientCA: none}, "certificates of clients need TLS"},
		{Config{Address: "127.0.0.1"}, "HOST:PORT"},
		{Config{Address: "127.0.0.1:x"}, "HOST:PORT"},
		{Config{}, "could reach this address"},
	} {
		_, err := New(c.cfg)
		var unsafe *UnsafeError
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.cfg, err)
		case c.want == "file" && !errors.As(err, new(*FileError)):
			t.Errorf("%+v: %v, want one about a file", c.cfg, err)
		case c.want != "" && c.want != "file" && (!errors.As(err, &unsafe) || !strings.Contains(unsafe.Reason, c.want)):
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}

// A handler behind a door knows the caller; in front of it there is none.
func TestCaller(t *testing.T) {
	t.Parallel()
	var denied []string
	d, err := New(Config{
		Address: "127.0.0.1:0", Roles: rolesOf(t), Open: []string{"/healthz"},
		Denied: func(from string, err error) { denied = append(denied, from+" "+err.Error()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if d.Everyone() || d.TLS() != nil {
		t.Error("all may do everything, or TLS is spoken")
	}
	h := d.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := Caller(r)
		if err != nil {
			_, _ = io.WriteString(w, err.Error())
			return
		}
		_, _ = io.WriteString(w, c.Name())
	}))
	for _, c := range []struct {
		path, token string
		status      int
		want        string
	}{
		{"/x", "secret", 200, "a"},
		{"/x", "", 401, "unauthenticated"},
		{"/x", "wrong", 401, "the access token is that of no caller"},
		{"/healthz", "", 200, ErrNobody.Error()},
		{"/healthz", "secret", 200, ErrNobody.Error()}, // a path without a caller has none
		{"/healthz/", "", 401, "unauthenticated"},
	} {
		r := httptest.NewRequest("GET", c.path, nil)
		if c.token != "" {
			r.Header.Set("Authorization", "bearer "+c.token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s with %q: %d %s, want %d %s", c.path, c.token, w.Code, w.Body, c.status, c.want)
		}
	}
	if len(denied) != 3 || !strings.HasPrefix(denied[0], "192.0.2.1:1234 ") || strings.Contains(strings.Join(denied, ""), "wrong") {
		t.Errorf("told of %q", denied)
	}
}

// A caller that is removed during its request is unknown from then on.
func TestCallerThatIsRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "roles")
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(name+" "+roles.Credential("secret of "+name)+" a/=lock\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a")
	f, _, err := roles.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Address: "127.0.0.1:0", Roles: f})
	if err != nil {
		t.Fatal(err)
	}
	h := d.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if c, err := Caller(r); err != nil || c.Name() != "a" {
			t.Errorf("at first: %v, %v", c, err)
		}
		write("b")
		if _, _, err := f.Reload(); err != nil {
			t.Error(err)
		}
		if c, err := Caller(r); err == nil {
			t.Errorf("it is %s still", c.Name())
		}
	}))
	r := httptest.NewRequest("GET", "/x", nil)
	r.Header.Set("Authorization", "Bearer secret of a")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Error(w.Code)
	}
}

// A proxy repeats headers that another site's page can cause. Its own question is let
// through, and no other request with them.
func TestProxied(t *testing.T) {
	t.Parallel()
	d, err := New(Config{Address: "127.0.0.1:0", Proxied: func(r *http.Request) bool { return r.URL.Path == "/v1/limit" }})
	if err != nil {
		t.Fatal(err)
	}
	h := d.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, c := range []struct {
		path, host string
		want       int
	}{
		{"/v1/limit", "localhost", 200},
		{"/x", "localhost", 403},
		{"/v1/limit", "evil.example", 403},
	} {
		for name, value := range map[string]string{"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"} {
			r := httptest.NewRequest("POST", c.path, nil)
			r.Host = c.host
			r.Header.Set(name, value)
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != c.want {
				t.Errorf("%+v with %s: %d", c, name, w.Code)
			}
		}
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	d, err := New(Config{Address: "127.0.0.1:0", MaxConns: 6})
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 10)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func(from string) net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	enters := func() net.Conn {
		t.Helper()
		select {
		case c := <-accepted:
			return c
		case <-time.After(patience):
			t.Fatal("no connection was accepted")
			return nil
		}
	}
	closed := func(c net.Conn) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection beyond the bound is not closed: %v", err)
		}
	}
	var inside []net.Conn
	for range 3 { // half of them from one address
		dial("127.0.0.1")
		inside = append(inside, enters())
	}
	closed(dial("127.0.0.1"))
	for range 3 {
		dial("127.0.0.2")
		inside = append(inside, enters())
	}
	closed(dial("127.0.0.3"))
	_ = inside[0].Close()
	_ = inside[0].Close() // twice is once
	dial("127.0.0.3")
	enters()
	closed(dial("127.0.0.3"))
	bounds := l.(*listener)
	bounds.mu.Lock()
	defer bounds.mu.Unlock()
	if bounds.open != 6 || bounds.from[netip.MustParseAddr("127.0.0.1")] != 2 {
		t.Errorf("%d are open: %v", bounds.open, bounds.from)
	}
}

// The clients of a trusted proxy are bounded each by its address, and the proxy is not.
func TestConnectionsOfProxyAreBounded(t *testing.T) {
	t.Parallel()
	proxies := remote.Addresses{V4: 32, V6: 128, Form: remote.XForwardedFor, Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	d, err := New(Config{Address: "127.0.0.1:0", MaxConns: 6, Proxies: proxies})
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connect := func(client string) net.Conn {
		t.Helper()
		there, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { there.Close() })
		if client != "" {
			client = "PROXY TCP4 " + client + " 127.0.0.1 1001 80\r\n"
		}
		if _, err := io.WriteString(there, client+"x"); err != nil {
			t.Fatal(err)
		}
		here, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { here.Close() })
		return here
	}
	open := func(client string, want bool) net.Conn {
		t.Helper()
		c := connect(client)
		if _, err := c.Read(make([]byte, 1)); (err == nil) != want {
			t.Errorf("%s: %v", client, err)
		}
		if !want {
			_ = c.Close()
		}
		return c
	}
	const greedy, other = "198.51.100.1", "198.51.100.2"
	first := open(greedy, true)
	for range 2 { // half of all
		open(greedy, true)
	}
	open(greedy, false)
	open(other, true)
	open("", true)
	_ = first.Close()
	_ = first.Close() // twice is once
	open(greedy, true)
	bounds := l.(*tellers).bounds
	bounds.mu.Lock()
	defer bounds.mu.Unlock()
	if n := bounds.from[netip.MustParseAddr(greedy)]; bounds.open != 5 || n != 3 {
		t.Errorf("%d are open, %d of one client: %v", bounds.open, n, bounds.from)
	}
}

// A client that does not read ends its connection, not more.
func TestClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		c := &conn{Conn: theirs, leave: func() {}}
		began := time.Now()
		_, err := c.Write([]byte("x"))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != writeTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		// A deadline of the server's own stays.
		began = time.Now()
		if err := c.SetWriteDeadline(began.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err = c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(writeTimeout - time.Second)
			_, _ = io.Copy(io.Discard, ours)
		}()
		if _, err = c.Write([]byte("x")); err != nil {
			t.Errorf("one that reads in time: %v", err)
		}
	})
}

// A link to the page may be followed from another site; nothing else may come from there.
func TestLinkFromAnotherSite(t *testing.T) {
	t.Parallel()
	d, err := New(Config{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	h := d.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, c := range []struct {
		method, path, mode, dest string
		want                     int
	}{
		{"GET", "/", "navigate", "document", 200},
		{"HEAD", "/", "navigate", "document", 200},
		{"POST", "/", "navigate", "document", 403},
		{"GET", "/v1/limit", "navigate", "document", 403},
		{"GET", "/", "navigate", "iframe", 403},
		{"GET", "/", "no-cors", "image", 403},
		{"GET", "/", "", "", 403},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		r.Host = "localhost"
		for k, v := range map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": c.mode, "Sec-Fetch-Dest": c.dest} {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%+v: %d", c, w.Code)
		}
	}
}

func TestFilesOfTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty := file("empty", "", 0o600)
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Certificate: empty, Key: empty}, "failed to find any PEM data"},
		{Config{Certificate: dir, Key: empty}, "no regular file"},
		{Config{Certificate: dir + "/none", Key: empty}, "no such file"},
		{Config{Certificate: empty, Key: file("open.key", "", 0o644)}, "every user can read it"},
		{Config{Certificate: file("open.crt", "", 0o666), Key: empty}, "other users could change it"},
	} {
		c.cfg.Address = "127.0.0.1:0"
		_, err := New(c.cfg)
		if of, ok := errors.AsType[*FileError](err); !ok || !strings.Contains(of.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	if (&Door{}).Reload() != nil {
		t.Error("a door without TLS cannot be reloaded")
	}
}
