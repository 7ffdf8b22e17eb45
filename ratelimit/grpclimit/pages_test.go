package grpclimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/grpclimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/store/memstore"
)

// The Go code of docs/limits.md in front of a server is that of these tests.
func TestPageShowsWhatRuns(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("pages_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## In front of a server\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := pagecode.Blocks(section, "go")
	for _, block := range blocks {
		if !strings.Contains(pagecode.Plain(string(self)), pagecode.Plain(block)) {
			t.Errorf("no test here runs\n%s", block)
		}
	}
	if len(blocks) != 2 {
		t.Errorf("the section has %d blocks of Go", len(blocks))
	}
}

type counter int

func (c *counter) Inc() { *c++ }

func TestPageOfHTTP(t *testing.T) {
	t.Parallel()
	limiter, err := ratelimit.New(memstore.New(), ratelimit.SlidingWindow(1, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	var fallbacks counter
	verifiedUser := func(r *http.Request) string { return r.Header.Get("Test-User") }
	items := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	mux := http.NewServeMux()
	limit, err := httplimit.New(limiter,
		httplimit.By(httplimit.Join(httplimit.Route(), httplimit.Func("user", verifiedUser))), // without one: the address
		httplimit.TrustXForwardedFor(netip.MustParsePrefix("10.0.3.0/28")),                    // the load balancers, nothing else
		httplimit.OnFallback(func(r *http.Request, res ratelimit.Result) { fallbacks.Inc() })) // the store did not decide
	mux.Handle("GET /items/{id}", limit(items))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user, from string
		want       int
	}{
		{"alice", "192.0.2.1", 200},
		{"alice", "192.0.2.2", 429},
		{"", "192.0.2.1", 200},
		{"", "192.0.2.1", 429},
		{"", "192.0.2.2", 200},
	} {
		r := httptest.NewRequest("GET", "/items/7", nil)
		r.RemoteAddr = "10.0.3.1:5"
		r.Header.Set("X-Forwarded-For", c.from)
		r.Header.Set("Test-User", c.user)
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%+v: %d", c, w.Code)
		}
	}
	if fallbacks != 0 {
		t.Errorf("%d fallbacks", fallbacks)
	}
}

func TestPageOfGRPC(t *testing.T) {
	t.Parallel()
	limiter, err := ratelimit.New(memstore.New(), ratelimit.SlidingWindow(1, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	verifiedUser := func(context.Context, string) string { return "alice" }
	limit, err := grpclimit.New(limiter, grpclimit.By(grpclimit.Join(grpclimit.Method(), grpclimit.Func("user", verifiedUser))))
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	handled := 0
	for range 2 {
		_, err = limit.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/shop/Items"}, func(context.Context, any) (any, error) {
			handled++
			return nil, nil
		})
	}
	if err == nil || handled != 1 {
		t.Errorf("%d were handled, the second ends with %v", handled, err)
	}
}
