package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/batonv1/batonv1connect"
	"github.com/batonhq/baton/store/memstore"
)

// What the door refuses.
func TestGuard(t *testing.T) {
	t.Parallel()
	var audit bytes.Buffer
	s := replica(t, memstore.New(), func(c *Config) {
		c.Audit = slog.New(slog.NewTextHandler(&audit, nil))
		c.Caller = func(r *http.Request) (Caller, error) {
			name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok {
				return nil, fmt.Errorf("an access token is needed")
			}
			return someone{name, func(_, key string) bool { return !strings.HasPrefix(key, name+"/") }}, nil
		}
	})
	addr := serve(t, s)
	url := "http://" + addr + "/baton.v1.Locks/Acquire"
	const asA = "Bearer a"
	for _, c := range []struct {
		name   string
		body   string
		header []string
		want   int
		code   string
	}{
		{"as it should be", `{"key":"a/x"}`, []string{"Authorization", asA}, 200, ""},
		{"under another type", `{"key":"a/y"}`, []string{"Authorization", asA, "Content-Type", "application/json; charset=utf-8"}, 200, ""},
		{"without a token", `{"key":"a/x"}`, nil, 401, "unauthenticated"},
		{"another's key", `{"key":"b/x"}`, []string{"Authorization", asA}, 403, "permission_denied"},
		{"another's key, encoded", `{"key":"a%2F../b"}`, []string{"Authorization", asA}, 403, "permission_denied"},
		{"of a web page", `{"key":"a/z"}`, []string{"Authorization", asA, "Origin", "https://evil.example"}, 403, "permission_denied"},
		{"of a web page, says the browser", `{"key":"a/z"}`, []string{"Authorization", asA, "Sec-Fetch-Site", "cross-site"}, 403, "permission_denied"},
		{"an unknown field", `{"key":"a/z","wait":1}`, []string{"Authorization", asA}, 400, "invalid_argument"},
		{"one under another type", `{"key":"a/z","wait":1}`, []string{"Authorization", asA, "Content-Type", "application/json; charset=utf-8"}, 400, "invalid_argument"},
		{"too long", `{"key":"` + strings.Repeat("x", MaxBody) + `"}`, []string{"Authorization", asA}, 413, "resource_exhausted"},
		{"text", `{"key":"a/z"}`, []string{"Authorization", asA, "Content-Type", "text/plain"}, 415, ""},
	} {
		status, answer, _ := post(t, url, c.body, c.header...)
		if status != c.want || c.code != "" && answer["code"] != c.code {
			t.Errorf("%s: %d, %v, want %d %s", c.name, status, answer, c.want, c.code)
		}
	}
	// Chunked, and so without a length.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, io.MultiReader(strings.NewReader(`{"key":"`+strings.Repeat("x", MaxBody)+`"}`)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if status, answer, _ := do(t, r, "Authorization", asA); status != http.StatusTooManyRequests || answer["code"] != "resource_exhausted" {
		t.Errorf("a long body in chunks: %d, %v", status, answer)
	}
	for _, want := range []string{"a call was refused", `a call was denied" caller=a`, "key=b/x", "verb=lock"} {
		if !strings.Contains(audit.String(), want) {
			t.Errorf("the audit has no %s:\n%s", want, &audit)
		}
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/nothing": 401} {
		res, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
		}
	}
}

// A client that sends slowly is cut off, and one that has sent all may wait for longer
// than that.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	s := replica(t, memstore.New())
	addr := serve(t, s)
	s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000})
	const head = "POST /baton.v1.Locks/Acquire HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, head+"Sec-Fetch-Site: cross-site\r\nContent-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout + 20*time.Second))
		text, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 403") {
			t.Errorf("%q, %v: want 403 and the end", text, err)
		}
	})
	for _, c := range []struct {
		name, text string
		least      time.Duration
		want       string
	}{
		{"slow header", head, headerTimeout, ""},
		{"slow body", head + "Content-Length: 100\r\n\r\n{", bodyTimeout, ""},
		{"slow chunks", head + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", bodyTimeout, ""},
		{"long wait", head + "Content-Length: 27\r\n\r\n" + `{"key":"k","wait_ms": 7000}`, 7 * time.Second, "REFUSED"},
		{"long wait in chunks", head + "Transfer-Encoding: chunked\r\n\r\n1b\r\n" + `{"key":"k","wait_ms": 7000}` + "\r\n0\r\n\r\n", 7 * time.Second, "REFUSED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			begin := time.Now()
			if _, err := io.WriteString(conn, c.text); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(begin.Add(c.least + 20*time.Second))
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			took := time.Since(begin)
			if os.IsTimeout(err) || took < c.least-100*time.Millisecond {
				t.Errorf("answered after %v (%v), want %v", took, err, c.least)
			}
			if err != nil {
				if c.want != "" {
					t.Error(err)
				}
				return
			}
			defer res.Body.Close()
			text, _ := io.ReadAll(res.Body)
			if c.want != "" && (res.StatusCode != 200 || !strings.Contains(string(text), c.want)) || c.want == "" && res.StatusCode < 400 {
				t.Errorf("%s, %s", res.Status, text)
			}
		})
	}
}

// A wait by gRPC is not bounded by the deadline for the body either, and a server that
// is stopped ends it.
func TestLongWaitsAndStop(t *testing.T) {
	t.Parallel()
	s := replica(t, memstore.New())
	addr := serve(t, s)
	s.held(t, &batonv1.AcquireRequest{Key: "k", TtlMs: 60_000})
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	two := &http.Client{Transport: &http.Transport{Protocols: &p}}
	clients := map[string]batonv1connect.LocksClient{
		"gRPC":          batonv1connect.NewLocksClient(two, "http://"+addr, connect.WithGRPC()),
		"HTTP/2":        batonv1connect.NewLocksClient(two, "http://"+addr),
		"HTTP/1":        batonv1connect.NewLocksClient(http.DefaultClient, "http://"+addr),
		"HTTP/1 and op": batonv1connect.NewLocksClient(http.DefaultClient, "http://"+addr),
	}
	var wg sync.WaitGroup
	for name, client := range clients {
		wg.Go(func() {
			const wait = bodyTimeout + time.Second
			begin := time.Now()
			res, err := client.Acquire(t.Context(), &batonv1.AcquireRequest{Key: "k", WaitMs: uint32(wait.Milliseconds())})
			if took := time.Since(begin); err != nil || res.State != batonv1.AcquireResponse_REFUSED || took < wait {
				t.Errorf("%s: %v, %v after %v", name, res, err, took)
			}
		})
	}
	wg.Wait()
	for name, client := range clients {
		wg.Go(func() {
			r := &batonv1.AcquireRequest{Key: "k", WaitMs: 60_000}
			if name == "HTTP/1 and op" {
				r.Op = "op x of 16 bytes"
			}
			res, err := client.Acquire(t.Context(), r)
			if r.Op != "" && (err != nil || res.State != batonv1.AcquireResponse_WAITING) || r.Op == "" && connect.CodeOf(err) != connect.CodeUnavailable {
				t.Errorf("%s: %v, %v, when the server is stopped", name, res, err)
			}
		})
	}
	waitFor(t, s.locks, "k", len(clients))
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if s.Drain() {
		t.Error("Drain says that readiness was asked for")
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503} {
		res, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
		}
	}
}

// A server that drains is not ready, says why, and answers calls.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := replica(t, memstore.New())
	url := "http://" + serve(t, s)
	ready := func(accept string) (int, string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, url+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
	wants := func(accept string, status int, text string) {
		t.Helper()
		if got, said := ready(accept); got != status || said != text {
			t.Errorf("Accept %q: %d %q, want %d %q", accept, got, said, status, text)
		}
	}
	wants("*/*", 200, "ok\n")
	wants("text/html, application/json;q=0.9", 200, `{"ready":true}`)
	if !s.Drain() {
		t.Error("Drain does not say that readiness was asked for")
	}
	wants("*/*", 503, "the server is being stopped\n")
	wants("application/json", 503, `{"ready":false,"reason":"the server is being stopped"}`)
	if _, answer, _ := post(t, url+"/grpc.health.v1.Health/Check", `{}`); answer["status"] != "SERVING_STATUS_NOT_SERVING" {
		t.Errorf("grpc.health.v1: %v", answer)
	}
	if res, err := http.Get(url + "/healthz"); err != nil || res.StatusCode != 200 {
		t.Errorf("/healthz: %v, %v", res, err)
	}
	if status, answer, _ := post(t, url+"/baton.v1.Locks/Acquire", `{"key":"k"}`); status != 200 || answer["state"] != "HELD" {
		t.Errorf("a call: %d %v", status, answer)
	}
}

// fussy grants nothing while says is set.
type fussy struct {
	*memstore.Store
	says atomic.Pointer[error]
}

func (f *fussy) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := f.says.Load(); err != nil {
		return driver.Grant{}, *err
	}
	return f.Store.Acquire(ctx, r)
}

// Readiness takes a lock, as clients do: a store that answers and grants nothing is not
// ready. The reason is the store's, if it gave one. Clients are told the same.
func TestReadyIfLocksAreGranted(t *testing.T) {
	t.Parallel()
	store := &fussy{Store: memstore.New()}
	s := replica(t, store)
	url := "http://" + serve(t, s)
	get := func() (int, string) {
		t.Helper()
		s.health.known.Store(nil) // no second between two questions
		res, err := http.Get(url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
	health := func() any {
		t.Helper()
		status, answer, _ := post(t, url+"/grpc.health.v1.Health/Check", `{}`)
		if status != http.StatusOK {
			t.Errorf("grpc.health.v1: %d, %v", status, answer)
		}
		return answer["status"]
	}
	if status, text := get(); status != 200 || health() != "SERVING_STATUS_SERVING" {
		t.Errorf("a store that works: %d %s, %v", status, text, health())
	}
	for what, c := range map[string]struct {
		err  error
		says string
	}{
		"refusing":    {fmt.Errorf("%w: %w", driver.ErrUnavailable, driver.Answered(errors.New("long"), "NOREPLICAS Not enough")), "store memory refuses: NOREPLICAS Not enough"},
		"unreachable": {fmt.Errorf("%w: dial 192.0.2.1", driver.ErrUnavailable), "store memory is out of reach"},
		"silent":      {fmt.Errorf("%w: read 192.0.2.1", driver.ErrUnknown), "store memory has not answered"},
		"denying":     {fmt.Errorf("%w at 192.0.2.1", driver.ErrDenied), "store memory denies this server access"},
	} {
		store.says.Store(&c.err)
		status, text := get()
		if status != 503 || !strings.Contains(text, c.says) || strings.Contains(text, "192.0.2.1") || health() != "SERVING_STATUS_NOT_SERVING" {
			t.Errorf("%s: %d %s, %v, want %q", what, status, text, health(), c.says)
		}
		if _, answer, _ := post(t, url+"/baton.v1.Locks/Acquire", `{"key":"k"}`); !strings.Contains(fmt.Sprint(answer["message"]), c.says) {
			t.Errorf("%s: a client is told %v, want %q", what, answer, c.says)
		}
	}
	store.says.Store(nil)
	if status, text := get(); status != 200 || health() != "SERVING_STATUS_SERVING" {
		t.Errorf("a store that works again: %d %s, %v", status, text, health())
	}
	for info, err := range store.List(t.Context(), "readyz/") {
		t.Errorf("a question has left %v, %v", info, err)
	}
}
