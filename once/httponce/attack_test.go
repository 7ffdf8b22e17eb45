package httponce_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/batonhq/baton"
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
