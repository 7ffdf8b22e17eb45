package rules_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// describing reads descriptions: "a=1,b=2 c=3" are two.
func describing(text string) (all []rules.Description) {
	for _, one := range strings.Fields(text) {
		var d rules.Description
		for _, entry := range strings.Split(one, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, rules.Entry{Key: key, Value: value})
		}
		all = append(all, d)
	}
	return all
}

// The examples that envoyproxy/ratelimit publishes decide as its documentation
// says.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	type step struct {
		after    time.Duration // since the first
		domain   string        // "" is that of the step before
		describe string
		times    int // how often it is asked; all but the last are allowed
		want     string
	}
	for _, c := range []struct {
		file  string
		steps []step
	}{
		{"01-simple", []step{
			{0, "mongo_cps", "database=users", 500, "ok"},
			{0, "", "database=users", 1, "refused"},
			{0, "", "database=default", 500, "ok"},
			{0, "", "database=other", 1, "free"},
			{999 * time.Millisecond, "", "database=users", 1, "refused"},
			{time.Second, "", "database=users", 500, "ok"},
		}},
		{"02-nested", []step{
			{0, "messaging", "message_type=marketing,to_number=2061111111", 5, "ok"},
			{0, "", "message_type=marketing,to_number=2061111111", 1, "refused"},
			{0, "", "message_type=marketing,to_number=2062222222", 5, "ok"},
			{0, "", "message_type=other,to_number=2061111111", 1, "free"},
			{0, "", "to_number=2061111111", 99, "ok"},
			{0, "", "message_type=marketing,to_number=2061111111 to_number=2061111111", 1, "refused"},
			{0, "", "to_number=2061111111", 1, "ok"}, // what was refused has taken nothing
			{0, "", "to_number=2061111111", 1, "refused"},
			{0, "", "message_type=marketing,to_number=2063333333 to_number=2063333333", 5, "ok"},
			{0, "", "message_type=marketing,to_number=2063333333 to_number=2063333333", 1, "refused"},
			{0, "", "to_number=2063333333", 95, "ok"},
			{0, "", "to_number=2063333333", 1, "refused"},
			{24 * time.Hour, "", "to_number=2063333333", 100, "ok"},
		}},
		{"03-specific", []step{
			{0, "edge_proxy_per_ip", "remote_address=50.0.0.1", 10, "ok"},
			{0, "", "remote_address=50.0.0.1", 1, "refused"},
			{0, "", "remote_address=50.0.0.2", 10, "ok"},
			{0, "", "remote_address=50.0.0.5", 1, "refused"},
			{time.Hour, "", "remote_address=50.0.0.5", 1, "refused"},
		}},
		{"04-depth", []step{
			{0, "example4", "key=value,subkey=subvalue", 301, "free"},
			{0, "", "key=value", 300, "ok"},
			{0, "", "key=value", 1, "refused"},
			{0, "example4_nested", "key=value,subkey=subvalue", 300, "ok"},
			{0, "", "key=value,subkey=subvalue", 1, "refused"},
			{0, "", "key=value,subkey=other", 300, "ok"},
			{0, "", "key=value", 301, "free"},
			{0, "", "key=other,subkey=subvalue", 301, "free"},
		}},
		{"05-unlimited", []step{
			{0, "internal", "ldap=x", 200, "free"},
			{0, "", "azure=x", 100, "ok"},
			{0, "", "azure=x", 1, "refused"},
			{0, "", "azure=x ldap=x", 1, "refused"},
		}},
		{"06-shadow", []step{
			{0, "example6", "service=auth-service,user=user-a", 10, "free"},
			{0, "", "service=auth-service,user=user-a", 10, "shadow"},
			{time.Second, "", "service=auth-service,user=user-a", 10, "free"},
			{0, "", "service=auth-service,user=user-b", 20, "ok"},
			{0, "", "service=auth-service,user=user-b", 1, "refused"},
		}},
		{"07-replaces", []step{
			{0, "example7", "key_1=value_1,user=bkthomps key_2=value_2,user=bkthomps", 10, "ok"},
			{0, "", "key_1=value_1,user=bkthomps key_2=value_2,user=bkthomps", 1, "refused"},
			{0, "", "key_1=value_1,user=bkthomps", 5, "ok"},
			{0, "", "key_1=value_1,user=bkthomps", 1, "refused"},
			{time.Second, "", "key_2=value_2,user=bkthomps", 10, "ok"},
			{time.Second, "", "key_2=value_2,user=bkthomps", 1, "refused"},
		}},
		{"08-detailed", []step{
			{0, "example8", "key1=unspecified", 10, "ok"},
			{0, "", "key1=unspecified", 1, "refused"},
			{0, "", "key1=unspecified2", 10, "ok"},
			{0, "", "key1=value1", 20, "ok"},
			{0, "", "key1=value1", 1, "refused"},
		}},
		{"09-wildcard", []step{
			{0, "example9", "key1=value1", 20, "ok"},
			{0, "", "key1=value1", 1, "refused"},
			{0, "", "key1=valueXYZ", 20, "ok"},
			{0, "", "key1=value", 20, "ok"},
			{0, "", "key1=valu", 21, "free"},
			{0, "", "path=/api/123/action", 20, "ok"},
			{0, "", "path=/api/123/action", 1, "refused"},
			{0, "", "path=/api/user-id/action", 20, "ok"},
			{0, "", "path=/api/123/other", 21, "free"},
			{0, "", "route=/api/v1/resource/123/action", 20, "ok"},
			{0, "", "route=/api/v1/resource/123/action", 1, "refused"},
			{0, "", "route=/api/v2/resource/456/action", 20, "ok"},
			{0, "", "route=/api/v2/456/action", 21, "free"},
		}},
		{"10-value-to-metric", []step{
			{0, "example10", "route=api,http_method=GET,subject_id=123", 60, "ok"},
			{0, "", "route=api,http_method=GET,subject_id=123", 1, "refused"},
			{0, "", "route=web,http_method=POST,subject_id=456", 60, "ok"},
			{0, "", "route=web,http_method=POST,subject_id=123", 60, "ok"},
			{0, "example10_wildcard", "user=alice,action=readfile,resource=documents", 100, "ok"},
			{0, "", "user=alice,action=readfile,resource=documents", 1, "refused"},
			{0, "", "user=alice,action=write,resource=documents", 101, "free"},
		}},
		{"11-share", []step{
			{0, "example11", "files=files/a.pdf", 5, "ok"},
			{0, "", "files=files/b.csv", 5, "ok"},
			{0, "", "files=files/c.txt", 1, "refused"},
			{0, "", "files=files/*", 1, "refused"},
			{0, "", "files_no_share=files_no_share/a.pdf", 10, "ok"},
			{0, "", "files_no_share=files_no_share/a.pdf", 1, "refused"},
			{0, "", "files_no_share=files_no_share/b.csv", 10, "ok"},
			{0, "example11_metrics", "route=api/v1,method=GET", 30, "ok"},
			{0, "", "route=api/v2,method=GET", 30, "ok"},
			{0, "", "route=api/v3,method=GET", 1, "refused"},
			{0, "", "route=api/v3,method=POST", 60, "ok"},
		}},
		{"example", []step{
			{0, "rl", "foo=bkthomps,bar=banned", 1, "refused"},
			{0, "", "foo=bkthomps,bar=banned source_cluster=proxy,destination_cluster=mock", 1, "refused"},
			{0, "", "foo=bkthomps,bar=banned source_cluster=proxy,destination_cluster=override", 2, "ok"},
			{0, "", "foo=bkthomps,bar=banned source_cluster=proxy,destination_cluster=override", 1, "refused"},
			{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=bkthomps", 2, "ok"},
			{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=bkthomps", 1, "refused"},
			{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=not_bkthomps", 1, "ok"},
			{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=not_bkthomps", 1, "refused"},
			{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=fake category=account", 4, "ok"},
			{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=fake category=account", 1, "refused"},
			{0, "", "foo=foo_2,bar=bkthomps", 1, "ok"},
			{0, "", "foo=foo_2,bar=bkthomps", 1, "refused"},
			{0, "", "foo=foo_3,bar=bar_3 source_cluster=proxy,destination_cluster=fake", 2, "ok"},
			{0, "", "foo=foo_3,bar=bar_3 source_cluster=proxy,destination_cluster=fake", 1, "refused"},
			{0, "", "foo=pelle,baz=not-so-shady", 3, "ok"},
			{0, "", "foo=pelle,baz=not-so-shady", 1, "refused"},
			{0, "", "foo=pelle,baz=shady", 3, "free"},
			{0, "", "foo=pelle,baz=shady", 3, "shadow"},
			{0, "", "foo=pelle,bay=x", 50, "free"},
			{0, "", "unspec=x", 2, "ok"},
			{0, "", "unspec=x", 1, "refused"},
			{0, "", "unspec=y", 2, "ok"},
			// Two pools: one, then two.
			{0, "", "service=service_1 service=service_2", 2, "ok"},
			{0, "", "service=service_1 service=service_2", 1, "refused"},
			{time.Minute, "", "service=service_1", 1, "ok"},
			{time.Minute, "", "service=service_1", 1, "refused"},
			{time.Minute, "", "service=service_1 service=service_2", 2, "ok"},
			{time.Minute, "", "service=service_1 service=service_2", 1, "refused"},
		}},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			all, err := rules.Load("testdata/envoy/" + c.file + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			l, err := rules.New(memstore.New(), all)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
			domain := ""
			for i, s := range c.steps {
				if s.domain != "" {
					domain = s.domain
				}
				for n := range s.times {
					d, err := l.Allow(t.Context(), rules.Request{Domain: domain, Descriptions: describing(s.describe), At: begin.Add(s.after)})
					if err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
					if got := said(d); got != s.want {
						t.Fatalf("step %d, %s, number %d: %s, want %s: %+v", i, s.describe, n+1, got, s.want, d)
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
	all, err := rules.Load("testdata/envoy/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l, err := rules.New(memstore.New(), all)
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
