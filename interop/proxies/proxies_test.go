// Package proxies runs nginx and Caddy in front of an application, as docs/proxies.md
// configures them, and lets them limit its callers through package server.
package proxies

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/httpguard"
	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server"
	"github.com/batonhq/baton/store/memstore"
)

// block is the code on docs/proxies.md that is marked with a name.
func block(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/proxies.md")
	if err != nil {
		t.Fatal(err)
	}
	text, found := pagecode.Marked(string(page), name)
	if !found {
		t.Fatalf("docs/proxies.md has no code marked %s", name)
	}
	return text
}

// site is an application behind a proxy that asks Baton.
type site struct {
	front string // where the proxy listens
	baton *httptest.Server
	app   *httptest.Server
	store *moody
}

// moody is a store whose limits fail when told to.
type moody struct {
	*memstore.Store
	fails atomic.Bool
}

func (m *moody) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	if m.fails.Load() {
		return limits.Taken{}, driver.ErrUnavailable
	}
	return m.Store.Take(ctx, r)
}

// newSite starts an application, and Baton with the rules of the page, and fills their
// addresses into the configuration.
func newSite(t *testing.T, config string) (s *site, filled string) {
	t.Helper()
	s = &site{store: &moody{Store: memstore.New()}}
	r, err := rules.Parse("rules.yaml", []byte(block(t, "rules")))
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := rules.New(s.store, r)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := server.New(server.Config{Store: s.store, Limits: limiter})
	if err != nil {
		t.Fatal(err)
	}
	d, err := httpguard.New(httpguard.Config{Address: "127.0.0.1:0", Proxied: server.Proxied}) // as baton serve has it
	if err != nil {
		t.Fatal(err)
	}
	s.baton = httptest.NewServer(d.Handler(serving.Handler()))
	t.Cleanup(s.baton.Close)
	s.app = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/forbidden" {
			http.Error(w, "by the application", http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, "%s %s %q", r.Method, r.URL.Path, body)
	}))
	t.Cleanup(s.app.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.front = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	addr := func(server *httptest.Server) string { return server.Listener.Addr().String() }
	for page, here := range map[string]string{"127.0.0.1:8080": s.front, "127.0.0.1:7420": addr(s.baton), "127.0.0.1:9000": addr(s.app)} {
		if !strings.Contains(config, page) {
			t.Fatalf("the configuration does not name %s", page)
		}
		config = strings.ReplaceAll(config, page, here)
	}
	return s, config
}

// run starts a proxy, which ends with the test, and waits until it listens.
func (s *site) run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails only if it has ended already
		<-done
		if t.Failed() {
			t.Logf("%s says:\n%s", cmd.Path, log.String())
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; {
		conn, err := net.Dial("tcp", s.front)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-done:
			t.Fatalf("%s has ended: %s", cmd.Path, log.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen: %v", cmd.Path, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ask makes a request through the proxy, with what a client may send to be counted as
// another.
func (s *site) ask(t *testing.T, method, path, body string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.front+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Baton-Key", "Baton-Rule", "Baton-Tier", "Baton-Cost", "Baton-Deny", "X-Forwarded-For"} {
		r.Header.Set(name, strconv.FormatInt(time.Now().UnixNano(), 10))
	}
	// So does a browser that has followed a link, or runs a script of another site.
	r.Header.Set("Origin", "https://shop.example")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// limits checks what both proxies do.
func (s *site) limits(t *testing.T, unreachable int) {
	t.Helper()
	for i, c := range []struct{ method, path, body string }{{"GET", "/a?x=%2F..", ""}, {"POST", "/b", "a body"}, {"GET", "/forbidden", ""}} {
		resp, text := s.ask(t, c.method, c.path, c.body)
		path, _, _ := strings.Cut(c.path, "?")
		switch want := fmt.Sprintf("%s %s %q", c.method, path, c.body); {
		case c.path == "/forbidden":
			if resp.StatusCode != http.StatusForbidden || text != "by the application\n" {
				t.Errorf("the application's own refusal arrives as %s, %s", resp.Status, text)
			}
		case resp.StatusCode != http.StatusOK || text != want:
			t.Errorf("request %d: %s, %s, want %s", i+1, resp.Status, text, want)
		}
	}
	for range 3 {
		resp, text := s.ask(t, "POST", "/c", "a body")
		seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if resp.StatusCode != http.StatusTooManyRequests || err != nil || seconds < 1 || seconds > 61 {
			t.Errorf("above the limit: %s, Retry-After %q, %s", resp.Status, resp.Header.Get("Retry-After"), text)
		}
	}
	// The store fails: the rule decides, and this process has a share of its own.
	s.store.fails.Store(true)
	for i := range 4 {
		if resp, text := s.ask(t, "GET", "/d", ""); (resp.StatusCode == http.StatusOK) != (i < 3) {
			t.Errorf("without the store, request %d: %s, %s", i+1, resp.Status, text)
		}
	}
	s.baton.Close()
	if resp, text := s.ask(t, "GET", "/e", ""); resp.StatusCode != unreachable {
		t.Errorf("without Baton: %s, %s", resp.Status, text)
	}
}

func TestNginx(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	page := block(t, "nginx")
	nginx(t, page).limits(t, http.StatusInternalServerError)
	inside, beside := "    location = /limit {\n", "    location @refused {\n"
	for _, line := range []string{inside, beside} {
		if !strings.Contains(page, line) {
			t.Fatalf("the configuration has no line %q", line)
		}
	}
	page = strings.Replace(page, inside, inside+block(t, "nginx-pass"), 1)
	nginx(t, strings.Replace(page, beside, "    location @pass { return 204; }\n"+beside, 1)).limits(t, http.StatusOK)
}

// nginx runs nginx in front of a site.
func nginx(t *testing.T, page string) *site {
	t.Helper()
	s, config := newSite(t, page)
	s.nginx(t, config)
	return s
}

// nginx runs nginx with a configuration whose addresses are filled in.
func (s *site) nginx(t *testing.T, config string) {
	t.Helper()
	path, dir := testserver.Nginx(t), t.TempDir()
	var text strings.Builder
	text.WriteString("daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n")
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&text, "%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(text.String()+config+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, exec.Command(path, "-e", "stderr", "-p", dir, "-c", file))
}

// Two servers behind nginx: one may go, and when both have gone and one comes again, the
// next call is answered. Events arrive as they happen.
func TestNginxInFront(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	store, secret := memstore.New(), make([]byte, 32)
	start := func(addr string) *httptest.Server {
		t.Helper()
		serving, err := server.New(server.Config{Store: store, Secret: secret})
		if err != nil {
			t.Fatal(err)
		}
		d, err := httpguard.New(httpguard.Config{Address: addr, Proxied: server.Proxied})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: d.Handler(serving.Handler())}}
		s.Start()
		return s
	}
	s, config := &site{front: testserver.FreeAddr(t)}, block(t, "nginx-front")
	config = strings.ReplaceAll(config, "127.0.0.1:7420", s.front)
	var servers []*httptest.Server
	for _, port := range []string{"7421", "7422"} {
		servers = append(servers, start("127.0.0.1:0"))
		config = strings.ReplaceAll(config, "127.0.0.1:"+port, servers[len(servers)-1].Listener.Addr().String())
	}
	s.nginx(t, config)
	calls := func(want int) {
		t.Helper()
		for i := range 20 {
			res, err := http.Post("http://"+s.front+"/baton.v1.Locks/Leader", "application/json", strings.NewReader(`{"key":"k"}`))
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body) // it is shown
			_ = res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("call %d: %s %s, want %d", i, res.Status, text, want)
			}
		}
	}
	calls(http.StatusOK)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.front+"/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Baton-Prefix", "app/")
	events, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(events.Body, make([]byte, len("id: 1"))); err != nil { // which a buffer would keep
		t.Error(err)
	}
	_ = events.Body.Close()
	servers[1].CloseClientConnections()
	servers[1].Close()
	calls(http.StatusOK)
	servers[0].CloseClientConnections()
	servers[0].Close()
	calls(http.StatusBadGateway)
	t.Cleanup(start(servers[0].Listener.Addr().String()).Close)
	calls(http.StatusOK)
}

func TestCaddy(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	caddy, dir := testserver.Caddy(t), t.TempDir()
	s, config := newSite(t, block(t, "caddy"))
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte("{\n\tadmin off\n}\n"+config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(caddy, "run", "--config", file, "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
	s.run(t, cmd)
	s.limits(t, http.StatusBadGateway)
}
