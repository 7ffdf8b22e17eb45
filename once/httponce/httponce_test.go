package httponce_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/store/memstore"
)

// A site is a real server whose handler is behind the middleware.
type site struct {
	t   *testing.T
	url string
	ran atomic.Int64 // how often the handler has begun
}

func byUser(r *http.Request) string { return r.Header.Get("User") }

func newSite(t *testing.T, store driver.Locks, cfg httponce.Config, handler http.HandlerFunc) *site {
	t.Helper()
	ops, err := once.New(store, once.Config{Lock: baton.Config{TTL: 2 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Scope == nil {
		cfg.Scope = byUser
	}
	idempotent, err := httponce.New(ops, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t}
	server := httptest.NewServer(idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ran.Add(1)
		handler(w, r)
	})))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

type got struct {
	status   int
	header   http.Header
	body     string
	replayed bool
}

// ask sends a request with header fields in pairs.
func (s *site) ask(method, path, body string, header ...string) got {
	s.t.Helper()
	a, err := s.try(s.t.Context(), method, path, body, header...)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *site) try(ctx context.Context, method, path, body string, header ...string) (got, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return got{}, err
	}
	r.Header.Set("User", "eve")
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return send(r)
}

func send(r *http.Request) (got, error) {
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return got{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return got{res.StatusCode, res.Header, string(text), res.Header.Get("Idempotency-Replayed") == "true"}, err
}

func (s *site) post(key, body string, header ...string) got {
	s.t.Helper()
	return s.ask(http.MethodPost, "/pay", body, append([]string{"Idempotency-Key", key}, header...)...)
}

func (s *site) wantRan(n int64) {
	s.t.Helper()
	if ran := s.ran.Load(); ran != n {
		s.t.Errorf("the handler ran %d times, want %d", ran, n)
	}
}

func (s *site) want(a got, status int, body string, replayed bool) {
	s.t.Helper()
	if a.status != status || !strings.Contains(a.body, body) || a.replayed != replayed {
		s.t.Errorf("%d %q, replayed %v; want %d %q, %v", a.status, a.body, a.replayed, status, body, replayed)
	}
}

// numbered answers with how often it ran.
func numbered() http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", "/payments/1")
		w.Header().Set("Set-Cookie", "session=secret")
		w.Header().Set("Content-Type", "text/x-test")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "%d: %s", n.Add(1), body)
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), httponce.Config{}, numbered())
	first := s.post("k", "five euros")
	s.want(first, 201, "1: five euros", false)
	if first.header.Get("Set-Cookie") == "" {
		t.Error("the first client lacks its cookie")
	}
	for range 2 {
		again := s.post("k", "five euros")
		s.want(again, 201, "1: five euros", true)
		if again.header.Get("Location") != "/payments/1" || again.header.Get("Content-Type") != "text/x-test" {
			t.Errorf("the answer that is sent again has %v", again.header)
		}
		if again.header.Get("Set-Cookie") != "" {
			t.Error("a cookie was kept in the store")
		}
	}
	s.want(s.post("l", "five euros"), 201, "2: five euros", false)
	s.want(s.post(`"k"`, "five euros"), 201, "1: five euros", true)
	s.wantRan(2)
}

func TestWhoseKey(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), httponce.Config{}, numbered())
	s.post("k", "x")
	other := s.ask("POST", "/pay", "x", "Idempotency-Key", "k", "User", "")
	s.want(other, 201, "1", true) // the field User is there twice: eve is the first
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/pay", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "k")
	for user, status := range map[string]int{"": 401, "mallory": 201} {
		r.Header.Set("User", user)
		r.Body, _ = r.GetBody()
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != status || res.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("user %q: %v %v", user, res.Status, res.Header)
		}
	}
	// A user whose name has a slash has no other user's keys.
	a := newSite(t, memstore.New(), httponce.Config{Scope: func(r *http.Request) string { return r.Header.Get("Tenant") }}, numbered())
	a.want(a.ask("POST", "/", "", "Tenant", "a/b", "Idempotency-Key", "c"), 201, "1", false)
	a.want(a.ask("POST", "/", "", "Tenant", "a", "Idempotency-Key", "b/c"), 201, "2", false)
	a.want(a.ask("POST", "/", "", "Tenant", "a%2Fb", "Idempotency-Key", "c"), 201, "3", false)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), httponce.Config{Required: true, MaxBody: 10}, numbered())
	s.post("used", "x")
	for _, c := range []struct {
		name   string
		status int
		a      got
	}{
		{"no key", 400, s.ask("POST", "/pay", "x")},
		{"an empty key", 400, s.post("", "x")},
		{"an empty quoted key", 400, s.post(`""`, "x")},
		{"a quote that does not end", 400, s.post(`"x`, "x")},
		{"more than one string", 400, s.post(`"x", "y"`, "x")},
		{"two keys", 400, s.post("a", "x", "Idempotency-Key", "b")},
		{"a long key", 400, s.post(strings.Repeat("k", 600), "x")},
		{"a key that is no UTF-8", 400, s.post("\xff", "x")},
		{"another body", 422, s.post("used", "y")},
		{"another path", 422, s.ask("POST", "/other", "x", "Idempotency-Key", "used")},
		{"another query", 422, s.ask("POST", "/pay?a=1", "x", "Idempotency-Key", "used")},
		{"another method", 422, s.ask("PATCH", "/pay", "x", "Idempotency-Key", "used")},
		{"a long body", 413, s.post("k", "more than ten bytes")},
	} {
		var problem struct {
			Title, Detail string
			Status        int
		}
		err := json.Unmarshal([]byte(c.a.body), &problem)
		if c.a.status != c.status || err != nil || problem.Status != c.status || problem.Title == "" || problem.Detail == "" ||
			c.a.header.Get("Content-Type") != "application/problem+json" || c.a.replayed {
			t.Errorf("%s: %d %q, want %d", c.name, c.a.status, c.a.body, c.status)
		}
	}
	s.wantRan(1)
	s.want(s.ask("GET", "/pay", ""), 201, "2", false) // is no method that it is for
}

func TestWhatIsRecorded(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	s := newSite(t, memstore.New(), httponce.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		if status.Load() == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(int(status.Load()))
	})
	for _, c := range []struct {
		status int
		again  bool
	}{
		{200, true},
		{204, true},
		{304, true},
		{400, true},
		{402, true},
		{404, true},
		{499, true},
		{401, false},
		{407, false},
		{408, false},
		{409, false},
		{412, false},
		{417, false},
		{428, false},
		{425, false},
		{429, false},
		{500, false},
		{503, false},
		{999, false},
	} {
		before := s.ran.Load()
		key := fmt.Sprint("k", c.status)
		status.Store(int64(c.status))
		s.want(s.post(key, ""), c.status, "", false)
		s.want(s.post(key, ""), c.status, "", c.again)
		if ran := s.ran.Load() - before; ran != map[bool]int64{true: 1, false: 2}[c.again] {
			t.Errorf("%d: the handler ran %d times", c.status, ran)
		}
	}
	status.Store(0)
	if _, err := s.try(t.Context(), "POST", "/pay", "", "Idempotency-Key", "panics"); err == nil {
		t.Error("a panic was answered")
	}
	status.Store(201)
	s.want(s.post("panics", ""), 201, "", false)
}

func TestBusy(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}, 9), make(chan struct{})
	handler := func(w http.ResponseWriter, _ *http.Request) {
		begun <- struct{}{}
		<-goOn
		fmt.Fprint(w, "done")
	}
	store := memstore.New()
	at := newSite(t, store, httponce.Config{}, handler)
	waits := newSite(t, store, httponce.Config{Wait: 20 * time.Second}, handler)
	soon := newSite(t, store, httponce.Config{Wait: 50 * time.Millisecond}, handler)
	first := make(chan got, 1)
	go func() { first <- at.post("k", "") }()
	<-begun
	for _, s := range []*site{at, soon} {
		if a := s.post("k", ""); a.status != 409 || a.header.Get("Retry-After") != "1" {
			t.Errorf("%+v", a)
		}
	}
	second := make(chan got, 1)
	go func() { second <- waits.post("k", "") }()
	waits.awaitWaiting(store, "once/http/eve/k")
	close(goOn)
	at.want(<-first, 200, "done", false)
	waits.want(<-second, 200, "done", true)
	at.wantRan(1)
	waits.wantRan(0)
	soon.wantRan(0)
}

// awaitWaiting returns when somebody waits for a lock, in the store or in its process.
func (s *site) awaitWaiting(store *memstore.Store, key string) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		info, err := store.Inspect(s.t.Context(), key)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(info.Waiters) > 0 {
			return
		}
		if time.Now().After(end) {
			s.t.Fatal("nobody waits")
		}
	}
}

// TestClientHangsUp: the handler goes on, and its answer is there when the client comes
// again; a request that waits leaves.
func TestClientHangsUp(t *testing.T) {
	t.Parallel()
	begun, goOn, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	s := newSite(t, memstore.New(), httponce.Config{}, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-goOn
		over <- r.Context().Err()
		fmt.Fprint(w, "done")
	})
	ctx, hangUp := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.try(ctx, "POST", "/pay", "", "Idempotency-Key", "k")
		ended <- err
	}()
	<-begun
	hangUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // the server may hear of it, or not yet
	close(goOn)
	if err := <-over; err != nil {
		t.Errorf("the handler's context ended: %v", err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if a := s.post("k", ""); a.status != 409 {
			s.want(a, 200, "done", true)
			break
		}
		if time.Now().After(end) {
			t.Fatal("it never ends")
		}
	}
	s.wantRan(1)
}

func TestAnswersThatCannotBeSentAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), httponce.Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			_, ok := w.(http.Flusher)
			err := http.NewResponseController(w).Flush()
			_, _, hijack := http.NewResponseController(w).Hijack()
			fmt.Fprintf(w, "%v, %v, %v", ok, err, hijack)
		case "/long":
			n, err := io.Copy(w, io.LimitReader(zeros{}, 2*httponce.MaxAnswer))
			if !errors.Is(err, httponce.ErrTooLong) {
				t.Errorf("%d bytes, %v", n, err)
			}
		case "/most":
			_, _ = w.Write(make([]byte, httponce.MaxAnswer-200))
		case "/edge": // with its status and its fields it is longer
			_, _ = w.Write(make([]byte, httponce.MaxAnswer))
		}
	})
	a := s.ask("POST", "/stream", "", "Idempotency-Key", "stream")
	s.want(a, 200, "false, httponce: an answer that is recorded is sent as a whole", false)
	for _, path := range []string{"/long", "/edge"} {
		a = s.ask("POST", path, "", "Idempotency-Key", path)
		s.want(a, 500, "The request was handled", false)
		s.want(s.ask("POST", path, "", "Idempotency-Key", path), 500, "The request was handled", true)
	}
	a = s.ask("POST", "/most", "", "Idempotency-Key", "most")
	if again := s.ask("POST", "/most", "", "Idempotency-Key", "most"); again.body != a.body || len(a.body) != httponce.MaxAnswer-200 || !again.replayed {
		t.Errorf("%d bytes, and again %d", len(a.body), len(again.body))
	}
	s.wantRan(4)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestAttemptOf(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), httponce.Config{}, func(w http.ResponseWriter, r *http.Request) {
		a, ok := httponce.AttemptOf(r.Context())
		fmt.Fprintln(w, ok, a.Token > 0, a.Lease != nil && a.Lease.Token() == a.Token, a.Key)
	})
	s.want(s.post("k", ""), 200, "true true true http/eve/k", false)
	s.want(s.ask("POST", "/pay", ""), 200, "false false false", false)
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		source        httponce.Source
		header        []string
		first, second string
	}{
		{"GitHub", httponce.Delivery("X-GitHub-Delivery"), []string{"X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"}, `{"zen":"a"}`, `{"zen":"a"}`},
		{"Svix", httponce.Delivery("Svix-Id"), []string{"Svix-Id", "msg_p5jXN8AQM9LWM0D4loKWxJek"}, `{"n":1}`, `{"n":1}`},
		{"Stripe", httponce.StripeEvent(), nil, `{"id":"evt_1","pending_webhooks":2}`, `{"id":"evt_1","pending_webhooks":1}`},
	} {
		s := newSite(t, memstore.New(), httponce.Config{Source: &c.source, Required: true, Scope: func(*http.Request) string { return c.name }}, numbered())
		s.want(s.ask("POST", "/hook", c.first, c.header...), 201, "1: "+c.first, false)
		s.want(s.ask("POST", "/hook", c.second, c.header...), 201, "1: "+c.first, true)
		s.want(s.ask("POST", "/hook", "{}"), 400, "key", false)
		s.wantRan(1)
	}
	stripe := httponce.StripeEvent()
	s := newSite(t, memstore.New(), httponce.Config{Source: &stripe}, numbered())
	s.want(s.ask("POST", "/hook", "no JSON"), 400, "no event", false)
	s.want(s.ask("POST", "/hook", `{"other":1}`), 201, `1: {"other":1}`, false) // and the handler has the body
}

func TestConfig(t *testing.T) {
	t.Parallel()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for field, cfg := range map[string]httponce.Config{
		"Scope":   {},
		"Wait":    {Scope: byUser, Wait: -1},
		"MaxBody": {Scope: byUser, MaxBody: -1},
		"Source":  {Scope: byUser, Source: &httponce.Source{}},
	} {
		_, err := httponce.New(ops, cfg)
		if wrong := new(baton.ConfigError); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := httponce.New(nil, httponce.Config{Scope: byUser}); err == nil {
		t.Error("there is no runner")
	}
}

// TestForeignRecords: what another program has recorded under the key is no answer.
func TestForeignRecords(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s := newSite(t, store, httponce.Config{}, numbered())
	ops, err := once.New(store, once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for key, fn := range map[string]func(context.Context, once.Attempt) ([]byte, error){
		"text":  func(context.Context, once.Attempt) ([]byte, error) { return []byte("hello"), nil },
		"final": func(context.Context, once.Attempt) ([]byte, error) { return nil, once.Final(errors.New("no")) },
	} {
		_, _ = ops.Do(t.Context(), "http/eve/"+key, fn)
		s.want(s.post(key, ""), 500, "Another program", false)
	}
	s.wantRan(0)
}

// TestManyAtOnce: of a hundred requests with one key one runs the handler, and all that
// wait get its answer.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), httponce.Config{Wait: 30 * time.Second}, numbered())
	answers := make([]got, 100)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			a, err := s.try(t.Context(), "POST", "/pay", "x", "Idempotency-Key", "k")
			if err != nil {
				t.Error(err)
			}
			answers[i] = a
		})
	}
	all.Wait()
	s.wantRan(1)
	firsts := 0
	for _, a := range answers {
		if a.status != 201 || !strings.Contains(a.body, "1: x") {
			t.Errorf("%+v", a)
		}
		if !a.replayed {
			firsts++
		}
	}
	if firsts != 1 {
		t.Errorf("%d answers say that they are the first", firsts)
	}
}

// TestFieldsOfOthers: what middleware further out has set is there, the first time and
// again, and what the handler sets comes over it.
func TestFieldsOfOthers(t *testing.T) {
	t.Parallel()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	idempotent, err := httponce.New(ops, httponce.Config{Scope: byUser})
	if err != nil {
		t.Fatal(err)
	}
	h := idempotent(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Vary", "Accept")
		_, _ = io.Copy(w, bytes.NewReader([]byte("<html>")))
	}))
	for i := range 2 {
		w := httptest.NewRecorder()
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Vary", "Origin")
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
		r.Header.Set("User", "eve")
		r.Header.Set("Idempotency-Key", "k")
		h.ServeHTTP(w, r)
		res := w.Result()
		if res.Header.Get("Access-Control-Allow-Origin") != "*" || !slices.Equal(res.Header["Vary"], []string{"Accept"}) ||
			res.Header.Get("Content-Type") != "text/html; charset=utf-8" || (res.Header.Get("Idempotency-Replayed") == "true") != (i == 1) {
			t.Errorf("%d: %v", i, res.Header)
		}
	}
}

// Of an answer that is not recorded the store keeps the status, for people who look, and no
// other client gets more of it.
func TestFailuresLeakNothing(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	s := newSite(t, store, httponce.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Etag", "secret")
		http.Error(w, "secret", http.StatusBadGateway)
	})
	s.want(s.post("k", "one"), 502, "secret", false)
	keys := 0
	for rec, err := range store.ListRecords(t.Context(), "") {
		keys++
		if text := string(rec.Result); err != nil || !rec.Retry || !strings.Contains(text, "502 Bad Gateway") || strings.Contains(text, "secret") {
			t.Errorf("the store keeps %+v (%q), %v", rec, text, err)
		}
	}
	if keys != 1 {
		t.Errorf("the store has %d records", keys)
	}
	if other := s.post("k", "another body"); other.status != 422 || strings.Contains(fmt.Sprint(other), "secret") || strings.Contains(fmt.Sprint(other), "502") {
		t.Errorf("another request gets %+v", other)
	}
}
