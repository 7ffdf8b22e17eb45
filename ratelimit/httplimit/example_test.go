package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
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

// Each API key has a quota for each route, and who has none shares that of his
// address. In front stands a load balancer in 10.0.0.0/8.
func ExampleNew() {
	limiter, err := ratelimit.New(memstore.New(), ratelimit.SlidingWindow(100, time.Minute).Named("api"), ratelimit.FailOpen(50*time.Millisecond))
	if err != nil {
		panic(err)
	}
	limit, err := httplimit.New(limiter,
		httplimit.By(httplimit.Join(httplimit.Route(), httplimit.SecretHeader("X-Api-Key"))),
		httplimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.0.0/8")),
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
