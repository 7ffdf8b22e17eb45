package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
)

// A server at a Unix socket is reached by those who can write it, and no browser's rules hold.
func TestServeOnSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "serve-") // t.TempDir makes paths that are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path, audit := filepath.Join(dir, "s"), filepath.Join(dir, "audit")
	at := []string{"serve", "--listen", "unix:" + path, "--mode", "0600", "--audit", audit}
	on := func(flags ...string) *servedProcess {
		t.Helper()
		s := &servedProcess{t: t, dir: dir, url: "http://any-host"}
		s.cmd, s.errs = startBaton(t, dir, append(at, flags...)...)
		s.errs.await(t, "listens at unix:"+path+"$")
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
		t.Cleanup(transport.CloseIdleConnections)
		s.http = &http.Client{Transport: transport}
		return s
	}
	s := on()
	if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	s.held("", `{"key":"a/x","ttl_ms":60000}`)
	s.wants(http.StatusOK, "", "Locks/Break", `{"key":"a/x"}`)
	s.wrote("broken", `"remote":"unix"`)
	_, second := startBaton(t, dir, at...)
	second.await(t, "another agent or server lives at this socket")
	stop := func() {
		t.Helper()
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := s.cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	stop()
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}

	s = on("--roles", writeRoles(t, dir, ""), "--trust-proxy", "unix")
	forwarded := s.request("", "Locks/List", "{}")
	forwarded.Header.Set("X-Forwarded-For", "192.0.2.1, 198.51.100.9")
	if a := s.do(forwarded); a.Status != http.StatusUnauthorized {
		t.Errorf("without an access token: %v", a)
	}
	s.wrote("refused", `"remote":"198.51.100.9"`)
	s.held(tokenA, `{"key":"a/x"}`)
	stop()
}

// get asks for what nobody may have without an access token, so that the audit has the
// address.
const getRefused = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"

// What proxies say of their clients is in the audit, if the proxy is one that is believed.
func TestServeTrustsProxies(t *testing.T) {
	t.Parallel()
	v2 := func(source, destination net.Addr) string {
		t.Helper()
		var b bytes.Buffer
		if _, err := proxyproto.HeaderProxyFromAddrs(2, source, destination).WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	tcp := func(addr string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	const cut = 20 * time.Second // until a connection is closed that says nothing more
	for name, c := range map[string]struct {
		text   string
		remote string // in the audit; "127.0.0.1:" is that of the connection
		status string // "": no answer
	}{
		"nothing":                   {getRefused + "\r\n", "127.0.0.1:", "401"},
		"PROXY, version 1":          {"PROXY TCP4 198.51.100.1 127.0.0.1 1001 80\r\n" + getRefused + "\r\n", "198.51.100.1:1001", "401"},
		"version 1, IPv6":           {"PROXY TCP6 2001:db8::1 ::1 1002 80\r\n" + getRefused + "\r\n", "[2001:db8::1]:1002", "401"},
		"version 1, unknown":        {"PROXY UNKNOWN\r\n" + getRefused + "\r\n", "127.0.0.1:", "401"},
		"PROXY, version 2":          {v2(tcp("198.51.100.3:1003"), tcp("127.0.0.1:80")) + getRefused + "\r\n", "198.51.100.3:1003", "401"},
		"version 2, a socket":       {v2(&net.UnixAddr{Name: "/\n\x1b[2J", Net: "unix"}, &net.UnixAddr{Name: "/x", Net: "unix"}) + getRefused + "\r\n", `unix"`, "401"},
		"X-Forwarded-For":           {getRefused + "X-Forwarded-For: 192.0.2.1, 198.51.100.4\r\n\r\n", `198.51.100.4"`, "401"},
		"two of them":               {getRefused + "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 198.51.100.5:99\r\n\r\n", `198.51.100.5"`, "401"},
		"through two proxies":       {getRefused + "X-Forwarded-For: 192.0.2.1, 198.51.100.6, 127.0.0.1\r\n\r\n", `198.51.100.6"`, "401"},
		"both, of another network":  {"PROXY TCP4 198.51.100.7 127.0.0.1 1007 80\r\n" + getRefused + "X-Forwarded-For: 192.0.2.1\r\n\r\n", "198.51.100.7:1007", "401"},
		"both, of a proxy":          {"PROXY TCP4 127.0.0.1 127.0.0.1 1008 80\r\n" + getRefused + "X-Forwarded-For: 198.51.100.8\r\n\r\n", `198.51.100.8"`, "401"},
		"no address":                {getRefused + "X-Forwarded-For: 192.0.2.1, <script>\r\n\r\n", "127.0.0.1:", "401"},
		"an empty one":              {getRefused + "X-Forwarded-For: 192.0.2.1,\r\n\r\n", "127.0.0.1:", "401"},
		"a thousand":                {getRefused + "X-Forwarded-For: 192.0.2.1" + strings.Repeat(",127.0.0.1", 1000) + "\r\n\r\n", "127.0.0.1:", "401"},
		"Forwarded":                 {getRefused + "Forwarded: for=192.0.2.1\r\n\r\n", "127.0.0.1:", "401"},
		"PROXY twice":               {"PROXY TCP4 198.51.100.9 127.0.0.1 1009 80\r\nPROXY TCP4 192.0.2.1 127.0.0.1 1 80\r\n" + getRefused + "\r\n", "", "400"},
		"a bad address":             {"PROXY TCP4 192.0.2.1.1 127.0.0.1 1 80\r\n" + getRefused + "\r\n", "", ""},
		"half a header":             {"PROXY TCP4 192.0.2.1 ", "", ""},
		"a line without end":        {"PROXY TCP4 " + strings.Repeat("1", 10_000), "", ""},
		"version 2, cut off":        {"\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff", "", ""},
		"version 2, another length": {"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x01x" + getRefused + "\r\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, trusted := range []bool{true, false} {
				dir := t.TempDir()
				flags, want, status := []string{"--roles", writeRoles(t, dir, ""), "--trust-proxy", "127.0.0.0/8"}, c.remote, c.status
				if !trusted {
					flags[3] = "127.0.0.2"
					if want, status = "127.0.0.1:", "401"; !strings.HasPrefix(c.text, "GET") {
						want, status = "", "400"
					}
				}
				s := startServe(t, dir, flags...)
				conn := s.dial()
				defer conn.Close()
				began := time.Now()
				if err := conn.SetDeadline(began.Add(patience)); err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(conn, c.text) // it may be closed meanwhile
				back, _ := io.ReadAll(conn)
				if _, got, _ := strings.Cut(string(back), " "); status == "" && len(back) > 0 && !strings.HasPrefix(got, "400") || status != "" && len(back) > 0 && !strings.HasPrefix(got, status) || trusted && status != "" && len(back) == 0 {
					t.Errorf("believed %v: it got %q, want %q", trusted, back, status)
				}
				if took := time.Since(began); took > cut {
					t.Errorf("believed %v: the connection was closed after %v", trusted, took)
				}
				if want != "" {
					s.wrote("refused", `"remote":"`+want)
				}
				if text := s.audit(); strings.Contains(text, "192.0.2.1") || !trusted && strings.Contains(text, "198.51.100.") {
					t.Errorf("believed %v: the audit has what a client has invented:\n%s", trusted, text)
				}
			}
		})
	}
}

// The PROXY protocol comes before TLS. Those who say nothing are closed, and hold up nobody.
func TestServeTrustsProxiesBeforeTLS(t *testing.T) {
	t.Parallel()
	dir, ours := t.TempDir(), newAuthority(t, "ours")
	cert, key := ours.server()
	s := startServe(t, dir, "--roles", writeRoles(t, dir, ""), "--tls-cert", cert, "--tls-key", key, "--trust-proxy", "127.0.0.1")
	silent := make([]net.Conn, 50)
	for i := range silent {
		silent[i] = s.dial()
		defer silent[i].Close()
		if i%2 == 0 {
			fmt.Fprint(silent[i], "PROX")
		}
	}
	conn := s.dial()
	fmt.Fprint(conn, "PROXY TCP4 198.51.100.1 127.0.0.1 1001 80\r\n")
	back, _ := s.raw(tls.Client(conn, &tls.Config{RootCAs: ours.pool(), ServerName: "127.0.0.1"}), getRefused+"\r\n")
	if !strings.HasPrefix(back, "HTTP/1.1 401 ") {
		t.Errorf("it got %q", back)
	}
	s.wrote("refused", `"remote":"198.51.100.1:1001"`)
	s.as(t, ours.pool()).held(tokenA, `{"key":"a/x"}`) // a proxy that says nothing
	for _, conn := range silent {
		if back, took := s.raw(conn, ""); took > 20*time.Second {
			t.Errorf("%q after %v", back, took)
		}
	}
}
