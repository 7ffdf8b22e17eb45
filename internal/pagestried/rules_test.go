package pagestried

import (
	"os"
	"testing"

	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// TestRules reads the rules of all pages, and asks those of Envoy's. What is for Kubernetes
// is TestCommands'.
func TestRules(t *testing.T) {
	t.Parallel()
	all, err := pages(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	read := make(map[string]rules.Rules)
	for _, p := range all {
		for _, b := range p.blocks {
			if b.Language != "yaml" || forKubernetes(b) {
				continue
			}
			if read[p.path], err = rules.Parse(p.path, []byte(b.Text)); err != nil {
				t.Error(err)
			}
		}
	}
	limiter, err := rules.New(memstore.New(), read["docs/coming-from/envoy-ratelimit.md"])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		of      []string
		allowed int // of 150
	}{
		{[]string{"remote_address", "192.0.2.1"}, 10},
		{[]string{"remote_address", "192.0.2.9"}, 0},
		{[]string{"path", "/login"}, 150}, // its limit is a shadow
		{[]string{"plan", "free", "user", "alice"}, 100},
		{[]string{"plan", "pro", "user", "bob"}, 150},
	} {
		// At once, by one cost, so that no window ends meanwhile.
		got := 0
		for _, cost := range []int64{int64(c.allowed), 150 - int64(c.allowed)} {
			if cost == 0 {
				continue
			}
			r := rules.Describe(c.of...)
			r.Cost = &cost
			d, err := limiter.Allow(t.Context(), rules.Request{Domain: "edge", Descriptions: []rules.Description{r}})
			if err != nil {
				t.Fatal(err)
			}
			if d.OK {
				got += int(cost)
			}
		}
		if got != c.allowed {
			t.Errorf("%v: %d are allowed, want %d", c.of, got, c.allowed)
		}
	}
}
