package rules_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit/rules"
)

// keeper keeps the keys that it is asked about, and allows everything.
type keeper struct{ keys []string }

func (k *keeper) Take(_ context.Context, r limits.Request) (limits.Taken, error) {
	t := limits.Taken{OK: true, Limits: make([]limits.Decision, len(r.Takes))}
	for i, take := range r.Takes {
		k.keys, t.Limits[i].OK = append(k.keys, take.Key), true
	}
	return t, limits.Check(r)
}

// What is described apart counts apart, whatever characters it has; only what a shared
// pattern covers counts together.
func TestDescribedApart(t *testing.T) {
	t.Parallel()
	pieces := []string{
		"a", "b", "=", ",", "#", "%", "%2C", "*", "{", "}", "/", "_", "\xff", "\xc2\x80", "\u0080", "\ufffd", "\n", " ", "é", "e\u0301", "A", "\\",
		strings.Repeat("x", 150), strings.Repeat("世", 60), "#" + strings.Repeat("0", 64),
	}
	text := func(least int) string {
		var b strings.Builder
		for range least + rand.IntN(4) {
			b.WriteString(pieces[rand.IntN(len(pieces))])
		}
		return b.String()
	}
	limit := func(name string) rules.Limit { return rules.Limit{Name: name, N: 5, Period: time.Minute} }
	one := []rules.Limit{limit(""), limit("#"), limit("b"), limit("a=b,c")}
	domains := []string{"d", "d}", "{d}", "d/a=b", "d#b", "%7Bd", "é"}
	var all rules.Rules
	for _, d := range domains {
		all.Domains = append(all.Domains, rules.Domain{Name: d, Descriptors: []rules.Descriptor{
			{Key: "shared", Value: "a*b", Share: true, Rule: &rules.Rule{Limits: one}},
			{Key: "shared", Rule: &rules.Rule{Limits: one}},
			{Key: "star", Value: "a*", Rule: &rules.Rule{Limits: one}},
		}})
	}
	for _, name := range []string{"d", "a.b", "a"} {
		all.Rules = append(all.Rules, rules.Rule{Name: name, Limits: []rules.Limit{limit(""), limit("x")}})
	}
	store := &keeper{}
	l, err := rules.New(store, all)
	if err != nil {
		t.Fatal(err)
	}
	who, key := make(map[string]string), make(map[string]string) // by key, and by what counts together
	asked := func(identity string, r rules.Request) {
		t.Helper()
		store.keys = nil
		allow(t, l, r)
		for i, k := range store.keys {
			id := fmt.Sprintf("%s limit %d", identity, i)
			if before, known := who[k]; known && before != id {
				t.Fatalf("%s and %s share the key %q", before, id, k)
			}
			if before, known := key[id]; known && before != k {
				t.Fatalf("%s counts as %q and as %q", id, before, k)
			}
			who[k], key[id] = id, k
		}
		if len(store.keys) == 0 {
			t.Fatalf("%+v asks nothing", r)
		}
	}
	for range 20_000 {
		d := domains[rand.IntN(len(domains))]
		e := rules.Entry{Key: []string{"shared", "star", "other"}[rand.IntN(3)], Value: text(0)}
		id := fmt.Sprintf("%q %q", d, e)
		what := rules.Description{Entries: []rules.Entry{e}}
		switch {
		case e.Key == "shared" && len(e.Value) > 1 && e.Value[0] == 'a' && e.Value[len(e.Value)-1] == 'b':
			id = fmt.Sprintf("%q shared", d)
		case e.Key == "star" && strings.HasPrefix(e.Value, "a"), e.Key == "shared":
		default: // no rule has it: the request brings a limit
			what.Entries = nil
			for range 1 + rand.IntN(3) {
				what.Entries = append(what.Entries, rules.Entry{Key: text(1), Value: text(0)})
			}
			own := one[rand.IntN(len(one))]
			what.Limit = &own
			id = fmt.Sprintf("%q %q %q", d, what.Entries, own.Name)
			if slices.ContainsFunc(what.Entries, func(e rules.Entry) bool { return e.Key == "shared" || e.Key == "star" }) {
				continue
			}
		}
		asked(id, rules.Request{Domain: d, Descriptions: []rules.Description{what}})
		k := strings.ToValidUTF8(text(1), "?")
		if name := all.Rules[rand.IntN(len(all.Rules))].Name; !strings.ContainsAny(k, "\n\u0080") && len(k) < 400 {
			asked(fmt.Sprintf("rule %q %q", name, k), rules.Request{Rule: name, Key: k})
		}
	}
	if len(who) < 10_000 {
		t.Errorf("only %d keys: that tests little", len(who))
	}
}
