package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

func Example() {
	limiter, err := ratelimit.New(memstore.New(), ratelimit.SlidingLog(2, 24*time.Hour).Named("per-day"))
	if err != nil {
		panic(err)
	}
	limit, err := httplimit.New(limiter)
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(limit(http.NotFoundHandler()))
	defer server.Close()
	for range 3 {
		resp, err := http.Get(server.URL)
		if err != nil {
			panic(err)
		}
		resp.Body.Close()
		fmt.Println(resp.StatusCode, resp.Header.Get("RateLimit-Policy"))
	}
	// Output:
	// 404 "per-day";q=2;w=86400
	// 404 "per-day";q=2;w=86400
	// 429 "per-day";q=2;w=86400
}

// Each user has a quota for each route, and an unknown client shares that of its
// address. Authentication, which runs before, has put the user into the request's
// context; a name that the client only claims would be no limit. The load balancer
// is in 10.0.3.0/28, and nothing else is.
func ExampleNew() {
	type userKey struct{}
	user := func(r *http.Request) string {
		name, _ := r.Context().Value(userKey{}).(string)
		return name
	}
	limiter, err := ratelimit.New(memstore.New(), ratelimit.SlidingWindow(100, time.Minute).Named("api"), ratelimit.FailOpen(50*time.Millisecond))
	if err != nil {
		panic(err)
	}
	limit, err := httplimit.New(limiter,
		httplimit.By(httplimit.Join(httplimit.Route(), httplimit.Func("user", user))),
		httplimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.3.0/28")),
		httplimit.OnFallback(func(_ *http.Request, r ratelimit.Result) { fmt.Println("not limited by the store:", r.By) }),
		httplimit.Skip(httplimit.Preflight),
		httplimit.Headers(httplimit.Draft, httplimit.XRateLimit))
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", limit(http.NotFoundHandler()))

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/items/7", nil))
	fmt.Println(w.Header().Get("X-RateLimit-Remaining"))
	// Output: 99
}

// Rules from a file decide: what they say of addresses, and of what a tenant posts. The
// function says what a request is; authentication has verified the tenant.
func ExampleNewFunc() {
	all, err := rules.Parse("rules.yaml", []byte(`
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: method
    value: POST
    descriptors:
      - key: tenant
        rate_limit: {requests: 2, period: 24h}
`))
	if err != nil {
		panic(err)
	}
	limiter, err := rules.New(memstore.New(), all)
	if err != nil {
		panic(err)
	}
	limit, err := httplimit.NewFunc(func(r *http.Request, client string) (ratelimit.Result, error) {
		d, err := limiter.Allow(r.Context(), rules.Request{Domain: "edge", Descriptions: []rules.Description{
			rules.Describe("remote_address", client),
			rules.Describe("method", r.Method, "tenant", r.Header.Get("X-Tenant")),
		}})
		return d.Result, err
	})
	if err != nil {
		panic(err)
	}
	handler := limit(http.NotFoundHandler())
	for _, method := range []string{"POST", "POST", "POST", "GET"} {
		r := httptest.NewRequest(method, "/orders", nil)
		r.Header.Set("X-Tenant", "acme")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(method, w.Code)
	}
	// Output:
	// POST 404
	// POST 404
	// POST 429
	// GET 404
}
