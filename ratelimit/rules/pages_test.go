package rules_test

import (
	"os"
	"strings"
	"testing"

	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// What docs/rules.md shows is read, and decides as it says.
func TestPage(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	var all rules.Rules
	for i, block := range strings.Split(string(raw), "```") {
		text, yaml := strings.CutPrefix(block, "yaml\n")
		if i%2 == 0 || !yaml {
			continue
		}
		r, err := rules.Parse("docs/rules.md", []byte(text))
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
