//lint:file-ignore SA4006 the page leaves out what to do about errors

package rls_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/rls"
	"github.com/batonhq/baton/store/memstore"
)

// The Go code of docs/proxies.md is that of this test.
func TestPageOfCode(t *testing.T) {
	page, err := os.ReadFile("../../docs/proxies.md")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("page_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if code := pagecode.Blocks(string(page), "go"); len(code) != 1 || !strings.Contains(pagecode.Plain(string(self)), pagecode.Plain(code[0])) {
		t.Errorf("no test here runs\n%s", code)
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("rules.yaml", []byte("domain: edge\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 7}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	store, mux := memstore.New(), http.NewServeMux()

	file, err := rules.OpenOr("rules.yaml", rules.Failure{By: ratelimit.ByLocal, After: time.Second / 2, Instances: 2})
	limiter, err := rules.New(store, file.Rules())
	mux.Handle(rls.New(rls.Config{Limiter: limiter}))

	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, pattern := mux.Handler(r); pattern == "" {
		t.Error("the service is mounted elsewhere")
	}
}
