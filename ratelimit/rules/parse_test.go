package rules_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/mutants"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
)

// describe says rules in one line for each set of limits.
func describe(r rules.Rules) string {
	var b strings.Builder
	line := func(name string, all []rules.Limit, f rules.Failure) {
		fmt.Fprintf(&b, "%s:", name)
		for i, l := range all {
			if i > 0 {
				b.WriteString(";")
			}
			b.WriteString(" " + l.String())
		}
		if len(all) == 0 {
			b.WriteString(" unlimited")
		}
		if f != (rules.Failure{}) {
			fmt.Fprintf(&b, " (%v after %v, %d)", f.By, f.After, f.Instances)
		}
		b.WriteString("\n")
	}
	for _, one := range r.Rules {
		if one.Unlimited || len(one.Limits) > 0 {
			line(one.Name, one.Limits, one.OnFailure)
		}
		for _, tier := range []string{"free", "pro", "staff"} {
			if all, ok := one.Tiers[tier]; ok {
				line(one.Name+" "+tier, all, rules.Failure{})
			}
		}
		for _, key := range []string{"user/1", "user/2"} {
			if all, ok := one.Keys[key]; ok {
				line(one.Name+" "+key, all, rules.Failure{})
			}
		}
	}
	return b.String()
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, want string }{
		{"one limit", "rules: [{name: a, requests: 5, period: 1m}]", "a: 5 per 1m, sliding-window\n"},
		{"a number with lines", "rules: [{name: a, requests: 1_000, period: 90s}]", "a: 1000 per 1m30s, sliding-window\n"},
		{"nothing is allowed", "rules: [{name: a, requests: 0, period: 1m}]", "a: 0 per 1m, sliding-window\n"},
		{"unlimited", "rules: [{name: a, unlimited: true}]", "a: unlimited\n"},
		{"every setting", `
rules:
  - {name: fixed, requests: 5, period: 1h, algorithm: fixed-window, offset: 10m}
  - {name: sliding, requests: 5, period: 1m, algorithm: sliding-window, parts: 6, classic: true}
  - {name: log, requests: 5, period: 1m, algorithm: sliding-log, per_call: true}
  - {name: estimated, requests: 5, period: 1m, algorithm: estimated-window, for_all: true}
  - {name: bucket, requests: 5, period: 1m, algorithm: token-bucket, burst: 9, warn: 80%}
  - {name: queue, requests: 5, period: 1m, algorithm: leaky-bucket, max_wait: 2m, ahead: 1, shadow: true, warn: 0.5}
`, `fixed: 5 per 1h, fixed-window
sliding: 5 per 1m, sliding-window, classic
log: 5 per 1m, sliding-log, per call
estimated: 5 per 1m, estimated-window, for all keys together
bucket: 5 per 1m, token-bucket, burst 9, warns from 0.8
queue: 5 per 1m, leaky-bucket, waits of 2m, warns from 0.5, shadow
`},
		{"calendars", `
rules:
  - {name: day, requests: 5, period: day}
  - {name: there, requests: 5, period: day, zone: Europe/Berlin}
  - {name: week, requests: 5, period: week}
  - {name: month, requests: 5, period: month, zone: Asia/Shanghai}
  - {name: year, requests: 5, period: year}
  - {name: length, requests: 5, period: day, algorithm: sliding-window}
  - {name: minute, requests: 5, period: minute}
`, `day: 5 per 24h, fixed-window
there: 5 per day in Europe/Berlin, fixed-window
week: 5 per week, fixed-window
month: 5 per month in Asia/Shanghai, fixed-window
year: 5 per year, fixed-window
length: 5 per 24h, sliding-window
minute: 5 per 1m, sliding-window
`},
		{"several windows", `
rules:
  - name: api
    algorithm: token-bucket
    limits:
      - {requests: 10, period: 1s, burst: 20}
      - {name: day, requests: 1000, period: 24h, algorithm: fixed-window}
`, "api: 10 per 1s, token-bucket, burst 20; day: 1000 per 24h, fixed-window\n"},
		{"tiers and keys take what they do not say from the rule", `
rules:
  - name: api
    period: 1m
    requests: 60
    algorithm: token-bucket
    burst: 10
    tiers:
      free: {requests: 6}
      pro: {requests: 600, burst: 100}
      staff: {unlimited: true}
    keys:
      user/1: {requests: 7}
      user/2: {unlimited: true}
`, `api: 60 per 1m, token-bucket, burst 10
api free: 6 per 1m, token-bucket, burst 10
api pro: 600 per 1m, token-bucket, burst 100
api staff: unlimited
api user/1: 7 per 1m, token-bucket, burst 10
api user/2: unlimited
`},
		{"a tier changes a limit by its name", `
rules:
  - name: api
    limits:
      - {requests: 10, period: 1s}
      - {name: day, requests: 1000, period: day}
    tiers:
      free: {requests: 1}
      pro:
        limits:
          - {name: day, requests: 5000}
      staff:
        limits:
          - {name: day, unlimited: true}
          - {name: hour, requests: 100, period: 1h}
`, `api: 10 per 1s, sliding-window; day: 1000 per 24h, fixed-window
api free: 1 per 1s, sliding-window; day: 1000 per 24h, fixed-window
api pro: 10 per 1s, sliding-window; day: 5000 per 24h, fixed-window
api staff: 10 per 1s, sliding-window; hour: 100 per 1h, sliding-window
`},
		{"only tiers", `
rules:
  - name: api
    period: 1m
    tiers: {free: {requests: 6}, pro: {requests: 600}}
`, "api free: 6 per 1m, sliding-window\napi pro: 600 per 1m, sliding-window\n"},
		{"a store that fails", `
on_failure: {mode: local, instances: 4, after: 200ms}
rules:
  - {name: a, requests: 5, period: 1m}
  - {name: b, requests: 5, period: 1m, on_failure: open}
  - {name: c, requests: 5, period: 1m, on_failure: {mode: closed, after: 1s}}
  - {name: d, requests: 5, period: 1m, on_failure: error}
`, `a: 5 per 1m, sliding-window (local after 200ms, 4)
b: 5 per 1m, sliding-window (open after 500ms, 0)
c: 5 per 1m, sliding-window (closed after 1s, 0)
d: 5 per 1m, sliding-window
`},
		{"anchors, aliases and merges", `
rules:
  - &base {name: a, requests: 5, period: &p 1m}
  - {<<: *base, name: b}
  - {name: c, requests: 9, period: *p}
`, "a: 5 per 1m, sliding-window\nb: 5 per 1m, sliding-window\nc: 9 per 1m, sliding-window\n"},
		{"the same anchor again", `
rules:
  - {name: a, requests: &n 5, period: 1m}
  - {name: b, requests: *n, period: 1m}
  - {name: c, requests: &n 6, period: 1m}
  - {name: d, requests: *n, period: 1m}
`, "a: 5 per 1m, sliding-window\nb: 5 per 1m, sliding-window\nc: 6 per 1m, sliding-window\nd: 6 per 1m, sliding-window\n"},
		{
			"an algorithm for the file", "algorithm: sliding-log\nrules: [{name: a, requests: 5, period: 1m}, {name: b, requests: 5, period: 1m, algorithm: fixed-window}]",
			"a: 5 per 1m, sliding-log\nb: 5 per 1m, fixed-window\n",
		},
		{"several documents", "rules: [{name: a, requests: 5, period: 1m}]\n---\nrules: [{name: b, requests: 6, period: 1m}]\n", "a: 5 per 1m, sliding-window\nb: 6 per 1m, sliding-window\n"},
		{"the line ends of another system", "rules:\r\n  - name: a\r\n    requests: 5\r\n    period: 1m\r\n", "a: 5 per 1m, sliding-window\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, err := rules.Parse("r.yaml", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(r); got != c.want {
				t.Errorf("it reads\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "{}", "1:1: there are no rules in it"},
		{"an empty file", "", "r.yaml: there are no rules in it"},
		{"a comment", "# nothing yet\n---\n", "r.yaml: there are no rules in it"},
		{"a file that is being written", "rules:\n", "1:1: it does not say which rules"},
		{"a list", "- a", "1:1: a file of rules is written as lines"},
		{"a text", "hello", "a file of rules is written as lines"},
		{"no YAML", "rules: [", "this is not YAML"},
		{"an unknown field", "rule: []", "1:1: a file of rules has no field \"rule\": did you mean rules?"},
		{"of a rule", "rules:\n  - name: a\n    request: 5\n    period: 1m", "3:5: a rule has no field \"request\": did you mean requests?\n        request: 5\n        ^"},
		{"of a limit", "rules:\n  - name: a\n    limits: [{requests: 5, per: 1m}]", "3:28: a limit has no field \"per\": did you mean period?"},
		{"no name", "rules: [{requests: 5, period: 1m}]", "1:9: rule 1: it has no name"},
		{"a strange name", "rules: [{name: a/b, requests: 5, period: 1m}]", "1:16: rule \"a/b\": the name \"a/b\" has a character other"},
		{"a strange name of what allows nothing", "rules: [{name: a/b, requests: 0, period: 1m}]", "a character other"},
		{"a long name", "rules: [{name: " + strings.Repeat("a", 41) + ", requests: 5, period: 1m}]", "is too long"},
		{"a name twice", "rules:\n- {name: a, requests: 5, period: 1m}\n- {name: a, requests: 6, period: 1m}", "3:10: rule \"a\": another rule has this name"},
		{"a name of a rule and of a limit", "rules:\n- {name: a, limits: [{requests: 5, period: 1m, name: b}]}\n- {name: a.b, requests: 6, period: 1m}", "the rule \"a\" counts under this name, too"},
		{"a field twice", "rules: [{name: a, requests: 5, requests: 6, period: 1m}]", "1:32: \"requests\" is here twice"},
		{"no number", "rules: [{name: a, period: 1m}]", "1:16: it does not say how many: requests is missing"},
		{"no period", "rules: [{name: a, requests: 5}]", "it does not say in what time: period is missing"},
		{"a negative number", "rules: [{name: a, requests: -5, period: 1m}]", "1:29: requests must not be negative"},
		{"a number that is too large", "rules: [{name: a, requests: 9223372036854775808, period: 1m}]", "1:29: requests is too large: at most 2251799813685247 can"},
		{"one that cannot be counted", "rules: [{name: a, requests: 2251799813685248, period: 1m}]", "requests is too large: at most 2251799813685247 can"},
		{"a fraction", "rules: [{name: a, requests: 1.5, period: 1m}]", "requests is a whole number, such as 100"},
		{"a number in quotes", "rules: [{name: a, requests: \"5\", period: 1m}]", "requests is a whole number, without quotes"},
		{"a number that is a list", "rules: [{name: a, requests: [5], period: 1m}]", "requests is a whole number"},
		{"a period without a unit", "rules: [{name: a, requests: 5, period: 60}]", "period needs a unit, as in 60s or 60m"},
		{"a number with a unit", "rules: [{name: a, requests: 100k, period: 1m}]", "requests is a whole number, such as 100"},
		{"a number with an exponent", "rules: [{name: a, requests: 1e3, period: 1m}]", "requests is a whole number, such as 100"},
		{"a number with many marks", "rules: [{name: a, requests: 1__0, period: 1m}]", "requests is a whole number, such as 100 or 1_000"},
		{"a period that is too long", "rules: [{name: a, requests: 5, period: 9999999h}]", "period is too long: at most 2562047h0m0s"},
		{"a period of a day", "rules: [{name: a, requests: 5, period: 1d}]", "24h, or one of day, week, month and year"},
		{"a period in capitals", "rules: [{name: a, requests: 5, period: Minute}]", "did you mean minute?"},
		{"an algorithm that is spelled otherwise", "rules: [{name: a, requests: 5, period: 1m, algorithm: Token_Bucket}]", "did you mean token-bucket?"},
		{"a period that is none", "rules: [{name: a, requests: 5, period: 1x}]", "period is a duration, such as 30s"},
		{"a period that is misspelled", "rules: [{name: a, requests: 5, period: mnute}]", "did you mean minute?"},
		{"a period of 0", "rules: [{name: a, requests: 5, period: 0s}]", "period must be above zero"},
		{"a period that is too fine", "rules: [{name: a, requests: 5, period: 1500ns}]", "whole microseconds"},
		{"a unit that is none", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: 30s, requests_per_unit: 5}}]", "the unit \"30s\" is not known"},
		{"period and unit", "rules: [{name: a, requests: 5, period: 1m, unit: day}]", "period and unit are the same"},
		{"a month that slides", "rules: [{name: a, requests: 5, period: month, algorithm: sliding-log}]", "a sliding-log cannot count by the month"},
		{"a zone without days", "rules: [{name: a, requests: 5, period: 1h, zone: Europe/Berlin}]", "a time zone is for a period of a day"},
		{"a zone that is none", "rules: [{name: a, requests: 5, period: day, zone: Europe/Bern2}]", "the time zone \"Europe/Bern2\" is not known"},
		{"the zone of the machine", "rules: [{name: a, requests: 5, period: day, zone: Local}]", "the time zone \"Local\" is not known"},
		{"an algorithm that is none", "rules: [{name: a, requests: 5, period: 1m, algorithm: gcra}]", "the algorithm \"gcra\" is not known: there are fixed-window"},
		{"a burst of a window", "rules: [{name: a, requests: 5, period: 1m, burst: 9}]", "a burst is for a token-bucket, and this is a sliding-window"},
		{"a burst of 0", "rules: [{name: a, requests: 5, period: 1m, algorithm: token-bucket, burst: 0}]", "burst must be above zero"},
		{"parts that do not divide", "rules: [{name: a, requests: 5, period: 1m, parts: 7}]", "do not divide"},
		{"a long log", "rules: [{name: a, requests: 20000, period: 1m, algorithm: sliding-log}]", "the longest is 10000"},
		{"warn from more than all", "rules: [{name: a, requests: 5, period: 1m, warn: 101%}]", "warn is a share of the limit above 0 and at most 1"},
		{"warn from NaN", "rules: [{name: a, requests: 5, period: 1m, warn: .nan}]", "warn is a share"},
		{"shadow maybe", "rules: [{name: a, requests: 5, period: 1m, shadow: maybe}]", "shadow is true or false"},
		{"unlimited and a number", "rules: [{name: a, requests: 5, unlimited: true}]", "it is unlimited and says requests"},
		{"two limits without a name", "rules:\n- name: a\n  limits:\n  - {requests: 5, period: 1m}\n  - {requests: 50, period: 1h}", "5:5: rule \"a\": two limits have no name"},
		{"a limit twice", "rules:\n- name: a\n  limits: [{name: x, requests: 5, period: 1m}, {name: x, requests: 5, period: 1h}]", "limit \"x\": another limit of the rule has this name"},
		{"17 limits", "rules:\n- name: a\n  limits:" + strings.Repeat("\n  - {requests: 5, period: 1m}", 17), "it has 17 limits: at most 16"},
		{"a number beside a list", "rules: [{name: a, requests: 5, limits: [{requests: 5, period: 1m}]}]", "requests belongs to one of the limits"},
		{"a tier that says nothing", "rules: [{name: a, requests: 5, period: 1m, tiers: {free: {}}}]", "nothing is said about it"},
		{"a tier that says what is wrong", "rules: [{name: a, requests: 5, period: 1m, tiers: {free: {request: 5}}}]", "did you mean requests?"},
		{"a tier that is missing", "rules:\n- {name: a, period: 1m, tiers: {free: {requests: 5}}}\n- {name: b, requests: 5, period: 1m, tiers: {pro: {requests: 9}}}", "2:10: rule \"a\": it has limits for some tiers, and none for the tier \"pro\""},
		{"a key that is none", "rules: [{name: a, requests: 5, period: 1m, keys: {\"a\\x01\": {requests: 9}}}]", "control character"},
		{"a rule that replaces", "rules: [{name: a, requests: 5, period: 1m, replaces: [{name: b}]}]", "only rules of descriptors replace"},
		{"on_failure", "on_failure: maybe\nrules: []", "1:13: on_failure is one of error, open, closed, local"},
		{"local for no number", "on_failure: local\nrules: []", "local needs to know how many processes"},
		{"local for none", "on_failure: {mode: local, instances: 0}\nrules: []", "instances is at least 1"},
		{"open for a number", "on_failure: {mode: open, instances: 4}\nrules: []", "instances are for the mode local"},
		{"an answer in no time", "on_failure: {mode: open, after: 0s}\nrules: []", "after must be above zero"},
		{"an alias of nothing", "rules: [*a]", "no anchor with this name comes before it"},
		{"an alias of itself", "rules: &a [*a]", "a rule is written as lines"},
		{"a file that is not UTF-8", "rules: [\xff]", "1:1: the line is not UTF-8"},
		{"a line that is too long", "# " + strings.Repeat("x", 5000), "at most 4096 are read"},
		{"a deep file", "rules: " + strings.Repeat("[", 500), "it nests more than 64 deep"},
		{"bytes for a terminal", "rules: [{name: \"\\e[2J\", requests: 5, period: 1m}]", `rule "\x1b[2J"`},
		{"a domain without a name", "domain:\ndescriptors: []", "the name of a domain is empty"},
		{"no domain", "descriptors: []", "descriptors belong to a domain"},
		{"a descriptor twice, in two parts of a domain", "domain: d\ndescriptors: [{key: k}]\n---\ndomain: d\ndescriptors: [{key: k}]", "5:21: descriptor \"d/k\": another descriptor of the list"},
		{"two parts of a domain that disagree", "domain: d\n---\ndomain: d\non_failure: open", "3:9: another part of this domain has another on_failure"},
		{"a descriptor twice", "domain: d\ndescriptors:\n- {key: k, value: v}\n- {key: k, value: v}", "4:9: descriptor \"d/k=v\": another descriptor of the list has this key"},
		{"a descriptor without a key", "domain: d\ndescriptors: [{value: v}]", "a descriptor has no key"},
		{"a list of texts", "domain: d\ndescriptors: [a, b]", "2:15: a descriptor is written as lines"},
		{"what replaces itself", "domain: d\ndescriptors: [{key: k, rate_limit: {name: x, replaces: [{name: x}], unit: day, requests_per_unit: 5}}]", "it replaces itself"},
		{"what replaces nothing", "domain: d\ndescriptors: [{key: k, rate_limit: {replaces: [{name: }], unit: day, requests_per_unit: 5}}]", "it does not say what it replaces"},
		{"unlimited and a unit", "domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: true, unit: day, requests_per_unit: 5}}]", "it is unlimited and says unit"},
		{"a pool without a pattern", "domain: d\ndescriptors: [{key: k, value: v, share_threshold: true}]", "the value has no *"},
		{"a descriptor for all", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5, for_all: true}}]", "cannot count all keys together"},
		{"a descriptor with keys", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5, keys: {x: {requests: 6}}}}]", "the rule of a descriptor has no keys"},
		{"a descriptor with on_failure", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5, on_failure: open}}]", "the domain says for all its descriptors"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, err := rules.Parse("r.yaml", []byte(c.text))
			if all := rules.Errors(nil); !errors.As(err, &all) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it reads\n%v\nwant %s", err, c.want)
			}
			if len(r.Rules)+len(r.Domains) > 0 {
				t.Errorf("with an error it has rules: %+v", r)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\x1b\x01") {
				t.Errorf("the error has control characters: %q", err)
			}
		})
	}
}

// All mistakes are told at once, in the order of the file, and each once.
func TestParseTellsAll(t *testing.T) {
	t.Parallel()
	_, err := rules.Parse("shop.yaml", []byte(`on_failure: sometimes
rules:
  - name: a
    requests: -1
    period: 1m
    tiers:
      free: {requests: 5}
  - name: b
    requests: 5
    period: 5
  - name: c
    requests: 5
    period: 1m
    parts: 7
  - name: c
    requests: 5
    period: 1m
`))
	var all rules.Errors
	if !errors.As(err, &all) {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, fmt.Sprintf("%s:%d:%d", e.File, e.Line, e.Column))
	}
	if want := "[shop.yaml:1:13 shop.yaml:4:15 shop.yaml:10:13 shop.yaml:11:11 shop.yaml:15:11]"; fmt.Sprint(got) != want {
		t.Errorf("mistakes at %v, want %s:\n%v", got, want, err)
	}
	one, ok := errors.AsType[*rules.Error](err)
	if !ok || one.Source != "on_failure: sometimes" {
		t.Errorf("the first is %+v", one)
	}
	_, err = rules.Parse("x", []byte("rules:\n"+strings.Repeat("- 5\n", 500)))
	if errors.As(err, &all); len(all) != 101 || !strings.Contains(all[100].Error(), "and 400 mistakes more") {
		t.Errorf("%d mistakes are told, the last is %v", len(all), all[len(all)-1])
	}
}

// Aliases of aliases do not fill the memory.
func TestParseBomb(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("rules:\n  - &a0 {name: x, requests: 5, period: 1m}\n")
	for i := 1; i < 20; i++ {
		fmt.Fprintf(&b, "  - &a%d {limits: [%s]}\n", i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 20))
	}
	start := time.Now()
	if _, err := rules.Parse("bomb", []byte(b.String())); err == nil {
		t.Error("it was read")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// Rules from code are checked like those of a file.
func TestCode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want string
		rule rules.Rule
	}{
		{"", rules.Rule{Name: "a", Limits: []rules.Limit{{N: 5, Period: time.Minute}}}},
		{`rule "": it has no name`, rules.Rule{}},
		{"it has no limits", rules.Rule{Name: "a"}},
		{"it is unlimited and has limits", rules.Rule{Name: "a", Unlimited: true, Limits: []rules.Limit{{N: 5, Period: time.Minute}}}},
		{"it allows -5", rules.Rule{Name: "a", Limits: []rules.Limit{{N: -5, Period: time.Minute}}}},
		{"a period of 0s", rules.Rule{Name: "a", Limits: []rules.Limit{{N: 5}}}},
		{"can have one of them", rules.Rule{Name: "a", Limits: []rules.Limit{{N: 5, Period: time.Minute, Calendar: rules.Day}}}},
		{"calendar 9 is none", rules.Rule{Name: "a", Limits: []rules.Limit{{N: 5, Calendar: 9}}}},
		{"algorithm 99 is not known", rules.Rule{Name: "a", Limits: []rules.Limit{{N: 5, Period: time.Minute, Algorithm: 99}}}},
		{"offset", rules.Rule{Name: "a", Limits: []rules.Limit{{N: 5, Period: time.Minute, Offset: -1, Algorithm: limits.FixedWindow}}}},
		{"a share of 2", rules.Rule{Name: "a", Limits: []rules.Limit{{N: 5, Period: time.Minute, Warn: 2}}}},
		{"the store is given 0s", rules.Rule{Name: "a", Limits: []rules.Limit{{N: 5, Period: time.Minute}}, OnFailure: rules.Failure{By: ratelimit.ByOpen}}},
		{"batch cannot decide", rules.Rule{Name: "a", Limits: []rules.Limit{{N: 5, Period: time.Minute}}, OnFailure: rules.Failure{By: ratelimit.ByBatch}}},
	} {
		_, err := rules.New(nil, rules.Rules{Rules: []rules.Rule{c.rule}})
		if c.want == "" && err == nil {
			continue
		}
		if all := rules.Errors(nil); c.want == "" || !errors.As(err, &all) || !strings.Contains(strings.Replace(err.Error(), "rule 1:", `rule "":`, 1), c.want) {
			t.Errorf("%+v: %v, want %s", c.rule, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"rules: [{name: a, requests: 5, period: 1m}]", "a: &a [*a]", "? [a]: b", "<<: *x", "rules: !!map {<<: [{a: 1}]}",
		"domain: d\ndescriptors:\n- key: k\n  value: v*\n  rate_limit:\n    unit: day\n    requests_per_unit: 5\n    replaces: [{name: x}]\n",
		"rules:\n- name: a\n  limits: [{requests: 5, period: 1m}]\n  tiers: {free: {requests: 1}}\n  keys: {k: {unlimited: true}}\n",
		"on_failure: {mode: local, instances: 4}\n---\n...\n--- |\n x", "%YAML 1.2\n---\n{}", "rules: [{name: a, requests: 0x10, period: \"\"}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		mutants.Of(text, func(text []byte) {
			r, err := rules.Parse("fuzz", text)
			if err != nil {
				if strings.ContainsFunc(err.Error(), func(c rune) bool { return c < ' ' && c != '\n' && c != '\t' }) {
					t.Errorf("a control character in %q", err)
				}
				return
			}
			if _, err := rules.New(nil, r); err != nil {
				t.Errorf("what is read of %q is refused: %v", text, err)
			}
		})
	})
}
