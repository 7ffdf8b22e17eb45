package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/batonhq/baton/guard"
)

// site is a resource behind HTTP.
type site struct {
	log
	url    string
	client http.Client
}

func newSite(t *testing.T, g *guard.Gate) *site {
	t.Helper()
	s := &site{client: http.Client{Transport: new(guard.Transport)}}
	mux := http.NewServeMux()
	mux.Handle("/", guard.HTTP(g, func(r *http.Request) string {
		if r.Method == http.MethodGet {
			return ""
		}
		return r.URL.Path
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, ok := guard.From(r.Context()); ok {
			s.append(p.Token)
			io.WriteString(w, p.Holder)
		}
	})))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// write cannot make the handler call between.
func (s *site) write(ctx context.Context, p guard.Pass, between func()) error {
	between()
	req, err := http.NewRequestWithContext(guard.With(ctx, p), http.MethodPut, s.url+"/r", nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := guard.Refused(resp); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

type betweenKey struct{}

// direct calls the handler in this process, so that it can pass between to it.
type direct struct {
	log
	handler http.Handler
}

func newDirect(front func(http.Handler) http.Handler) *direct {
	d := new(direct)
	d.handler = front(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Context().Value(betweenKey{}).(func())()
		p, _ := guard.From(r.Context())
		d.append(p.Token)
	}))
	return d
}

func (d *direct) write(ctx context.Context, p guard.Pass, between func()) error {
	req := httptest.NewRequestWithContext(context.WithValue(ctx, betweenKey{}, between), http.MethodPut, "/r", nil)
	guard.SetHeader(req.Header, p)
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, req)
	resp := w.Result()
	if err := guard.Refused(resp); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func byPath(r *http.Request) string { return r.URL.Path }

func TestHTTP(t *testing.T) {
	t.Parallel()
	holds(t, newDirect(guard.HTTP(new(guard.Gate), byPath)))
	interleave(t, newDirect(guard.HTTP(new(guard.Gate), byPath)), 8, 100)
	interleave(t, newSite(t, new(guard.Gate)), 8, 40)
}

// In place of Memory there can be any Marks.
func TestHTTPOverMarks(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		eachRedis(t, func(t *testing.T, s redisServer) {
			holds(t, newDirect(guard.HTTP(&guard.Gate{Marks: s}, byPath)))
			interleave(t, newDirect(guard.HTTP(&guard.Gate{Marks: s}, func(*http.Request) string { return "many" })), 4, 30)
		})
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		db := sqliteDB(t)
		if err := guard.SQLite.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		holds(t, newDirect(guard.HTTP(&guard.Gate{Marks: guard.SQLite.Marks(db)}, byPath)))
	})
}

// Planted: a middleware that only compares and raises before it calls the
// handler.
func TestHTTPWithoutAGateIsCaught(t *testing.T) {
	t.Parallel()
	var marks guard.Memory
	mustBreak(t, newDirect(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p, _, err := guard.FromHeader(r.Header)
			if err != nil {
				t.Error(err)
			}
			if err := marks.Raise(r.Context(), "r", p); err != nil {
				// The real one's answer to a stale token.
				guard.HTTP(refusing(p.Token+1), byPath)(next).ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(w, r.WithContext(guard.With(r.Context(), p)))
		})
	}))
}

// refusing is a Gate that has seen a token.
func refusing(token int64) *guard.Gate {
	g := new(guard.Gate)
	_ = g.Do(context.Background(), "/r", pass(token, "seen"), func() error { return nil })
	return g
}

// broken are Marks that always fail.
type broken struct{}

func (broken) Raise(context.Context, string, guard.Pass) error { return errors.New("secret: down") }

func TestHTTPAnswers(t *testing.T) {
	t.Parallel()
	var g guard.Gate
	if err := g.Do(t.Context(), "/seen", pass(1<<53+1, "a"), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	ran := false
	handler := func(g *guard.Gate) http.Handler {
		return guard.HTTP(g, func(r *http.Request) string {
			if r.Method == http.MethodGet {
				return ""
			}
			return r.URL.Path
		})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true }))
	}
	sound := handler(&g)
	for _, c := range []struct {
		what           string
		handler        http.Handler
		method, path   string
		token, holders []string
		status         int
		body           string
	}{
		{what: "unguarded", method: "GET", path: "/seen", status: 200},
		{what: "no token", path: "/new", status: 428, body: `"Send the token of your lease as X-Fence-Token."`},
		{what: "a token", path: "/new", token: []string{"1"}, status: 200},
		{what: "a holder", path: "/new", token: []string{"2"}, holders: []string{"h%C3%B6st%3A1"}, status: 200},
		{what: "stale", path: "/seen", token: []string{"9007199254740992"}, status: 412, body: `"resource":"/seen","token":"9007199254740992","last":"9007199254740993"`},
		{what: "another holder", path: "/seen", token: []string{"9007199254740993"}, holders: []string{"b"}, status: 412, body: `"token":"9007199254740993"`},
		{what: "the same holder", path: "/seen", token: []string{"9007199254740993"}, holders: []string{"a"}, status: 200},
		{what: "no number", path: "/new", token: []string{"x"}, status: 400, body: "number"},
		{what: "too high", path: "/new", token: []string{"9223372036854775808"}, status: 400, body: "number"},
		{what: "a sign", path: "/new", token: []string{"+5"}, status: 400, body: "sign"},
		{what: "zeros", path: "/new", token: []string{"005"}, status: 400, body: "zeros"},
		{what: "zero", path: "/new", token: []string{"0"}, status: 400, body: "positive"},
		{what: "two tokens", path: "/new", token: []string{"1", "2"}, status: 400, body: "times"},
		{what: "two holders", path: "/new", token: []string{"9"}, holders: []string{"a", "b"}, status: 400, body: "times"},
		{what: "a holder alone", path: "/new", holders: []string{"a"}, status: 400, body: "times"},
		{what: "a holder that cannot be", path: "/new", token: []string{"9"}, holders: []string{"%"}, status: 400, body: "percent"},
		{what: "a holder with a line break", path: "/new", token: []string{"9"}, holders: []string{"%0a"}, status: 400, body: "control"},
		{what: "a name that cannot be", path: "/" + strings.Repeat("x", 600), token: []string{"9"}, status: 400, body: "512"},
		{what: "marks down", handler: handler(&guard.Gate{Marks: broken{}}), path: "/new", token: []string{"9"}, status: 503, body: "at present"},
	} {
		if c.method == "" {
			c.method = http.MethodPut
		}
		if c.handler == nil {
			c.handler = sound
		}
		r := httptest.NewRequest(c.method, c.path, nil)
		for _, v := range c.token {
			r.Header.Add(guard.TokenHeader, v)
		}
		for _, v := range c.holders {
			r.Header.Add(guard.HolderHeader, v)
		}
		ran = false
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, r)
		body := w.Body.String()
		if w.Code != c.status || !strings.Contains(body, c.body) || strings.Contains(body, "secret") || ran != (c.status == 200) {
			t.Errorf("%s: %d %s, handled: %v; want %d with %q", c.what, w.Code, body, ran, c.status, c.body)
		}
		if c.status == 200 {
			continue
		}
		var p struct {
			Status int
			Title  string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != c.status || p.Title == "" || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: no problem document: %s", c.what, body)
		}
		if got := guard.Refused(w.Result()); (c.status == 412) != errors.Is(got, guard.ErrStale) {
			t.Errorf("%s: Refused says %v", c.what, got)
		}
	}
}

func TestTransport(t *testing.T) {
	t.Parallel()
	s := newSite(t, new(guard.Gate))
	ask := func(ctx context.Context, method string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, s.url+"/r", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if len(req.Header) != 0 {
			t.Errorf("the caller's request was changed: %v", req.Header)
		}
		return resp.StatusCode, string(body)
	}
	ctx := guard.With(t.Context(), pass(math.MaxInt64, "höst: 1/%"))
	if status, body := ask(ctx, http.MethodPut); status != 200 || body != "höst: 1/%" {
		t.Errorf("%d %q", status, body)
	}
	if status, _ := ask(t.Context(), http.MethodPut); status != http.StatusPreconditionRequired {
		t.Errorf("without a pass: %d", status)
	}
	if status, _ := ask(t.Context(), http.MethodGet); status != 200 {
		t.Errorf("unguarded: %d", status)
	}
	req, _ := http.NewRequestWithContext(guard.With(t.Context(), guard.Pass{}), http.MethodPut, s.url+"/r", nil)
	if _, err := s.client.Do(req); !errors.As(err, new(*guard.PassError)) {
		t.Errorf("a pass that nobody has: %v", err)
	}
}

// A 412 from another program is no refusal, and the whole body can be read.
func TestRefusedIsOursAlone(t *testing.T) {
	t.Parallel()
	long := `{"type":"about:blank","status":412,"detail":"` + strings.Repeat("x", 20_000) + `"}`
	for _, c := range []struct {
		status     int
		kind, body string
		stale      bool
	}{
		{412, "application/problem+json", long, false},
		{412, "application/problem+json", `{"type":"about:blank","status":412}`, false},
		{412, "application/problem+json", "", false},
		{412, "text/html", "<p>", false},
		{412, "", "", false},
		{200, "application/problem+json", `{"type":"https://github.com/batonhq/baton/blob/main/docs/fencing.md#stale"}`, false},
		{412, "application/problem+json; charset=utf-8", `{"type":"https://github.com/batonhq/baton/blob/main/docs/fencing.md#stale","resource":"r","token":"5","last":"6"}`, true},
	} {
		r := &http.Response{StatusCode: c.status, Header: http.Header{"Content-Type": {c.kind}}, Body: io.NopCloser(strings.NewReader(c.body))}
		err := guard.Refused(r)
		if errors.Is(err, guard.ErrStale) != c.stale {
			t.Errorf("%d %s %.40s: %v", c.status, c.kind, c.body, err)
		}
		if body, err := io.ReadAll(r.Body); string(body) != c.body || err != nil {
			t.Errorf("%d %s: of the body is left %.40q, %v", c.status, c.kind, body, err)
		}
	}
}

// One side reads what the other writes; nothing else is accepted.
func FuzzHeader(f *testing.F) {
	f.Add(int64(5), "host:1")
	f.Add(int64(math.MaxInt64), "ö%2F \x7f")
	f.Add(int64(-1), "a\r\nX-Evil: 1")
	f.Fuzz(func(t *testing.T, token int64, holder string) {
		h := make(http.Header)
		guard.SetHeader(h, pass(token, holder))
		for _, values := range h {
			for _, v := range values {
				if strings.ContainsAny(v, "\r\n\x00") {
					t.Errorf("%q", v)
				}
			}
		}
		p, ok, err := guard.FromHeader(h)
		if !ok || err == nil && p != pass(token, holder) {
			t.Errorf("%d %q became %v, %v", token, holder, p, err)
		}
		if bad := new(guard.Memory).Raise(t.Context(), "r", pass(token, holder)); (bad == nil) != (err == nil) {
			t.Errorf("%d %q: %v as a header, %v as a pass", token, holder, err, bad)
		}
	})
}
