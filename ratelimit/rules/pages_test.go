//lint:file-ignore SA4006 the pages leave out what to do about errors

package rules_test

import (
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// The Go code of docs/rules.md is that of this test.
func TestPageOfCode(t *testing.T) {
	page, err := os.ReadFile("../../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("pages_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := pagecode.Blocks(string(page), "go")
	for _, block := range blocks {
		if !strings.Contains(pagecode.Plain(string(self)), pagecode.Plain(block)) {
			t.Errorf("no test here runs\n%s", block)
		}
	}
	if len(blocks) != 3 {
		t.Errorf("the page has %d blocks of Go", len(blocks))
	}

	t.Chdir(t.TempDir())
	text := "rules: [{name: api, requests: 5, period: 1m, tiers: {pro: {requests: 9}}}]\n---\ndomain: edge\ndescriptors: [{key: path, value: /api/*, descriptors: [{key: user, rate_limit: {requests: 7, period: 1m}}]}]"
	if err := os.WriteFile("rules.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, store := t.Context(), memstore.New()
	{
		file, err := rules.Open("rules.yaml")
		limiter, err := rules.New(store, file.Rules())
		go limiter.Follow(ctx, file, func(err error) { log.Println("rules:", err) }) // looks every second whether the file has changed

		d, err := limiter.Allow(ctx, rules.Request{Rule: "api", Key: "user/42", Tier: "pro"}) // d.OK, d.RetryAfter, d.Matches
		if err != nil || !d.OK || d.Limit != 9 {
			t.Errorf("%+v, %v", d, err)
		}
	}
	limiter := limiter(t, store, text)
	d, err := limiter.Allow(ctx, rules.Request{Domain: "edge", Descriptions: []rules.Description{
		rules.Describe("remote_address", "192.0.2.1"),
		rules.Describe("path", "/api/items", "user", "alice"),
	}})
	if err != nil || !d.OK || d.Limit != 7 {
		t.Errorf("%+v, %v", d, err)
	}

	http.DefaultServeMux = http.NewServeMux() // so that this can run twice
	userOf := func(*http.Request) string { return "bob" }
	loadBalancers, served := netip.MustParsePrefix("10.0.3.0/28"), 0
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
	limit, err := httplimit.NewFunc(func(r *http.Request, client string) (ratelimit.Result, error) {
		d, err := limiter.Allow(r.Context(), rules.Request{Domain: "edge", Descriptions: []rules.Description{
			rules.Describe("remote_address", client),
			rules.Describe("path", r.URL.Path, "user", userOf(r)),
		}})
		return d.Result, err
	}, httplimit.TrustXForwardedFor(loadBalancers))
	http.Handle("/", limit(handler))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	for range 8 {
		w = httptest.NewRecorder()
		http.DefaultServeMux.ServeHTTP(w, httptest.NewRequest("GET", "/api/items", nil))
	}
	if served != 7 || w.Code != 429 {
		t.Errorf("%d were served, and the last was answered with %d", served, w.Code)
	}
}

// What docs/rules.md shows is read, and decides as it says.
func TestPage(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	var all rules.Rules
	for _, block := range pagecode.Blocks(string(raw), "yaml") {
		r, err := rules.Parse("docs/rules.md", []byte(block))
		if err != nil {
			t.Fatal(err)
		}
		all.Rules, all.Domains = append(all.Rules, r.Rules...), append(all.Domains, r.Domains...)
	}
	l, err := rules.New(memstore.New(), all)
	if err != nil {
		t.Fatal(err)
	}
	edge := func(kv ...string) rules.Request {
		return rules.Request{Domain: "edge", Descriptions: []rules.Description{rules.Describe(kv...)}}
	}
	pro := edge("path", "/api/items", "user", "alice")
	pro.Tier = "pro"
	for _, c := range []struct {
		r     rules.Request
		want  string
		limit int64
	}{
		{rules.Request{Rule: "login", Key: "a"}, "ok", 5},
		{rules.Request{Rule: "api", Key: "a"}, "ok", 20},
		{rules.Request{Rule: "api", Key: "b", Tier: "free"}, "ok", 20},
		{rules.Request{Rule: "api", Key: "c", Tier: "pro"}, "ok", 200},
		{rules.Request{Rule: "api", Key: "c", Tier: "staff"}, "free", 0},
		{rules.Request{Rule: "api", Key: "user/7", Tier: "free"}, "ok", 20},
		{rules.Request{Rule: "login", Key: "c", Tier: "staff"}, "ok", 5},
		{rules.Request{Rule: "search", Key: "a", Cost: 101}, "shadow", 0},
		{edge("remote_address", "192.0.2.1"), "ok", 10},
		{edge("remote_address", "192.0.2.9"), "refused", 0},
		{edge("path", "/api/items", "user", "alice"), "ok", 10},
		{edge("path", "/other", "user", "alice"), "free", 0},
		{edge("path", "/api/items"), "free", 0},
		{pro, "ok", 100},
	} {
		d := allow(t, l, c.r)
		if got := said(d); got != c.want || (c.want == "ok" || c.want == "refused") && d.Limit != c.limit {
			t.Errorf("%+v: %s under a limit of %d, want %s under %d", c.r, got, d.Limit, c.want, c.limit)
		}
	}
	if n := len(all.Rules) + len(all.Domains); n != 4 {
		t.Errorf("the page shows %d rules and domains, want 4", n)
	}
}
