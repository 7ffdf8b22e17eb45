package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

func deciding(t *testing.T, decide func(*http.Request, string) (ratelimit.Result, error), opts ...httplimit.Option) func(http.Handler) http.Handler {
	t.Helper()
	m, err := httplimit.NewFunc(decide, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Rules decide about requests: what no rule is about passes and is told nothing, what a
// rule refuses is answered as a limiter's refusal is.
func TestRules(t *testing.T) {
	t.Parallel()
	all, err := rules.Parse("rules.yaml", []byte(`
domain: edge
descriptors:
  - key: client
    descriptors:
      - key: method
        value: POST
        rate_limit: {requests: 1, period: 240h}
  - key: tenant
    value: blocked
    rate_limit: {requests: 0, period: 1h}
`))
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := rules.New(memstore.New(), all)
	if err != nil {
		t.Fatal(err)
	}
	var seen ratelimit.Result
	h := deciding(t, func(r *http.Request, client string) (ratelimit.Result, error) {
		d, err := limiter.Allow(r.Context(), rules.Request{Domain: "edge", Descriptions: []rules.Description{
			rules.Describe("client", client, "method", r.Method), rules.Describe("tenant", r.Header.Get("X-Tenant")),
		}})
		return d.Result, err
	}, httplimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.0.0/8")), httplimit.Headers(httplimit.Draft, httplimit.Legacy))(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen, _ = httplimit.ResultOf(r.Context()) }))
	ask := func(method, client, tenant string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "/", nil)
		r.RemoteAddr = "10.0.0.1:9"
		r.Header.Set("X-Forwarded-For", client)
		r.Header.Set("X-Tenant", tenant)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	const policy = `"edge/client/method=POST";q=1;w=864000`
	for i, c := range []struct {
		method, client, tenant string
		code                   int
		policy                 string
	}{
		{"GET", "192.0.2.1", "a", 200, ""},
		{"POST", "192.0.2.1", "a", 200, policy},
		{"POST", "192.0.2.1", "a", 429, policy},
		{"GET", "192.0.2.1", "a", 200, ""},
		{"POST", "192.0.2.2", "a", 200, policy},
		{"GET", "192.0.2.1", "blocked", 429, `"edge/tenant=blocked";q=0;w=3600`},
	} {
		w := ask(c.method, c.client, c.tenant)
		if w.Code != c.code || w.Header().Get("RateLimit-Policy") != c.policy {
			t.Errorf("number %d: %d %q, want %d %q", i, w.Code, w.Header().Get("RateLimit-Policy"), c.code, c.policy)
		}
		if c.policy == "" {
			noFields(t, w.Header())
		}
		if c.code == 200 && !seen.OK {
			t.Errorf("number %d: the handler finds %+v", i, seen)
		}
		if c.code == 429 && (w.Header().Get("Retry-After") == "") != (c.tenant == "blocked") {
			t.Errorf("number %d: Retry-After %q", i, w.Header().Get("Retry-After"))
		}
	}
}

// A turn is waited for before the handler runs, and not longer than the client does.
func TestFuncWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		h := deciding(t, func(*http.Request, string) (ratelimit.Result, error) {
			return ratelimit.Result{OK: true, Wait: time.Minute}, nil
		})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			ran++
			if d, _ := httplimit.ResultOf(r.Context()); d.Wait != 0 {
				t.Errorf("another wait of %v", d.Wait)
			}
		}))
		began := time.Now()
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		if d := time.Since(began); d != time.Minute || ran != 1 {
			t.Errorf("run %d times, after %v", ran, d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
		if ran != 1 || w.Code != 503 {
			t.Errorf("run %d times, answered with %d", ran, w.Code)
		}
	})
}

func TestFuncThatFails(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	decide := func(*http.Request, string) (ratelimit.Result, error) { return ratelimit.Result{OK: true}, boom }
	w := httptest.NewRecorder()
	deciding(t, decide)(ok).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 503 {
		t.Errorf("answered with %d", w.Code)
	}
	var got error
	w = httptest.NewRecorder()
	deciding(t, decide, httplimit.OnError(func(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
		got = err
		next.ServeHTTP(w, r)
	}))(ok).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 200 || got != boom {
		t.Errorf("answered with %d after %v", w.Code, got)
	}
}

func TestFuncsThatCannotBe(t *testing.T) {
	t.Parallel()
	decide := func(*http.Request, string) (ratelimit.Result, error) { return ratelimit.Result{}, nil }
	if _, err := httplimit.NewFunc(nil); err == nil {
		t.Error("no function")
	}
	for name, o := range map[string]httplimit.Option{
		"By": httplimit.By(httplimit.Route()), "Cost": httplimit.Cost(func(*http.Request) int64 { return 2 }), "MaxWait": httplimit.MaxWait(0),
	} {
		if _, err := httplimit.NewFunc(decide, o); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
