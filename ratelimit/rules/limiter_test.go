package rules_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

func parse(t testing.TB, text string) rules.Rules {
	t.Helper()
	r, err := rules.Parse("rules.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func limiter(t testing.TB, store limits.Store, text string) *rules.Limiter {
	t.Helper()
	l, err := rules.New(store, parse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func allow(t testing.TB, l *rules.Limiter, r rules.Request) rules.Decision {
	t.Helper()
	d, err := l.Allow(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const shop = `
rules:
  - name: api
    limits:
      - {requests: 10, period: 1h}
      - {name: day, requests: 15, period: 24h, per_call: true}
    tiers:
      pro: {requests: 30}
      staff: {unlimited: true}
    keys:
      user/7: {requests: 2}
  - {name: login, requests: 0, period: 1m}
  - {name: all, requests: 4, period: 1h, for_all: true}
  - {name: work, requests: 1, period: 1m, algorithm: leaky-bucket, max_wait: 5m}
`

func TestNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, memstore.New(), shop)
		for _, c := range []struct {
			r      rules.Request
			ok     bool
			name   string
			remain int64
		}{
			{rules.Request{Rule: "api", Key: "a", Cost: 9}, true, "api", 1},
			{rules.Request{Rule: "api", Key: "a", Cost: 2}, false, "api", 1},
			{rules.Request{Rule: "api", Key: "a", Cost: 22, Tier: "pro"}, false, "api", 21}, // the same count
			{rules.Request{Rule: "api", Key: "a", Cost: 20, Tier: "pro"}, true, "api", 1},
			{rules.Request{Rule: "api", Key: "a"}, false, "api", 0},
			{rules.Request{Rule: "api", Key: "b", Cost: 5}, true, "api", 5},
			{rules.Request{Rule: "api", Key: "user/7", Cost: 2, Tier: "pro"}, true, "api", 0}, // a key goes before a tier
			{rules.Request{Rule: "api", Key: "user/7"}, false, "api", 0},
			{rules.Request{Rule: "login", Key: "a"}, false, "login", 0},
			{rules.Request{Rule: "all", Key: "a", Cost: 3}, true, "all", 1},
			{rules.Request{Rule: "all", Key: "b", Cost: 2}, false, "all", 1},
		} {
			if d := allow(t, l, c.r); d.OK != c.ok || d.Name != c.name || d.Remaining != c.remain || d.Key != c.r.Key || d.Matches[0].OK != c.ok {
				t.Errorf("%+v: %+v, want %v by %s with %d left", c.r, d, c.ok, c.name, c.remain)
			}
		}
		if d := allow(t, l, rules.Request{Rule: "api", Key: "a", Tier: "staff"}); said(d) != "free" || !d.Matches[0].Unlimited {
			t.Errorf("without a limit: %+v", d)
		}
		if d := allow(t, l, rules.Request{Rule: "login", Key: "a"}); d.RetryAfter != ratelimit.Never {
			t.Errorf("a limit of 0: %+v", d)
		}
		if d, err := l.Peek(t.Context(), rules.Request{Rule: "login", Key: "a"}); err != nil || d.Remaining != 0 || !d.OK {
			t.Errorf("a look at a limit of 0: %+v, %v", d, err)
		}
		// All or nothing: the day of b has counted one call, and not the refusals.
		for range 14 {
			allow(t, l, rules.Request{Rule: "api", Key: "b", Tier: "pro"})
		}
		allow(t, l, rules.Request{Rule: "api", Key: "b", Cost: 20})
		if d, err := l.Peek(t.Context(), rules.Request{Rule: "api", Key: "b", Tier: "pro"}); err != nil || d.Matches[0].Limits[0].Remaining != 11 || d.Matches[0].Limits[1].Remaining != 0 {
			t.Errorf("after a refusal: %+v, %v", d.Matches, err)
		}
		if d := allow(t, l, rules.Request{Rule: "api", Key: "b", Tier: "pro"}); d.OK || d.Name != "api.day" {
			t.Errorf("the other limit refuses: %+v", d)
		}
		if err := l.Forget(t.Context(), rules.Request{Rule: "api", Key: "b"}); err != nil {
			t.Error(err)
		}
		if d := allow(t, l, rules.Request{Rule: "api", Key: "b"}); !d.OK || d.Remaining != 9 {
			t.Errorf("after Forget: %+v", d)
		}
		if d := allow(t, l, rules.Request{Rule: "work", Key: "w"}); !d.OK || d.Wait != 0 {
			t.Errorf("the first turn: %+v", d)
		}
		if d := allow(t, l, rules.Request{Rule: "work", Key: "w"}); !d.OK || d.Wait != time.Minute {
			t.Errorf("the second turn: %+v", d)
		}
	})
}

// A rule and a ratelimit.Limiter of the same name count together.
func TestCountsTogether(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	l := limiter(t, store, shop)
	other, err := ratelimit.New(store, ratelimit.SlidingWindow(10, time.Hour).Named("api"))
	if err != nil {
		t.Fatal(err)
	}
	allow(t, l, rules.Request{Rule: "api", Key: "a", Cost: 7})
	if r, err := other.Peek(t.Context(), "a"); err != nil || r.Remaining != 3 {
		t.Errorf("the other limiter finds %+v, %v", r, err)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), shop+"---\ndomain: d\ndescriptors:\n  - {key: k, rate_limit: {period: 1m, tiers: {pro: {requests: 5}, staff: {requests: 6}}}}\n")
	minus := int64(-1)
	many := make([]rules.Description, 17)
	for i := range many {
		many[i] = rules.Describe("k", fmt.Sprint(i))
	}
	for _, c := range []struct {
		r    rules.Request
		kind string // of an UnknownError
		want string
	}{
		{rules.Request{Rule: "logn", Key: "a"}, "rule", `there is no rule "logn": did you mean "login"?`},
		{rules.Request{Rule: "api", Key: "a", Tier: "gold"}, "tier", `there is no tier "gold"`},
		{rules.Request{Domain: "x\x1b", Descriptions: describing("k=v")}, "domain", `there is no domain "x\x1b"`},
		{rules.Request{Domain: "d", Descriptions: describing("k=v")}, "tier", `there is no tier ""`},
		{rules.Request{}, "", "it must be one of them"},
		{rules.Request{Rule: "api", Domain: "d", Key: "a"}, "", "it must be one of them"},
		{rules.Request{Rule: "api", Key: "a", Descriptions: describing("k=v")}, "", "descriptions are for a domain"},
		{rules.Request{Domain: "d", Key: "a", Descriptions: describing("k=v")}, "", "a key \"a\" is for a rule"},
		{rules.Request{Domain: "d"}, "", "it describes nothing"},
		{rules.Request{Domain: "d", Descriptions: make([]rules.Description, 1)}, "", "description 1 has no entries"},
		{rules.Request{Domain: "d", Tier: "pro", Descriptions: []rules.Description{{Entries: []rules.Entry{{Key: "k"}}, Cost: &minus}}}, "", "a cost of -1"},
		{rules.Request{Domain: "d", Tier: "pro", Descriptions: []rules.Description{{Entries: []rules.Entry{{Key: "k"}}, Limit: &rules.Limit{N: 1}}}}, "", "the limit of description 1: a period of 0s"},
		{rules.Request{Domain: "d", Tier: "pro", Descriptions: []rules.Description{{Entries: []rules.Entry{{Key: "k"}}, Limit: &rules.Limit{N: 1, Period: 1}}}}, "", "whole microseconds"},
		{rules.Request{Domain: "d", Tier: "pro", Cost: 1<<63 - 1, Descriptions: describing("k=v k=v")}, "", "the costs of"},
		{rules.Request{Rule: "api", Key: "a", Cost: -1}, "", "a cost of -1"},
		{rules.Request{Rule: "api"}, "", "it is empty"},
		{rules.Request{Rule: "api", Key: strings.Repeat("k", 510)}, "", "at most 512 are allowed"},
		{rules.Request{Domain: "d", Tier: "pro", Descriptions: many}, "", "17 limits in one request"},
	} {
		_, err := l.Allow(t.Context(), c.r)
		unknown, is := errors.AsType[*rules.UnknownError](err)
		if err == nil || !strings.Contains(err.Error(), c.want) || is != (c.kind != "") || is && unknown.Kind != c.kind {
			t.Errorf("%+v: %v, want %s", c.r, err, c.want)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Allow(gone, rules.Request{Rule: "login", Key: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// Descriptions that differ count apart, whatever is in them.
func TestStrangeDescriptions(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), "domain: \"d{}/=\"\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 1}, descriptors: [{key: l, rate_limit: {unit: hour, requests_per_unit: 1}}]}\n")
	long := strings.Repeat("x", 5000)
	for _, d := range []rules.Description{
		rules.Describe("k", "a,l=b"), rules.Describe("k", "a", "l", "b"), rules.Describe("k", ""), rules.Describe("k", "%"), rules.Describe("k", "%25"),
		rules.Describe("k", "\x00"), rules.Describe("k", "\xff"), rules.Describe("k", "{a}"), rules.Describe("k", "a#b"), rules.Describe("k", "\u0085"), rules.Describe("k", "é"),
		rules.Describe("k", long), rules.Describe("k", long+"x"), rules.Describe("k", long, "l", long),
	} {
		r := rules.Request{Domain: "d{}/=", Descriptions: []rules.Description{d}}
		if first, second := allow(t, l, r), allow(t, l, r); !first.OK || second.OK {
			t.Errorf("%.40q: %v, then %v, want true and false", fmt.Sprint(d.Entries), first.OK, second.OK)
		}
	}
}

// Reload changes numbers, tiers and windows, and what was taken stays taken.
func TestReload(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), "rules: [{name: a, requests: 10, period: 1h}]\n---\ndomain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]\n")
	named, described := rules.Request{Rule: "a", Key: "x", Cost: 4}, rules.Request{Domain: "d", Descriptions: describing("k=v"), Cost: 4}
	allow(t, l, named)
	allow(t, l, described)
	if err := l.Reload(parse(t, `
rules:
  - name: a
    limits: [{requests: 9, period: 1h}, {name: burst, requests: 5, period: 1s}]
    tiers: {pro: {requests: 100}}
  - {name: b, requests: 1, period: 1m}
---
domain: d
descriptors: [{key: k, rate_limit: {name: x, unit: day, requests_per_unit: 50, algorithm: sliding-window}}]
`)); err != nil {
		t.Fatal(err)
	}
	named.Cost, described.Cost = 1, 1
	if d := allow(t, l, named); d.Matches[0].Limits[0].Remaining != 4 || d.Matches[0].Limits[1].Remaining != 4 {
		t.Errorf("a rule after Reload: %+v", d)
	}
	named.Tier = "pro"
	if d := allow(t, l, named); d.Matches[0].Limits[0].Remaining != 94 {
		t.Errorf("a tier that is new: %+v", d)
	}
	if d := allow(t, l, described); d.Remaining != 45 {
		t.Errorf("a descriptor after Reload: %+v", d)
	}
	if err := l.Reload(rules.Rules{Rules: []rules.Rule{{Name: "a"}}}); err == nil {
		t.Error("rules without a limit were taken")
	}
	if d := allow(t, l, named); d.Matches[0].Limits[0].Remaining != 93 {
		t.Errorf("after a Reload that was refused: %+v", d)
	}
	if err := l.Reload(rules.Rules{}); err != nil {
		t.Error(err)
	}
	if _, err := l.Allow(t.Context(), named); err == nil {
		t.Error("a rule that is gone decides")
	}
}

// Many ask while rules change; no more is allowed than the largest of them.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), "rules: [{name: a, requests: 50, period: 24h}]")
	small, large := parse(t, "rules: [{name: a, requests: 50, period: 24h}]"), parse(t, "rules: [{name: a, requests: 80, period: 24h}]")
	var allowed atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				d, err := l.Allow(t.Context(), rules.Request{Rule: "a", Key: "x"})
				if err != nil {
					t.Error(err)
				}
				if d.OK {
					allowed.Add(1)
				}
			}
		})
	}
	for range 100 {
		for _, r := range []rules.Rules{small, large} {
			if err := l.Reload(r); err != nil {
				t.Error(err)
			}
		}
	}
	all.Wait()
	if n := allowed.Load(); n < 50 || n > 80 {
		t.Errorf("%d were allowed, want 50 to 80", n)
	}
}

// failing is a store that fails when told to, and counts requests.
type failing struct {
	limits.Store
	fails atomic.Bool
	asked atomic.Int64
}

func (f *failing) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	f.asked.Add(1)
	if f.fails.Load() {
		return limits.Taken{}, driver.ErrUnavailable
	}
	return f.Store.Take(ctx, r)
}

func TestStoreFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &failing{Store: memstore.New()}
		l := limiter(t, store, `
on_failure: closed
rules:
  - {name: error, requests: 5, period: 1m, on_failure: error}
  - {name: open, requests: 5, period: 1m, on_failure: open}
  - {name: closed, requests: 5, period: 1m}
  - {name: local, requests: 5, period: 1m, on_failure: {mode: local, instances: 2, after: 100ms}}
  - {name: shadow, requests: 5, period: 1m, shadow: true}
domain: d
descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]
`)
		store.fails.Store(true)
		if _, err := l.Allow(t.Context(), rules.Request{Rule: "error", Key: "k"}); !errors.Is(err, ratelimit.ErrUnavailable) {
			t.Errorf("error: %v", err)
		}
		for _, c := range []struct {
			r  rules.Request
			by ratelimit.Source
			ok int // of four
		}{
			{rules.Request{Rule: "open", Key: "k"}, ratelimit.ByOpen, 4},
			{rules.Request{Rule: "closed", Key: "k"}, ratelimit.ByClosed, 0},
			{rules.Request{Rule: "local", Key: "k"}, ratelimit.ByLocal, 2},
			{rules.Request{Rule: "shadow", Key: "k"}, ratelimit.ByClosed, 4},
			{rules.Request{Domain: "d", Descriptions: describing("k=v")}, ratelimit.ByClosed, 0},
		} {
			ok := 0
			for range 4 {
				d := allow(t, l, c.r)
				if d.OK {
					ok++
				}
				if d.By != c.by {
					t.Errorf("%+v: decided by %v, want %v", c.r, d.By, c.by)
				}
			}
			if ok != c.ok {
				t.Errorf("%+v: %d allowed, want %d", c.r, ok, c.ok)
			}
		}
		// What the rules know of the store survives a Reload.
		for range 5 {
			allow(t, l, rules.Request{Rule: "open", Key: "k"})
		}
		if err := l.Reload(l.Rules()); err != nil {
			t.Fatal(err)
		}
		before := store.asked.Load()
		allow(t, l, rules.Request{Rule: "open", Key: "k"})
		if store.asked.Load() != before {
			t.Error("after Reload a store that fails was asked at once")
		}
	})
}

// One decision is one request to the store.
func TestOneRequest(t *testing.T) {
	t.Parallel()
	store := &failing{Store: memstore.New()}
	l := limiter(t, store, shop+"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}, {key: l, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}]\n")
	for _, c := range []struct {
		r    rules.Request
		want int64
	}{
		{rules.Request{Rule: "api", Key: "a"}, 1},
		{rules.Request{Rule: "api", Key: "a", Tier: "staff"}, 0},
		{rules.Request{Rule: "login", Key: "a"}, 0},
		{rules.Request{Domain: "d", Descriptions: describing("k=v l=v")}, 1},
		{rules.Request{Domain: "d", Descriptions: describing("k=v l=v")}, 2}, // the shadow is over
		{rules.Request{Domain: "d", Descriptions: describing("m=v")}, 0},
	} {
		before := store.asked.Load()
		allow(t, l, c.r)
		if n := store.asked.Load() - before; n != c.want {
			t.Errorf("%+v: %d requests to the store, want %d", c.r, n, c.want)
		}
	}
}

func write(t *testing.T, path, text string, at time.Time) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
		t.Fatal(err)
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if _, err := rules.Open(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	then := time.Now().Add(-time.Hour)
	write(t, path, "rules: [{name: a, requests: 5, period: 1m}]", then)
	f, err := rules.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(want bool, wantErr string) {
		t.Helper()
		got, err := f.Changed()
		text := ""
		if err != nil {
			text = err.Error()
		}
		if got != want || !strings.Contains(text, wantErr) || (text == "") != (wantErr == "") {
			t.Errorf("changed: %v, %v, want %v, %q", got, err, want, wantErr)
		}
	}
	changed(false, "")
	write(t, path, "rules: [{name: a, requests: 5, period: 1m}]", then.Add(time.Second)) // touched
	changed(false, "")
	write(t, path, "rules: [{name: a, requests: 6, period: 1m}]", then.Add(2*time.Second))
	changed(true, "")
	if n := f.Rules().Rules[0].Limits[0].N; n != 6 {
		t.Errorf("it reads %d", n)
	}
	changed(false, "")
	write(t, path, "rules: [{name: a}]", then.Add(3*time.Second))
	changed(false, "it has no limits")
	changed(false, "")
	if n := f.Rules().Rules[0].Limits[0].N; n != 6 {
		t.Errorf("after a mistake it reads %d", n)
	}
	// Twice within the resolution of the file's time, with the same length.
	now := time.Now()
	write(t, path, "rules: [{name: a, requests: 7, period: 1m}]", now)
	changed(true, "")
	write(t, path, "rules: [{name: a, requests: 8, period: 1m}]", now)
	changed(true, "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	changed(false, "no such file")
}

func TestFollow(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	then := time.Now().Add(-time.Hour)
	write(t, path, "rules: [{name: a, requests: 5, period: 1m}]", then)
	synctest.Test(t, func(t *testing.T) {
		f, err := rules.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		l, err := rules.New(memstore.New(), f.Rules())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		var told []string
		ended := make(chan error)
		go func() {
			ended <- l.Follow(ctx, f, func(err error) { told = append(told, strings.TrimSpace(fmt.Sprint(err))) })
		}()
		tick := func() {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		tick()
		// It is written in pieces, the first of which is right by itself.
		for i, text := range []string{"rules:\n- {name: b, requests: 5, period: 1m}\n", "rules:\n- {name: b, requests: 5, period: 1m}\n- {nam"} {
			write(t, path, text, then.Add(time.Duration(i+1)*time.Second))
			tick()
		}
		tick()
		if d := allow(t, l, rules.Request{Rule: "a", Key: "k"}); !d.OK {
			t.Errorf("while the file is written: %+v", d)
		}
		write(t, path, "rules:\n- {name: b, requests: 5, period: 1m}\n- {name: c, requests: 5, period: 1m}\n", then.Add(time.Minute))
		tick()
		allow(t, l, rules.Request{Rule: "a", Key: "k"})
		tick()
		if d := allow(t, l, rules.Request{Rule: "c", Key: "k"}); !d.OK {
			t.Errorf("%+v", d)
		}
		write(t, path, "", then.Add(2*time.Minute)) // another one begins
		tick()
		tick()
		if d := allow(t, l, rules.Request{Rule: "b", Key: "k"}); !d.OK {
			t.Errorf("%+v", d)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		tick()
		tick()
		if d := allow(t, l, rules.Request{Rule: "b", Key: "k"}); !d.OK {
			t.Errorf("without the file: %+v", d)
		}
		enough := errors.New("enough")
		cancel(enough)
		if err := <-ended; !errors.Is(err, enough) {
			t.Errorf("Follow ended with %v", err)
		}
		if len(told) != 4 || !strings.Contains(told[0], "not YAML") || told[1] != "<nil>" ||
			!strings.Contains(told[2], "there are no rules") || !strings.Contains(told[3], "no such file") {
			t.Errorf("told %q", told)
		}
	})
}

// tenThousand are that many rules.
func tenThousand() []byte {
	var b strings.Builder
	b.WriteString("rules:\n")
	for i := range 5000 {
		fmt.Fprintf(&b, "  - name: rule-%d\n    limits:\n      - {requests: %d, period: 1m}\n      - {name: day, requests: 10000, period: day}\n    tiers:\n      pro: {requests: %d}\n", i, i+1, 10*i+10)
	}
	b.WriteString("---\ndomain: d\ndescriptors:\n")
	for i := range 5000 {
		fmt.Fprintf(&b, "  - key: k\n    value: v%d\n    rate_limit:\n      unit: second\n      requests_per_unit: %d\n", i, i)
	}
	return []byte(b.String())
}

func BenchmarkParse(b *testing.B) {
	text := tenThousand()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := rules.Parse("rules.yaml", text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAllow(b *testing.B) {
	l, err := rules.New(memstore.New(), func() rules.Rules {
		r, err := rules.Parse("rules.yaml", tenThousand())
		if err != nil {
			b.Fatal(err)
		}
		return r
	}())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("named", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := l.Allow(b.Context(), rules.Request{Rule: "rule-4999", Key: "k"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("described", func(b *testing.B) {
		b.ReportAllocs()
		d := []rules.Description{rules.Describe("k", "v4999")}
		for b.Loop() {
			if _, err := l.Allow(b.Context(), rules.Request{Domain: "d", Descriptions: d}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Rules obey the overrides of a store that keeps them: by the key of the limit in the
// store, whatever the tier.
func TestRulesObeyOverrides(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := limiter(t, store, shop)
		named := ratelimit.FixedWindow(1, time.Hour).Named
		for _, o := range []limits.Override{
			{Key: named("api").StoreKey("a"), N: 20},
			{Key: named("api.day").StoreKey("a"), N: 500},
			{Key: named("all").ForAll().StoreKey("x"), N: 1},
			{Key: named("login").StoreKey("a"), N: 50}, // a limit of 0 is asked nowhere
		} {
			if err := store.SetOverride(t.Context(), o, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			r      rules.Request
			ok     bool
			remain int64
		}{
			{rules.Request{Rule: "api", Key: "a", Cost: 19}, true, 1},
			{rules.Request{Rule: "api", Key: "a", Tier: "pro", Cost: 2}, false, 1},
			{rules.Request{Rule: "api", Key: "b", Cost: 9}, true, 1},
			{rules.Request{Rule: "all", Key: "a"}, true, 0},
			{rules.Request{Rule: "all", Key: "b"}, false, 0},
			{rules.Request{Rule: "login", Key: "a"}, false, 0},
		} {
			d := allow(t, l, c.r)
			if d.OK != c.ok || d.Remaining != c.remain {
				t.Errorf("%+v: %v, %d remain, want %v and %d", c.r, d.OK, d.Remaining, c.ok, c.remain)
			}
			if over := c.r.Key == "a" && c.r.Rule == "api"; d.Matches[0].Limits[0].Overridden != over && c.r.Rule == "api" {
				t.Errorf("%+v: %+v", c.r, d.Matches[0].Limits[0])
			}
		}
		time.Sleep(time.Hour) // fake
		if d := allow(t, l, rules.Request{Rule: "api", Key: "a", Cost: 11}); d.OK {
			t.Errorf("after the end: %+v", d)
		}
	})
}
