package rules_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// late is a store that needs 40 ms for each answer.
type late struct{ limits.Store }

func (l late) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	select {
	case <-time.After(40 * time.Millisecond):
		return l.Store.Take(ctx, r)
	case <-ctx.Done():
		return limits.Taken{}, errors.Join(driver.ErrUnknown, ctx.Err())
	}
}

// Within bounds all that a decision asks the store, and what the store answers late
// counts.
func TestWithin(t *testing.T) {
	text := "{unit: hour, requests_per_unit: 10}"
	domain := "domain: d\non_failure: %s\ndescriptors:\n" +
		"- {key: a, rate_limit: " + text + "}\n" +
		"- {key: tried, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}\n"
	for _, c := range []struct {
		mode string
		by   ratelimit.Source
	}{
		{"open", ratelimit.ByOpen},
		{"{mode: local, instances: 1}", ratelimit.ByLocal},
		{"error", ratelimit.ByStore},
	} {
		t.Run(c.mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				l := limiter(t, late{store}, fmt.Sprintf(domain, c.mode))
				for range 3 {
					start := time.Now()
					d, err := l.Allow(t.Context(), rules.Request{Domain: "d", Descriptions: describing("a=x tried=x"), Within: 25 * time.Millisecond})
					took := time.Since(start)
					if c.by == ratelimit.ByStore {
						if !errors.Is(err, context.DeadlineExceeded) || took != 25*time.Millisecond {
							t.Errorf("%v after %v", err, took)
						}
						continue
					}
					if err != nil || !d.OK || d.By != c.by || took != 25*time.Millisecond {
						t.Errorf("%+v, %v after %v", d, err, took)
					}
				}
				time.Sleep(time.Second) // fake time: until the store has answered
				d := allow(t, limiter(t, store, fmt.Sprintf(domain, "error")), rules.Request{Domain: "d", Descriptions: describing("a=x")})
				want := int64(6) // also what came after the shadow was used up
				if c.by == ratelimit.ByStore {
					want = 9
				}
				if d.Remaining != want {
					t.Errorf("%d remain, want %d", d.Remaining, want)
				}
			})
		})
	}
}

// A match names its rule, and shows the limits as they were set.
func TestMatchOfARule(t *testing.T) {
	t.Parallel()
	l := limiter(t, memstore.New(), `
domain: d
descriptors:
- key: a
  rate_limit:
    name: both
    limits:
    - {requests: 0, period: 1m, shadow: true}
    - {name: month, requests: 5, period: month}
`)
	d := allow(t, l, rules.Request{Domain: "d", Descriptions: describing("a=x b=x")})
	m := d.Matches[0]
	if m.Rule != "d/a" || m.Name != "both" || len(m.Set) != 2 || len(m.Limits) != 2 || m.Set[1].Calendar != rules.Month || m.Limits[1].Limit != 5 || !m.Set[0].Shadow || !m.Limits[0].Shadow {
		t.Errorf("%+v", m)
	}
	if m = d.Matches[1]; m.Rule != "" || m.Name != "" || m.Set != nil {
		t.Errorf("%+v", m)
	}
	if _, err := l.Allow(t.Context(), rules.Request{Domain: "d", Descriptions: describing("a=x"), Within: -1}); err == nil {
		t.Error("a time below zero is accepted")
	}
}

// What a file does not say about a store that fails, its program does.
func TestOpenOr(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const text = `
rules:
- {name: silent, requests: 1, period: 1m}
- {name: error, requests: 1, period: 1m, on_failure: error}
- {name: open, requests: 1, period: 1m, on_failure: open}
---
domain: silent
descriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 10}}]
---
domain: error
on_failure: error
`
	write(text)
	otherwise := rules.Failure{By: ratelimit.ByLocal, After: time.Second, Instances: 3}
	f, err := rules.OpenOr(otherwise, path)
	if err != nil {
		t.Fatal(err)
	}
	open := rules.Failure{By: ratelimit.ByOpen, After: 500 * time.Millisecond}
	check := func() {
		t.Helper()
		r := f.Rules()
		got := []rules.Failure{r.Rules[0].OnFailure, r.Rules[1].OnFailure, r.Rules[2].OnFailure, r.Domains[0].OnFailure, r.Domains[1].OnFailure}
		if want := []rules.Failure{otherwise, {}, open, otherwise, {}}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	check()
	write(text + "# changed\n")
	if changed, err := f.Changed(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	check()
}
