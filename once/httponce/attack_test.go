package httponce_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/store/memstore"
)

// around is a site with middleware of others outside of ours.
func around(t *testing.T, outer func(http.Handler) http.Handler, handler http.HandlerFunc) *site {
	t.Helper()
	ops, err := once.New(memstore.New(), once.Config{Lock: baton.Config{}})
	if err != nil {
		t.Fatal(err)
	}
	idempotent, err := httponce.New(ops, httponce.Config{Scope: byUser})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t}
	server := httptest.NewServer(outer(idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ran.Add(1)
		handler(w, r)
	}))))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// TestOddFields: whatever a handler writes into a field that is recorded, its answer can be
// sent again.
func TestOddFields(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"control":  "a\x01b",
		"null":     "a\x00b",
		"delete":   "a\x7fb",
		"lines":    "a\r\nSet-Cookie: b",
		"tab":      "a\tb",
		"no UTF-8": "a\xffb",
		"UTF-8":    "aöb",
		"empty":    "",
	} {
		s := newSite(t, memstore.New(), httponce.Config{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Disposition", value)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, "kept")
		})
		// Go's own client refuses some of these, so its answer is not looked at.
		_, _ = s.try(t.Context(), "POST", "/pay", "", "Idempotency-Key", "k")
		again, err := s.try(t.Context(), "POST", "/pay", "", "Idempotency-Key", "k")
		if err != nil && !strings.Contains(err.Error(), "malformed MIME header") {
			t.Errorf("%s: %v", name, err)
		} else if err == nil && (again.status != 201 || again.body != "kept" || !again.replayed || again.header.Get("Set-Cookie") != "") {
			t.Errorf("%s: %+v", name, again)
		}
		s.wantRan(1)
	}
}

// TestEventOfTwoEndpoints: senders of webhooks give an event one name for all endpoints
// that it goes to. Each of these must have it.
func TestEventOfTwoEndpoints(t *testing.T) {
	t.Parallel()
	stripe, svix := httponce.StripeEvent(), httponce.Delivery("Svix-Id")
	for _, source := range []*httponce.Source{&stripe, &svix} {
		s := newSite(t, memstore.New(), httponce.Config{Source: source, Required: true}, numbered())
		s.want(s.ask("POST", "/books", `{"id":"evt_1"}`, "Svix-Id", "msg_1"), 201, "1:", false)
		s.want(s.ask("POST", "/mail", `{"id":"evt_1"}`, "Svix-Id", "msg_1"), 201, "2:", false)
		s.want(s.ask("POST", "/mail", `{"id":"evt_1"}`, "Svix-Id", "msg_1"), 201, "2:", true)
		s.wantRan(2)
	}
}

// TestLongAnswerOfAProxy: httputil.ReverseProxy aborts its handler if it cannot write the
// answer. What is behind it has taken effect nevertheless.
func TestLongAnswerOfAProxy(t *testing.T) {
	t.Parallel()
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 2*httponce.MaxAnswer))
	}))
	t.Cleanup(behind.Close)
	to, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	s := newSite(t, memstore.New(), httponce.Config{}, proxy.ServeHTTP)
	s.want(s.post("k", ""), 500, "too long", false)
	s.want(s.post("k", ""), 500, "too long", true)
	s.wantRan(1)
}

// TestLongFailure: a failure that is not recorded is not recorded if it is long, either.
func TestLongFailure(t *testing.T) {
	t.Parallel()
	var s *site
	s = newSite(t, memstore.New(), httponce.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		if s.ran.Load() == 1 {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.Copy(w, io.LimitReader(zeros{}, 2*httponce.MaxAnswer))
		}
	})
	a := s.post("k", "")
	s.want(a, 503, "too long", false)
	if a.header.Get("Retry-After") != "7" {
		t.Errorf("its fields are %v", a.header)
	}
	s.want(s.post("k", ""), 200, "", false)
	s.wantRan(2)
}

// TestFieldThatIsRemoved: what a handler removes that others have set stays removed, and
// no type is guessed that it does not want.
func TestFieldThatIsRemoved(t *testing.T) {
	t.Parallel()
	s := around(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Outer", "kept")
			w.Header().Set("X-Removed", "outer")
			next.ServeHTTP(w, r)
		})
	}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Del("X-Removed")
		w.Header()["Content-Type"] = nil
		fmt.Fprint(w, "<html>")
	})
	for _, replayed := range []bool{false, true} {
		a := s.post("k", "")
		s.want(a, 200, "<html>", replayed)
		if a.header.Get("X-Outer") != "kept" || a.header.Get("X-Removed") != "" && !replayed || a.header.Get("Content-Type") != "" {
			t.Errorf("replayed %v: %v", replayed, a.header)
		}
	}
}

// TestFormThatWasRead: a form that others have read already is compared all the same.
func TestFormThatWasRead(t *testing.T) {
	t.Parallel()
	s := around(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			next.ServeHTTP(w, r)
		})
	}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.PostFormValue("sum")) })
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	s.want(s.post("k", "sum=5", form...), 200, "5", false)
	s.want(s.post("k", "sum=5", form...), 200, "5", true)
	s.want(s.post("k", "sum=5000", form...), 422, "another request", false)
	s.wantRan(1)
}

// TestFilesOfAForm: the server removes the files of a form only from its own request.
func TestFilesOfAForm(t *testing.T) {
	t.Parallel()
	var file string
	s := newSite(t, memstore.New(), httponce.Config{MaxBody: 32 << 20}, func(_ http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
			return
		}
		f, err := r.MultipartForm.File["f"][0].Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if on, ok := f.(*os.File); ok {
			file = on.Name()
		}
	})
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "f.txt")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(part, io.LimitReader(zeros{}, 11<<20)); err != nil {
		t.Fatal(err)
	}
	form.Close()
	s.want(s.post("k", body.String(), "Content-Type", form.FormDataContentType()), 200, "", false)
	if file == "" {
		t.Fatal("the form has no file on the disk")
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", file, err)
		_ = os.Remove(file)
	}
}

// TestHTTP2: an answer over HTTP/2, with a body of unknown length, is sent again.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	idempotent, err := httponce.New(ops, httponce.Config{Scope: byUser, MaxBody: 100})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(idempotent(numbered()))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	for _, c := range []struct {
		body     string
		status   int
		replayed string
	}{{"five", 201, ""}, {"five", 201, "true"}, {"six", 422, ""}, {strings.Repeat("x", 1000), 413, ""}} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, io.NopCloser(strings.NewReader(c.body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("User", "eve")
		r.Header.Set("Idempotency-Key", "k")
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.ProtoMajor != 2 || res.StatusCode != c.status || res.Header.Get("Idempotency-Replayed") != c.replayed ||
			c.status == 201 && string(body) != "1: five" {
			t.Errorf("%q: %v %v %q, %v", c.body, res.Proto, res.Status, body, err)
		}
	}
}

// TestSmallerLimitOutside: who sends too much is told the limit that it has met.
func TestSmallerLimitOutside(t *testing.T) {
	t.Parallel()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	idempotent, err := httponce.New(ops, httponce.Config{Scope: byUser, MaxBody: 100})
	if err != nil {
		t.Fatal(err)
	}
	handler := idempotent(numbered())
	for _, c := range []struct {
		outside int64
		said    string
	}{{10, "At most 10 bytes"}, {1000, "At most 100 bytes"}} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", 200)))
		r.Header.Set("User", "eve")
		r.Header.Set("Idempotency-Key", "k")
		http.MaxBytesHandler(handler, c.outside).ServeHTTP(w, r)
		if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), c.said) {
			t.Errorf("%d: %d %s", c.outside, w.Code, w.Body)
		}
	}
}

// TestShortAnswer: an answer that ends before its Content-Length is no answer. Its client is
// told by the end of the connection, as without this middleware, and the next request runs the
// handler again.
func TestShortAnswer(t *testing.T) {
	t.Parallel()
	var whole atomic.Bool
	copies := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		if from := strings.Repeat("x", 50); whole.Load() {
			fmt.Fprint(w, from, from)
		} else {
			fmt.Fprint(w, from)
		}
	}
	nothing := func(w http.ResponseWriter, r *http.Request) {
		if whole.Load() {
			copies(w, r)
		}
		w.Header().Set("Content-Length", "100")
	}
	for name, handler := range map[string]http.HandlerFunc{"half": copies, "nothing": nothing} {
		whole.Store(false)
		s := newSite(t, memstore.New(), httponce.Config{}, handler)
		for range 2 {
			if a, err := s.try(t.Context(), "POST", "/pay", "", "Idempotency-Key", "k"); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s: %+v, %v", name, a, err)
			}
		}
		s.wantRan(2)
		whole.Store(true)
		s.want(s.post("k", ""), 200, strings.Repeat("x", 100), false)
		s.want(s.post("k", ""), 200, strings.Repeat("x", 100), true)
		s.wantRan(3)
	}
}

// TestLongWrite: what exceeds the Content-Length is refused as net/http refuses it, and all
// clients get the same.
func TestLongWrite(t *testing.T) {
	t.Parallel()
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		if n, err := io.WriteString(w, "0123456789"); n != 10 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := w.Write(nil); n != 0 || err != nil {
			t.Errorf("nothing: %d, %v", n, err)
		}
		if n, err := io.WriteString(w, "more"); n != 0 || !errors.Is(err, http.ErrContentLength) {
			t.Errorf("more: %d, %v", n, err)
		}
	}
	bare := httptest.NewServer(http.HandlerFunc(handler)) // net/http says the same
	t.Cleanup(bare.Close)
	if res, err := http.Post(bare.URL, "", nil); err != nil {
		t.Error(err)
	} else {
		res.Body.Close()
	}
	s := newSite(t, memstore.New(), httponce.Config{}, handler)
	s.want(s.post("k", ""), 200, "0123456789", false)
	s.want(s.post("k", ""), 200, "0123456789", true)
	s.wantRan(1)
}

// TestDeadlinesOfTheConnection: a handler sets them as without this middleware.
func TestDeadlinesOfTheConnection(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), httponce.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		c := http.NewResponseController(w)
		if err := errors.Join(c.EnableFullDuplex(), c.SetReadDeadline(time.Now().Add(time.Hour)), c.SetWriteDeadline(time.Unix(1, 0))); err != nil {
			t.Error(err)
		}
	})
	if a, err := s.try(t.Context(), "POST", "/pay", "", "Idempotency-Key", "k"); err == nil {
		t.Errorf("a deadline for writing that has passed: %+v", a)
	}
}

// TestOtherTry: what a handler decides by and what another try may change is not replayed.
func TestOtherTry(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), httponce.Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") == "stale":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Header.Get("If-Match") == "0":
			w.WriteHeader(http.StatusPreconditionFailed)
		}
	})
	s.want(s.post("token", "", "Authorization", "stale"), 401, "", false)
	s.want(s.post("token", "", "Authorization", "fresh"), 200, "", false)
	s.want(s.post("token", "", "Authorization", "fresh"), 200, "", true)
	s.want(s.post("match", "", "If-Match", "0"), 412, "", false)
	s.want(s.post("match", "", "If-Match", "0"), 412, "", false)
	s.wantRan(4)
	for _, name := range httponce.DefaultCompare() {
		s.want(s.post(name, "", name, "a", name, "b"), 200, "", false)
		s.want(s.post(name, "", name, "a", name, "b"), 200, "", true)
		s.want(s.post(name, "", name, "c"), 422, "another request", false)
		s.want(s.post(name, ""), 422, "another request", false)
	}
}

// TestHosts: what one site was asked is not answered to another one of the same server.
func TestHosts(t *testing.T) {
	t.Parallel()
	s := newSite(t, memstore.New(), httponce.Config{Compare: append(httponce.DefaultCompare(), "Host")}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) })
	at := func(host string) got {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/pay", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		r.Header.Set("Idempotency-Key", "k")
		r.Header.Set("User", "eve")
		a, err := send(r)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	s.want(at("a.example"), 200, "a.example", false)
	s.want(at("A.example"), 200, "a.example", true)
	s.want(at("b.example"), 422, "another request", false)
}

// TestLongScopeAndPath: a key is legal under every scope and at every path.
func TestLongScopeAndPath(t *testing.T) {
	t.Parallel()
	delivery := httponce.Delivery("Webhook-Id")
	for name, cfg := range map[string]httponce.Config{"scope": {}, "path": {Source: &delivery}} {
		long := strings.Repeat("x/", 240)
		cfg.Scope = func(r *http.Request) string { return r.Header.Get("Tenant") }
		s := newSite(t, memstore.New(), cfg, numbered())
		for i, more := range []string{"", "ü", "客户"} {
			path, user := "/"+url.PathEscape(long+more), "eve"
			if name == "scope" {
				path, user = "/pay", url.PathEscape(long+more)
			}
			for again := range 2 {
				s.want(s.ask("POST", path, "", "Tenant", user, "Idempotency-Key", "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
					"Webhook-Id", strings.Repeat("k", 200)), 201, fmt.Sprint(i+1, ":"), again == 1)
			}
		}
		s.wantRan(3)
	}
}

// TestSpellingsOfAPath: one endpoint has one event, whatever spelling of its path is sent.
func TestSpellingsOfAPath(t *testing.T) {
	t.Parallel()
	delivery := httponce.Delivery("Webhook-Id")
	s := newSite(t, memstore.New(), httponce.Config{Source: &delivery}, numbered())
	s.want(s.ask("POST", "/hook", "", "Webhook-Id", "1"), 201, "1:", false)
	s.want(s.ask("POST", "/%68ook", "", "Webhook-Id", "1"), 201, "1:", true)
	s.want(s.ask("POST", "/a/b", "", "Webhook-Id", "1"), 201, "2:", false)
	s.want(s.ask("POST", "/a%2Fb", "", "Webhook-Id", "1"), 201, "3:", false)
	s.want(s.ask("POST", "/a%2fb", "", "Webhook-Id", "1"), 201, "3:", true)
}

// TestForgottenMeanwhile: a handler that took longer than the store remembers its beginning has
// run. Its client gets its answer.
func TestForgottenMeanwhile(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	ops, err := once.New(store, once.Config{Remember: check.MinRecordKeep, Keep: check.MinRecordKeep})
	if err != nil {
		t.Fatal(err)
	}
	idempotent, err := httponce.New(ops, httponce.Config{Scope: byUser})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := store.FindRecord(r.Context(), "http/eve/k"); errors.Is(err, driver.ErrNoRecord) {
				break
			}
			time.Sleep(time.Millisecond) // no event tells that a record is forgotten
		}
		fmt.Fprint(w, "done")
	})))
	t.Cleanup(server.Close)
	s := &site{t: t, url: server.URL}
	s.want(s.post("k", ""), 200, "done", false)
}
