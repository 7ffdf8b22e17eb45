package httplimit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/store/memstore"
)

func limiter(t *testing.T, store limits.Store, limit ratelimit.Limit, more ...ratelimit.Option) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(store, limit, more...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func middleware(t *testing.T, l *ratelimit.Limiter, opts ...httplimit.Option) func(http.Handler) http.Handler {
	t.Helper()
	m, err := httplimit.New(l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })

func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // a handler that panics is logged
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// get sends a request with headers, given in pairs.
func get(t *testing.T, s *httptest.Server, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// none are the fields that say how a client stands.
var none = []string{
	"RateLimit-Policy", "RateLimit", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset",
	"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
}

func noFields(t *testing.T, h http.Header) {
	t.Helper()
	for _, name := range none {
		if v := h.Values(name); v != nil {
			t.Errorf("%s: %q", name, v)
		}
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), ratelimit.FixedWindow(2, 10_000*time.Hour).Named("few"))
	s := serve(t, middleware(t, l)(ok))
	for i, want := range []string{`"few";r=1`, `"few";r=0`} {
		resp, body := get(t, s, "/")
		if resp.StatusCode != 200 || body != "ok" || resp.Header.Get("RateLimit-Policy") != `"few";q=2;w=36000000` || !strings.HasPrefix(resp.Header.Get("RateLimit"), want+";t=") {
			t.Errorf("number %d: %v %s", i, resp, body)
		}
	}
	resp, body := get(t, s, "/")
	var p struct {
		Type, Title string
		Status      int
		Violated    []string `json:"violated-policies"`
	}
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Errorf("%v in %s", err, body)
	}
	if resp.StatusCode != 429 || p.Status != 429 || p.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" || p.Title == "" || fmt.Sprint(p.Violated) != "[few]" ||
		resp.Header.Get("Content-Type") != "application/problem+json" || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v %s", resp, body)
	}
	after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || after < 1 || resp.Header.Get("RateLimit") != fmt.Sprintf(`"few";r=0;t=%d`, after) {
		t.Errorf("%v, %v", err, resp.Header)
	}
}

// Of all that come at once exactly as many are let in as the limit allows.
func TestMany(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), ratelimit.FixedWindow(50, 10_000*time.Hour))
	var reached atomic.Int64
	s := serve(t, middleware(t, l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) })))
	var passed, refused atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 10 {
				resp, err := s.Client().Get(s.URL)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
				switch resp.StatusCode {
				case 200:
					passed.Add(1)
				case 429:
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if passed.Load() != 50 || reached.Load() != 50 || refused.Load() != 150 {
		t.Errorf("%d passed, %d reached the handler, %d were refused", passed.Load(), reached.Load(), refused.Load())
	}
}

// The writer is the server's own, and the fields are there whatever the handler does.
func TestWriterIsUntouched(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), ratelimit.FixedWindow(100, 10_000*time.Hour).Named("n"))
	limit := middleware(t, l, httplimit.Headers(httplimit.Draft, httplimit.Legacy))
	var outer http.ResponseWriter
	flushed := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/flush", func(w http.ResponseWriter, _ *http.Request) {
		if w != outer {
			t.Error("the writer was wrapped")
		}
		_, _ = io.WriteString(w, "one")
		w.(http.Flusher).Flush()
		<-flushed
		_, _ = io.WriteString(w, "two")
	})
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 201 Created\r\nX-Seen: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", w.Header().Get("RateLimit-Remaining"))
	})
	limited := limit(mux)
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outer = w
		defer func() {
			if e := recover(); e != nil { // as programs often do
				w.WriteHeader(500)
			}
		}()
		limited.ServeHTTP(w, r)
	}))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/flush", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(resp.Header.Get("RateLimit"), `"n";r=99`) { // before the handler has returned
		t.Errorf("flushed: %v", resp.Header)
	}
	close(flushed)
	if body, err := io.ReadAll(resp.Body); string(body) != "onetwo" || err != nil {
		t.Errorf("%s, %v", body, err)
	}
	resp.Body.Close()
	if resp, _ := get(t, s, "/panic"); resp.StatusCode != 500 || resp.Header.Get("RateLimit-Remaining") != "98" {
		t.Errorf("panicked: %v", resp)
	}
	if resp, _ := get(t, s, "/hijack"); resp.StatusCode != 201 || resp.Header.Get("X-Seen") != "97" {
		t.Errorf("hijacked: %v", resp)
	}
}

// A connection stays usable after a refusal, although the handler has not read the
// body.
func TestConnectionGoesOn(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), ratelimit.FixedWindow(1, 10_000*time.Hour))
	s := serve(t, middleware(t, l)(ok))
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for _, want := range []int{200, 429, 429} { // on one connection
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != want {
			t.Errorf("%v, %v", resp, err)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	tenant := httplimit.Header("X-Tenant")
	unverified := httplimit.Func("user", func(r *http.Request) string { return r.URL.Query().Get("user") })
	for _, c := range []struct {
		name    string
		key     httplimit.Key
		path    string
		headers []string
		want    string // "" if it need not be readable
	}{
		{"nothing said", httplimit.Key{}, "/", nil, "127.0.0.1"},
		{"address", httplimit.Client(), "/", []string{"X-Forwarded-For", "198.51.100.1"}, "127.0.0.1"},
		{"header", tenant, "/", []string{"x-tenant", "acme"}, "x-tenant=acme"},
		{"a header twice", tenant, "/", []string{"X-Tenant", "acme", "X-Tenant", "other"}, "x-tenant=acme"},
		{"no header", tenant, "/", nil, "127.0.0.1"},
		{"an address in a header", tenant, "/", []string{"X-Tenant", "127.0.0.1"}, "x-tenant=127.0.0.1"},
		{"a long header", tenant, "/", []string{"X-Tenant", long}, ""},
		{"braces", tenant, "/", []string{"X-Tenant", "{}"}, "x-tenant=%7B%7D"},
		{"binary", tenant, "/", []string{"X-Tenant", "a\xff\tb"}, "x-tenant=a%FF%09b"},
		{"a constant instead", tenant.Or(httplimit.Func("", func(*http.Request) string { return "anonymous" })), "/", nil, "anonymous"},
		{"not instead", tenant.Or(httplimit.Func("", func(*http.Request) string { return "anonymous" })), "/", []string{"X-Tenant", "acme"}, "x-tenant=acme"},
		{"a function", unverified, "/?user=42", nil, "user=42"},
		{"a function with a delimiter", unverified, "/?user=42%7C127.0.0.1", nil, "user=42%7C127.0.0.1"},
		{"route", httplimit.Route(), "/items/7", nil, "GET /items/%7Bid%7D"},
		{"route without a method", httplimit.Route(), "/any/7", nil, "GET /any/"},
		{"all", httplimit.Join(httplimit.Route(), tenant, unverified), "/any/?user=7", []string{"X-Tenant", "acme"}, "GET /any/|x-tenant=acme|user=7"},
		{"what is missing", httplimit.Join(httplimit.Route(), tenant), "/any/", nil, "GET /any/|127.0.0.1"},
		{"long together", httplimit.Join(tenant, tenant, tenant, tenant), "/", []string{"X-Tenant", strings.Repeat("a", 90)}, ""},
	} {
		store := &recorder{Store: memstore.New()}
		l := limiter(t, store, ratelimit.FixedWindow(1, 10_000*time.Hour))
		limit := middleware(t, l, httplimit.By(c.key))
		mux := http.NewServeMux()
		mux.Handle("GET /items/{id}", limit(ok))
		mux.Handle("/any/", limit(ok))
		mux.Handle("/{$}", limit(ok))
		s := serve(t, mux)
		if resp, _ := get(t, s, c.path, c.headers...); resp.StatusCode != 200 {
			t.Errorf("%s: %v", c.name, resp)
		}
		if got := store.key(); c.want != "" && got != c.want || len(got) > 300 {
			t.Errorf("%s: counted under %q, want %q", c.name, got, c.want)
		}
		if resp, _ := get(t, s, c.path, c.headers...); resp.StatusCode != 429 {
			t.Errorf("%s: the second is counted elsewhere: %v", c.name, resp)
		}
	}
}

// recorder remembers the last key that was asked about.
type recorder struct {
	limits.Store
	last atomic.Value
}

func (r *recorder) Take(ctx context.Context, q limits.Request) (limits.Taken, error) {
	r.last.Store(q.Takes[0].Key)
	return r.Store.Take(ctx, q)
}

func (r *recorder) key() string {
	key, _ := r.last.Load().(string)
	return key
}

// No client gets a fresh quota by an invented method, or by HEAD.
func TestMethods(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	store := &recorder{Store: memstore.New()}
	limit := middleware(t, limiter(t, store, ratelimit.FixedWindow(100, time.Hour)), httplimit.By(httplimit.RouteIn(mux)))
	mux.Handle("/any", ok)
	mux.Handle("GET /items/{id}", ok)
	front := limit(mux)
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/any", "GET /any"},
		{"HEAD", "/any", "GET /any"},
		{"POST", "/any", "POST /any"},
		{"FRESH1", "/any", "OTHER /any"},
		{"FRESH2", "/any", "OTHER /any"},
		{"GET", "/items/1", "GET /items/%7Bid%7D"},
		{"HEAD", "/items/2", "GET /items/%7Bid%7D"},
		{"GET", "/nowhere/1", "192.0.2.1"},
	} {
		front.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(c.method, c.path, nil))
		if got := store.key(); got != c.want {
			t.Errorf("%s %s is counted under %q, want %q", c.method, c.path, got, c.want)
		}
	}
}

// Secrets stay secret: in the store, and in errors.
func TestSecrets(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]httplimit.Key{
		"X-Api-Key": httplimit.SecretHeader("X-Api-Key"), "Authorization": httplimit.Header("authorization"), "Cookie": httplimit.Header("COOKIE"),
	} {
		store := &recorder{Store: broken{}}
		var failure error
		limit := middleware(t, limiter(t, store, ratelimit.FixedWindow(1, time.Hour)), httplimit.By(key),
			httplimit.OnError(func(_ http.ResponseWriter, _ *http.Request, _ http.Handler, err error) { failure = err }))
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set(name, "hunter2")
		limit(ok).ServeHTTP(httptest.NewRecorder(), r)
		if failure == nil || strings.Contains(failure.Error(), "hunter2") || strings.Contains(store.key(), "hunter2") || !strings.HasPrefix(store.key(), strings.ToLower(name)+"=#") {
			t.Errorf("%s: key %q, error %v", name, store.key(), failure)
		}
	}
}

// broken is a store out of reach.
type broken struct{}

func (broken) Take(context.Context, limits.Request) (limits.Taken, error) {
	return limits.Taken{}, fmt.Errorf("dial redis.internal: %w", driver.ErrUnavailable)
}

func TestBehindProxies(t *testing.T) {
	t.Parallel()
	local := netip.MustParsePrefix("127.0.0.0/8")
	for _, c := range []struct {
		name    string
		option  httplimit.Option
		headers []string
		want    string
	}{
		{"X-Forwarded-For", httplimit.TrustXForwardedFor(local), []string{"X-Forwarded-For", "198.51.100.1, 192.0.2.1", "Forwarded", "for=203.0.113.1"}, "192.0.2.1"},
		{"Forwarded", httplimit.TrustForwarded(local), []string{"Forwarded", `for=198.51.100.1, for="[2001:db8::7]:1"`, "X-Forwarded-For", "203.0.113.1"}, "2001:db8::/64"},
		{"not a proxy", httplimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.0.0/8")), []string{"X-Forwarded-For", "198.51.100.1"}, "127.0.0.1"},
		{"two lines", httplimit.TrustXForwardedFor(local), []string{"X-Forwarded-For", "198.51.100.1", "X-Forwarded-For", "192.0.2.1"}, "192.0.2.1"},
	} {
		store := &recorder{Store: memstore.New()}
		s := serve(t, middleware(t, limiter(t, store, ratelimit.FixedWindow(9, time.Hour)), c.option)(ok))
		get(t, s, "/", c.headers...)
		if got := store.key(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opts []httplimit.Option
		want string
	}{
		{nil, "unknown"},
		{[]httplimit.Option{httplimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.0.0/8"))}, "unknown"},
		{[]httplimit.Option{httplimit.TrustXForwardedFor(), httplimit.TrustSocket()}, "192.0.2.1"},
	} {
		store := &recorder{Store: memstore.New()}
		listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Skip("no Unix sockets here: ", err)
		}
		s := httptest.NewUnstartedServer(middleware(t, limiter(t, store, ratelimit.FixedWindow(9, time.Hour)), c.opts...)(ok))
		s.Listener.Close()
		s.Listener = listener
		s.Start()
		t.Cleanup(s.Close)
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", listener.Addr().String())
		}}}
		t.Cleanup(client.CloseIdleConnections)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-For", "198.51.100.1, 192.0.2.1")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := store.key(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), ratelimit.FixedWindow(9, time.Hour))
	ten := netip.MustParsePrefix("10.0.0.0/8")
	for name, opts := range map[string][]httplimit.Option{
		"both headers":   {httplimit.TrustXForwardedFor(ten), httplimit.TrustForwarded(ten)},
		"no proxies":     {httplimit.TrustForwarded()},
		"every proxy":    {httplimit.TrustForwarded(netip.MustParsePrefix("::/0"))},
		"only a socket":  {httplimit.TrustSocket()},
		"no bits":        {httplimit.Networks(0, 64)},
		"two resets":     {httplimit.Headers(httplimit.XRateLimit, httplimit.XRateLimitEpoch)},
		"too many bits":  {httplimit.Networks(32, 200)},
		"invalid prefix": {httplimit.TrustForwarded(netip.Prefix{})},
	} {
		if _, err := httplimit.New(l, opts...); err == nil || !strings.HasPrefix(err.Error(), "httplimit: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := httplimit.New(nil); err == nil {
		t.Error("no limiter is accepted")
	}
}

func TestSkipAndCost(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	l := limiter(t, store, ratelimit.FixedWindow(10, 10_000*time.Hour))
	limited := middleware(t, l, httplimit.Skip(httplimit.Preflight), httplimit.Cost(func(r *http.Request) int64 { return int64(len(r.URL.Path)) - 1 }))(ok)
	send := func(method, path string, headers ...string) *http.Response {
		r := httptest.NewRequest(method, path, nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		limited.ServeHTTP(w, r)
		return w.Result()
	}
	for _, c := range []struct {
		method, path string
		headers      []string
		status       int
		remaining    string
	}{
		{"GET", "/1234567", nil, 200, `"default";r=3;`},
		{"GET", "/", nil, 200, ""},
		{"OPTIONS", "/123456", []string{"Origin", "https://x", "Access-Control-Request-Method", "PUT"}, 200, ""},
		{"OPTIONS", "/1234", nil, 429, `"default";r=3;`},
		{"HEAD", "/123", nil, 200, `"default";r=0;`},
		{"GET", "/12345678901", nil, 429, `"default";r=0;`},
	} {
		resp := send(c.method, c.path, c.headers...)
		got := resp.Header.Get("RateLimit")
		if resp.StatusCode != c.status || !strings.HasPrefix(got, c.remaining) {
			t.Errorf("%s %s: %v", c.method, c.path, resp)
		}
		if c.remaining == "" {
			noFields(t, resp.Header)
		}
		if never := len(c.path) > 11; never == (resp.StatusCode == 429 && resp.Header.Get("Retry-After") != "") && resp.StatusCode == 429 {
			t.Errorf("%s %s: Retry-After %q", c.method, c.path, resp.Header.Get("Retry-After"))
		}
	}
}

// Clients are not told what the store did not say.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	const reduced = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	for _, c := range []struct {
		name   string
		option []ratelimit.Option
		status []int
		retry  string
	}{
		{"error", nil, []int{503}, ""},
		{"open", []ratelimit.Option{ratelimit.FailOpen(time.Minute)}, []int{200, 200, 200}, ""},
		{"closed", []ratelimit.Option{ratelimit.FailClosed(2500 * time.Millisecond)}, []int{503, 503}, "3"},
		{"local", []ratelimit.Option{ratelimit.FailLocal(2, time.Minute)}, []int{200, 503}, "some"},
	} {
		l := limiter(t, broken{}, ratelimit.TokenBucket(1, time.Hour, 2).Named("few"), c.option...)
		s := serve(t, middleware(t, l, httplimit.Headers(httplimit.Draft, httplimit.Legacy, httplimit.XRateLimit))(ok))
		for i, status := range c.status {
			resp, body := get(t, s, "/")
			noFields(t, resp.Header)
			if resp.StatusCode != status || strings.Contains(body, "redis.internal") || strings.Contains(body, "127.0.0.1") {
				t.Errorf("%s, number %d: %v %s", c.name, i, resp, body)
			}
			if status != 200 && (!strings.Contains(body, reduced) || resp.Header.Get("Content-Type") != "application/problem+json") {
				t.Errorf("%s, number %d: %s", c.name, i, body)
			}
			if retry := resp.Header.Get("Retry-After"); status != 200 && retry != c.retry && (c.retry != "some" || retry == "") {
				t.Errorf("%s, number %d: Retry-After %q", c.name, i, retry)
			}
		}
	}
}

// A limiter that limits nothing while the store fails is visible: to a callback,
// and to the handler.
func TestFallbackIsSeen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		store  limits.Store
		option []ratelimit.Option
		seen   string // by the callback
		found  string // by the handler
	}{
		{"store", memstore.New(), nil, "", "store true 1"},
		{"open", broken{}, []ratelimit.Option{ratelimit.FailOpen(time.Minute)}, "/x open true", "open true 0"},
		{"closed", broken{}, []ratelimit.Option{ratelimit.FailClosed(time.Minute)}, "/x closed false", ""},
		{"local", broken{}, []ratelimit.Option{ratelimit.FailLocal(1, time.Minute)}, "/x local true", "local true 1"},
		{"error", broken{}, nil, "", "none"},
	} {
		l := limiter(t, c.store, ratelimit.TokenBucket(1, time.Hour, 2), c.option...)
		var seen, found string
		h := middleware(t, l,
			httplimit.OnFallback(func(r *http.Request, res ratelimit.Result) { seen += fmt.Sprint(r.URL.Path, " ", res.By, " ", res.OK) }),
			httplimit.OnError(func(w http.ResponseWriter, r *http.Request, next http.Handler, _ error) { next.ServeHTTP(w, r) }),
		)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			found = "none"
			if res, ok := httplimit.ResultOf(r.Context()); ok {
				found = fmt.Sprint(res.By, " ", res.OK, " ", res.Remaining)
			}
		}))
		ask(t.Context(), h, "/x")
		if seen != c.seen || found != c.found {
			t.Errorf("%s: the callback saw %q, the handler %q; want %q, %q", c.name, seen, found, c.seen, c.found)
		}
	}
}

func TestOwnAnswers(t *testing.T) {
	t.Parallel()
	refused := httplimit.OnRefused(func(w http.ResponseWriter, _ *http.Request, r ratelimit.Result) {
		http.Error(w, "by "+r.By.String()+", key "+r.Key, http.StatusTeapot)
	})
	pass := httplimit.OnError(func(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
		if !errors.Is(err, ratelimit.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		next.ServeHTTP(w, r)
	})
	s := serve(t, middleware(t, limiter(t, memstore.New(), ratelimit.FixedWindow(1, 10_000*time.Hour)), refused, pass)(ok))
	get(t, s, "/")
	if resp, body := get(t, s, "/"); resp.StatusCode != 418 || body != "by store, key 127.0.0.1\n" || resp.Header.Get("Retry-After") == "" || resp.Header.Get("RateLimit") == "" {
		t.Errorf("%v %s", resp, body)
	}
	s = serve(t, middleware(t, limiter(t, broken{}, ratelimit.FixedWindow(1, time.Hour)), refused, pass)(ok))
	if resp, body := get(t, s, "/"); resp.StatusCode != 200 || body != "ok" {
		t.Errorf("%v %s", resp, body)
	}
}
