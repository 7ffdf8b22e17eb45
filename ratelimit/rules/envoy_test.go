package rules_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/envoyexamples"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// describing reads descriptions: "a=1,b=2 c=3" are two.
func describing(text string) (all []rules.Description) {
	for _, entries := range envoyexamples.Descriptors(text) {
		var d rules.Description
		for _, e := range entries {
			d.Entries = append(d.Entries, rules.Entry(e))
		}
		all = append(all, d)
	}
	return all
}

// example is the demonstration of envoyproxy/ratelimit.
func example(t *testing.T) rules.Rules {
	t.Helper()
	r, err := rules.Parse("example.yaml", envoyexamples.Config("example"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The examples that envoyproxy/ratelimit publishes decide as its documentation
// says.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	for _, c := range envoyexamples.All() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			all, err := rules.Parse(c.Name, envoyexamples.Config(c.Name))
			if err != nil {
				t.Fatal(err)
			}
			l, err := rules.New(memstore.New(), all)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
			for i, s := range c.Steps {
				for n := range s.Times {
					d, err := l.Allow(t.Context(), rules.Request{Domain: s.Domain, Descriptions: describing(s.Describe), At: begin.Add(s.After)})
					if err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
					if got := said(d); got != s.Want {
						t.Fatalf("step %d, %s, number %d: %s, want %s: %+v", i, s.Describe, n+1, got, s.Want, d)
					}
				}
			}
		})
	}
}

// said is a decision in a word.
func said(d rules.Decision) string {
	switch {
	case d.OK && d.WouldRefuse:
		return "shadow"
	case !d.OK:
		return "refused"
	case d.Remaining == math.MaxInt64:
		return "free"
	}
	return "ok"
}

// What a decision says about each description.
func TestMatches(t *testing.T) {
	t.Parallel()
	l, err := rules.New(memstore.New(), example(t))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 25, 0, 0, 10, 0, time.UTC)
	ask := func(text string) rules.Decision {
		t.Helper()
		d, err := l.Allow(t.Context(), rules.Request{Domain: "rl", Descriptions: describing(text), At: at})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := ask("foo=a qux=x other=x foo=a,bar=bkthomps category=account")
	var got []string
	for _, m := range d.Matches {
		remain := int64(-1)
		if len(m.Limits) > 0 {
			remain = m.Limits[0].Remaining
		}
		got = append(got, fmt.Sprintf("%s ok=%v unlimited=%v replaced=%v %d", m.Rule, m.OK, m.Unlimited, m.Replaced, remain))
	}
	want := []string{
		"rl/foo ok=true unlimited=false replaced=false 1",
		"rl/qux ok=true unlimited=true replaced=false -1",
		" ok=true unlimited=false replaced=false -1",
		"rl/foo/bar=bkthomps ok=true unlimited=false replaced=true -1",
		"rl/category=account ok=true unlimited=false replaced=false 3",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("it says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if d.Name != "rl/foo" || d.Limit != 2 || d.Remaining != 1 || d.Period != time.Minute || d.By != ratelimit.ByStore {
		t.Errorf("the tightest is %+v", d.Result)
	}
	ask("foo=a")
	d = ask("foo=a category=account")
	if d.OK || d.Matches[0].OK || !d.Matches[1].OK || d.RetryAfter != 50*time.Second || d.Name != "rl/foo" {
		t.Errorf("the refusal is %+v", d)
	}
	// A shadow limit neither refuses nor says when to come back.
	for range 4 {
		ask("foo=a,baz=shady")
	}
	if d = ask("foo=b foo=a,baz=shady"); !d.OK || d.Name != "rl/foo" || !d.WouldRefuse || d.Matches[1].Limits[0].OK || !d.Matches[1].Limits[0].Shadow || !d.Matches[1].OK {
		t.Errorf("with a shadow limit that is used up: %+v", d)
	}
	// Of two pools one is left: it decides, and says how it stands.
	ask("service=service_1")
	if d = ask("service=service_1 service=service_2"); !d.OK || d.Matches[0].OK || !d.Matches[1].OK || d.Name != "rl/service=service_2" || d.Remaining != 1 {
		t.Errorf("with one pool left: %+v", d)
	}
	ask("service=service_2")
	if d = ask("service=service_1 service=service_2"); d.OK || d.RetryAfter != 50*time.Second {
		t.Errorf("with no pool left: %+v", d)
	}
	// The same description twice costs two.
	if d = ask("foo=c foo=c"); !d.OK || d.Remaining != 0 {
		t.Errorf("twice the same: %+v", d)
	}
	// A cost and a limit that come with a description.
	none, three := int64(0), int64(3)
	for _, c := range []struct {
		cost   *int64
		limit  *rules.Limit
		ok     bool
		remain int64
	}{
		{&three, nil, false, 2},
		{&none, nil, true, 2},
		{&three, &rules.Limit{N: 3, Period: time.Hour}, true, 0},
		{nil, &rules.Limit{N: 4, Period: time.Hour}, true, 0},
	} {
		d, err := l.Allow(t.Context(), rules.Request{Domain: "rl", At: at, Descriptions: []rules.Description{{Entries: []rules.Entry{{Key: "foo", Value: "d"}}, Cost: c.cost, Limit: c.limit}}})
		if err != nil || d.OK != c.ok || d.Remaining != c.remain {
			t.Errorf("with the cost %v and the limit %v: %v, %v", c.cost, c.limit, d, err)
		}
	}
}

// A refused caller is told a moment at which all that refuses it has room again.
func TestRetryAfterQuotas(t *testing.T) {
	t.Parallel()
	const minute, hour = "{unit: minute, requests_per_unit: 1}", "{name: h, unit: hour, requests_per_unit: 1}"
	text := "domain: d\ndescriptors:\n"
	for _, d := range []struct{ key, limits string }{
		{"short", minute}, {"long", minute + ", " + hour}, {"late", hour}, {"plain", minute},
	} {
		text += fmt.Sprintf("- {key: %s, quota_mode: %v, rate_limit: {limits: [%s]}}\n", d.key, d.key != "plain", d.limits)
	}
	at := time.Date(2026, 11, 25, 0, 0, 10, 0, time.UTC)
	for _, c := range []struct {
		use, ask string
		want     time.Duration
	}{
		{"long=a", "long=a", 59*time.Minute + 50*time.Second}, // both of its limits
		{"long=a short=a", "long=a short=a", 50 * time.Second},
		{"late=a plain=a", "late=a plain=a", 59*time.Minute + 50*time.Second}, // the quota and the limit
		{"plain=a", "late=a plain=a", 50 * time.Second},                       // the quota has room
		{"late=a plain=a", "late=a plain=a short=a", 50 * time.Second},
	} {
		l := limiter(t, memstore.New(), text)
		for use := range strings.FieldsSeq(c.use) {
			if d := allow(t, l, rules.Request{Domain: "d", Descriptions: describing(use), At: at}); !d.OK {
				t.Fatalf("%s: %+v", use, d)
			}
		}
		d := allow(t, l, rules.Request{Domain: "d", Descriptions: describing(c.ask), At: at})
		if d.OK || d.RetryAfter != c.want {
			t.Errorf("after %s, %s is %v, again after %v, want %v", c.use, c.ask, d.OK, d.RetryAfter, c.want)
		}
		if d = allow(t, l, rules.Request{Domain: "d", Descriptions: describing(c.ask), At: at.Add(c.want)}); !d.OK {
			t.Errorf("after %s, %s is refused when it was told to come again: %+v", c.use, c.ask, d)
		}
	}
}
