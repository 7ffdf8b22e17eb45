package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

// journal is what the log was told.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) has(text string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Contains(j.text.String(), text)
}

// team may see what begins with its name, and break what begins with its name and "/own".
type team string

func (c team) Name() string { return string(c) }
func (c team) May(verb, key string) error {
	prefix := string(c) + "/"
	if verb == VerbBreak {
		prefix += "own"
	}
	if !strings.HasPrefix(key, prefix) {
		return errors.New(verb + " is not for " + string(c))
	}
	return nil
}

func (c team) MaySome(verb, prefix string) bool {
	own := string(c) + "/"
	return strings.HasPrefix(prefix, own) || strings.HasPrefix(own, prefix)
}

func teams(r *http.Request) (Caller, error) {
	name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer of-")
	if !ok {
		return nil, errors.New("no token")
	}
	return team(name), nil
}

// The page itself: its language, its policy, and that the policy allows its own script.
func TestPolicy(t *testing.T) {
	t.Parallel()
	s := inMemory(t, nil)
	server := httptest.NewServer(s.page)
	defer server.Close()
	r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL, nil)
	r.Header.Set("Accept-Language", "zh-CN")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK || !strings.Contains(string(body), `<html lang="zh-Hans">`) {
		t.Fatalf("status %d, %.80s", answer.StatusCode, body)
	}
	policy := answer.Header.Get("Content-Security-Policy")
	for _, kind := range []string{"style", "script"} {
		m := regexp.MustCompile(`(?s)<`+kind+`>(.*?)</`+kind+`>`).FindAllSubmatch(body, -1)
		if len(m) != 1 {
			t.Fatalf("%d parts <%s>", len(m), kind)
		}
		sum := sha256.Sum256(m[0][1])
		if want := kind + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want+";") {
			t.Errorf("the policy does not allow the page's own %s", kind)
		}
	}
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy lacks %s", want)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Errorf("the policy is weak: %s", policy)
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "Vary": "Accept-Language"} {
		if got := answer.Header.Get(name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
}

// Each row is an attack, or a mistake, on every path for data.
func TestAttacks(t *testing.T) {
	t.Parallel()
	s := inMemory(t, func(c *Config) { c.Hosts = Loopback })
	lease := mustLock(t, s.others, "k")
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for _, c := range []struct {
		name   string
		body   any
		change func(*http.Request)
		want   int
		code   string
	}{
		{"a name that was given our address", act{}, func(r *http.Request) { r.Host = "evil.example" }, 403, "host"},
		{"with a port", act{}, func(r *http.Request) { r.Host = "evil.example:80" }, 403, "host"},
		{"with our name as a part", act{}, func(r *http.Request) { r.Host = "localhost.evil.example" }, 403, "host"},
		{"without a name", act{}, func(r *http.Request) { r.Host = "" }, 403, "host"},
		{"another site", act{}, header("Sec-Fetch-Site", "cross-site"), 403, "origin"},
		{"another port of this host", act{}, header("Sec-Fetch-Site", "same-site"), 403, "origin"},
		{"another origin", act{}, header("Origin", "http://localhost:1"), 403, "origin"},
		{"a form", act{}, header("Content-Type", "text/plain"), 415, "bad"},
		{"a form with a field", act{}, header("Content-Type", "application/x-www-form-urlencoded"), 415, "bad"},
		{"no type", act{}, func(r *http.Request) { r.Header.Del("Content-Type") }, 415, "bad"},
		{"a field that is none", map[string]any{"keys": "k"}, nil, 400, "bad"},
		{"another type", []int{1}, nil, 400, "bad"},
		{"more behind it", act{}, func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("{}{}")) }, 400, "bad"},
		{"a body that does not end", act{}, func(r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"key":"`), strings.NewReader(strings.Repeat("x", 2*maxBody))))
		}, 413, "bad"},
	} {
		for _, path := range []string{"/page/watch", "/page/break", "/page/ask"} {
			code, body := s.post(t, path, c.body, func(r *http.Request) {
				r.Host = "localhost:7380"
				if c.change != nil {
					c.change(r)
				}
			})
			if code != c.want || !strings.Contains(body, `"error":"`+c.code+`"`) {
				t.Errorf("%s, %s: %d %s, want %d %s", c.name, path, code, body, c.want, c.code)
			}
		}
	}
	for _, path := range []string{"/page/watch", "/page/break", "/page/ask", "/x", "/page/", "/index.html"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "GET", path, nil)
		r.Host = "127.0.0.1"
		s.page.ServeHTTP(w, r)
		if w.Code != http.StatusNotFound && w.Code != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", path, w.Code)
		}
	}
	if err := lease.Err(); err != nil {
		t.Errorf("the lock was touched: %v", err)
	}
	for _, bad := range []look{
		{Kind: "x"},
		{Kind: kindLocks, Order: "used"},
		{Order: "key"},
		{Kind: kindLocks, From: -1},
		{Kind: kindLocks, Seq: -1},
		{Kind: kindLocks, Prefix: strings.Repeat("x", 513)},
		{Kind: kindLocks, Open: "a\nb"},
		{Kind: kindLocks, Open: strings.Repeat("x", 513)},
	} {
		if code, body := s.post(t, "/page/watch", bad, func(r *http.Request) { r.Host = "[::1]:80" }); code != 400 {
			t.Errorf("%+v: %d %s", bad, code, body)
		}
	}
}

// A body that comes too slowly is not waited for, and the deadline for it does not end
// what is watched afterwards.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	s := inMemory(t, nil)
	server := httptest.NewServer(s.page)
	defer server.Close()
	defer s.page.Close()
	body, slowly := io.Pipe()
	defer slowly.Close()
	r, _ := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/page/watch", body)
	r.Header.Set("Content-Type", "application/json")
	go func() { _, _ = io.WriteString(slowly, `{"kind":`) }()
	began := time.Now()
	answer, err := http.DefaultClient.Do(r)
	if err == nil {
		answer.Body.Close()
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("status %d", answer.StatusCode)
		}
	}
	if d := time.Since(began); d < readTimeout/2 || d > 3*readTimeout {
		t.Errorf("it was waited for %v", d)
	}

	r, _ = http.NewRequestWithContext(t.Context(), "POST", server.URL+"/page/watch", strings.NewReader(`{"kind":"locks"}`))
	r.Header.Set("Content-Type", "application/json")
	if answer, err = http.DefaultClient.Do(r); err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text := make([]byte, 1<<16)
	for began = time.Now(); time.Since(began) < readTimeout+time.Second; {
		if _, err := answer.Body.Read(text); err != nil {
			t.Fatalf("the frames ended after %v: %v", time.Since(began), err)
		}
	}
}

// A slow body of a request that is refused at once is not waited for either.
func TestSlowBodyThatIsRefused(t *testing.T) {
	t.Parallel()
	s := inMemory(t, func(c *Config) { c.Hosts = Loopback })
	server := httptest.NewServer(s.page)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /page/watch HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 10\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_ = conn.SetReadDeadline(began.Add(4 * readTimeout))
	text, err := io.ReadAll(conn)
	if err != nil || !bytes.Contains(text, []byte("403")) {
		t.Fatalf("%q, %v", text, err)
	}
	if d := time.Since(began); d > 3*readTimeout {
		t.Errorf("it was waited for %v", d)
	}
}

// Text that an attacker chose is sent with its invisible characters escaped.
func TestEnemy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inMemory(t, nil)
		keys := []string{
			`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "a\u202eb\u2066c", strings.Repeat("é", 256), "x\u200by", "{{constructor}}", "__proto__", "toString", " lead and trail ", "z" + strings.Repeat("\u0301", 200),
		}
		const owner = "evil</td><script>alert(2)</script>"
		for _, key := range keys {
			mustLock(t, s.others, key, baton.Owner(owner))
		}
		b := s.open(t, look{Kind: kindLocks, Open: keys[2]})
		b.until("all", func(s shot) bool { return s.List.Total == len(keys) && len(s.Keys) == len(keys) && s.Detail != nil })
		for _, key := range keys {
			r, ok := b.now.row(key)
			if !ok || r.Owner != owner {
				t.Errorf("%q is shown as %+v", key, r)
			}
			if shown := driver.Printable(key); shown != key && r.Name != shown {
				t.Errorf("%q is named %q, want %q", key, r.Name, shown)
			}
		}
		for _, name := range []string{"\u202e", "\u2066", "\u200b"} {
			if strings.Contains(b.now.Detail.Name, name) {
				t.Errorf("the name in detail has %q", name)
			}
		}
	})
}

// Who may see what, and do what.
func TestCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &journal{}
		s := inMemory(t, func(c *Config) { c.Caller, c.Logger = teams, slog.New(slog.NewTextHandler(log, nil)) })
		for _, key := range []string{"a/1", "a/own", "b/1", "b/own"} {
			mustLock(t, s.locks, key)
		}
		secret := fmt.Errorf("%w: dial tcp 192.0.2.9:6379", driver.ErrUnknown)
		s.recent.Events().Limits.Degraded(t.Context(), ratelimit.FallbackEvent{Key: "a/login", Err: secret})
		s.recent.Events().Locks.Failed(t.Context(), baton.LockEvent{Key: "a/failed", Err: secret})
		s.recent.Events().Locks.Failed(t.Context(), baton.LockEvent{Key: "a/held", Err: driver.ErrHeld})
		of := func(name string) func(*http.Request) {
			return func(r *http.Request) { r.Header.Set("Authorization", "Bearer of-"+name) }
		}
		if code, body := s.post(t, "/page/watch", look{Kind: kindLocks}, nil); code != 401 || !strings.Contains(body, `"token"`) {
			t.Errorf("without a token: %d %s", code, body)
		}
		for _, path := range []string{"/page/break", "/page/ask"} {
			for key, want := range map[string]int{"a/1": 403, "b/own": 403, "a/own2": 409} {
				if code, body := s.post(t, path, act{Key: key, Reason: "because"}, of("a")); code != want {
					t.Errorf("%s %s: %d %s, want %d", path, key, code, body, want)
				}
			}
			if code, _ := s.post(t, path, act{Key: "a/own", Reason: "because"}, nil); code != 401 {
				t.Errorf("%s without a token: %d", path, code)
			}
		}
		if !log.has("denied") || !log.has("caller=a remote=192.0.2.1:1234 key=") {
			t.Error("the denial is not in the log")
		}
		if code, body := s.post(t, "/page/watch", look{Kind: kindLocks, Prefix: "b/"}, of("a")); code != 403 || !strings.Contains(body, `"denied"`) {
			t.Errorf("the keys of another team: %d %s", code, body)
		}
		b := s.openAs(t, look{Kind: kindLocks, Open: "a/1"}, "Bearer of-a")
		b.until("the locks of the team", func(s shot) bool { return len(s.Keys) > 0 && s.Detail != nil })
		if !slices.Equal(b.now.Keys, []string{"a/1", "a/own"}) || b.now.List.Total != 2 || b.now.Hello.Caller != "a" {
			t.Errorf("shown: %+v", b.now)
		}
		if b.now.Detail.Denied == "" {
			t.Error("the page does not say that the lock cannot be broken")
		}
		for _, e := range b.now.told {
			if !strings.HasPrefix(e.Key, "a/") {
				t.Errorf("an event of another team: %+v", e)
			}
			want := map[string]string{"a/login": errSilent.Error(), "a/failed": errSilent.Error(), "a/held": driver.ErrHeld.Error()}[e.Key]
			if want != e.Error {
				t.Errorf("a caller who may not see all is told %q of %s, want %q", e.Error, e.Key, want)
			}
		}
		if all, _ := s.recent.since(0, 100, func(string) bool { return true }); !strings.Contains(fmt.Sprint(all), "192.0.2.9") {
			t.Error("who may see all is not told what the store said")
		}
	})
}

// A caller whose token is not valid any more sees nothing more.
func TestRevokedCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		valid := true
		s := inMemory(t, func(c *Config) {
			c.Caller = func(*http.Request) (Caller, error) {
				mu.Lock()
				defer mu.Unlock()
				if !valid {
					return nil, errors.New("revoked")
				}
				return anyone{}, nil
			}
		})
		mustLock(t, s.locks, "k")
		b := s.open(t, look{Kind: kindLocks})
		time.Sleep(time.Minute)
		select {
		case <-b.ended:
			t.Fatal("the frames ended")
		default:
		}
		mu.Lock()
		valid = false
		mu.Unlock()
		began := time.Now()
		<-b.ended
		if d := time.Since(began); d > recheck+heartbeat {
			t.Errorf("it ended after %v", d)
		}
	})
}

// Locks have as many holders and waiters as they like: the page shows a bounded number.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		s := newSite(t, store, nil)
		for range 250 {
			if _, err := store.Acquire(t.Context(), driver.Request{Claim: driver.Claim{Key: "k", ID: driver.NewID(), Weight: 1, Capacity: driver.Whole, Owner: "r"}, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		for range 150 {
			if _, err := store.Acquire(t.Context(), driver.Request{Claim: driver.Claim{Key: "k", ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole, Owner: "w"}, TTL: time.Hour, Queue: true}); err != nil {
				t.Fatal(err)
			}
		}
		b := s.open(t, look{Kind: kindLocks, Open: "k"})
		b.until("the lock", func(s shot) bool { return s.Detail != nil && len(s.Detail.Holders) > 0 })
		d := b.now.Detail
		if len(d.Holders) != maxQueue || len(d.Waiters) != maxQueue || d.More != 200 {
			t.Errorf("%d holders, %d waiters, %d more", len(d.Holders), len(d.Waiters), d.More)
		}
		if r, _ := b.now.row("k"); r.Holders != 250 || r.Waiters != 150 || r.Mode != "shared" {
			t.Errorf("the row says %+v", r)
		}
		if h := b.now.Hot; len(h) != 1 || h[0].Key != "k" || h[0].N != 150 {
			t.Errorf("hottest: %+v", h)
		}
		var saw []string
		for _, h := range d.Holders {
			saw = append(saw, h.Grant)
		}
		if code, body := s.post(t, "/page/break", act{Key: "k", Reason: "r", Grants: saw}, nil); code != 200 || body != `{"holders":250}` {
			t.Errorf("%d %s", code, body)
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{}); err == nil {
		t.Error("a page without Locks was made")
	}
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Locks: locks})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.kinds, []string{kindLocks}) {
		t.Errorf("a page of locks shows %v", p.kinds)
	}
	p.Close()
}
