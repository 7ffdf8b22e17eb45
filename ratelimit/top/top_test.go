package top_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/top"
)

// decide tells of a decision, as a Limiter does.
func decide(k *top.Keys, key string, cost int64, ok bool) {
	k.Events().Decided(context.Background(), ratelimit.DecisionEvent{Result: ratelimit.Result{Key: key, Cost: cost, OK: ok}})
}

// streams are kinds of traffic: how often which key comes.
var streams = map[string]func(r *rand.Rand, i int) string{
	"few":         func(r *rand.Rand, _ int) string { return fmt.Sprint(r.IntN(8)) },
	"even":        func(r *rand.Rand, _ int) string { return fmt.Sprint(r.IntN(1000)) },
	"all new":     func(_ *rand.Rand, i int) string { return fmt.Sprint(i) },
	"uneven":      func(r *rand.Rand, _ int) string { return fmt.Sprint(int(math.Exp(r.ExpFloat64()))) },
	"late":        func(r *rand.Rand, i int) string { return fmt.Sprint(r.IntN(20), " of ", i/5000) },
	"round robin": func(_ *rand.Rand, i int) string { return fmt.Sprint(i % 33) }, // one more than counters
}

// No count is below the truth, none is above it by more than it says, and that is no more
// than an even share of all; whoever has more than such a share is found.
func TestCountsAreBounded(t *testing.T) {
	t.Parallel()
	for name, next := range streams {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5) {
				r := rand.New(rand.NewPCG(seed, 1))
				size := 1 + r.IntN(64)
				if name == "round robin" {
					size = 32
				}
				k := top.New(top.Config{Size: size, Period: 1000 * time.Hour})
				decisions, refusals, cost := map[string]int64{}, map[string]int64{}, map[string]int64{}
				for i := range 20_000 {
					key, n, ok := next(r, i), 1+r.Int64N(9), r.IntN(3) > 0
					decide(k, key, n, ok)
					if decisions[key]++; ok {
						cost[key] += n
					} else {
						refusals[key]++
					}
					if i%5000 == 17 || i == 19_999 {
						for _, n := range []int{0, 1, size / 2, size, size + 1} {
							p := k.Report(n).Present
							check(t, "decisions", p.Decisions, decisions, n, size)
							check(t, "refusals", p.Refusals, refusals, n, size)
							check(t, "cost", p.Cost, cost, n, size)
						}
					}
					if t.Failed() {
						t.Fatalf("seed %d, %d counters, after %d decisions", seed, size, i+1)
					}
				}
			}
		})
	}
}

func check(t *testing.T, what string, r top.Ranking, truth map[string]int64, n, size int) {
	t.Helper()
	var total int64
	for _, m := range truth {
		total += m
	}
	if r.Total != total || len(r.Keys) != min(n, size, len(truth)) {
		t.Errorf("%s: a total of %d and %d keys, want %d and %d", what, r.Total, len(r.Keys), total, min(n, size, len(truth)))
	}
	shown := map[string]bool{}
	for i, c := range r.Keys {
		if i > 0 && c.Count > r.Keys[i-1].Count || shown[c.Key] {
			t.Errorf("%s: %+v is number %d", what, c, i)
		}
		shown[c.Key] = true
		if m := truth[c.Key]; c.Count < m || c.Count-c.Over > m || c.Over < 0 || c.Over > total/int64(size) {
			t.Errorf("%s: %+v, in truth %d of %d, with %d counters", what, c, m, total, size)
		}
	}
	for key, m := range truth {
		if !shown[key] && (m > r.Rest || n >= size && m > total/int64(size)) {
			t.Errorf("%s: %q has %d of %d and is not shown, with a rest of %d and %d counters", what, key, m, total, r.Rest, size)
		}
	}
	if len(truth) <= min(n, size) && r.Rest > total/int64(size) {
		t.Errorf("%s: a rest of %d", what, r.Rest)
	}
}

// While no key has lost its counter, all is exact.
func TestFewKeysAreExact(t *testing.T) {
	t.Parallel()
	k := top.New(top.Config{Size: 3})
	for _, one := range []struct {
		key  string
		cost int64
		ok   bool
	}{{"a", 5, true}, {"b", 1, false}, {"a", 2, false}, {"c", 100, true}, {"a", 1, true}} {
		decide(k, one.key, one.cost, one.ok)
	}
	k.Events().Decided(t.Context(), ratelimit.DecisionEvent{Result: ratelimit.Result{Key: "failed", Cost: 7}, Err: errors.New("no store")})
	p := k.Report(2).Present
	for what, c := range map[string]struct{ got, want top.Ranking }{
		"decisions": {p.Decisions, top.Ranking{Total: 5, Keys: []top.Count{{"a", 3, 0}, {"b", 1, 0}}, Rest: 1}},
		"refusals":  {p.Refusals, top.Ranking{Total: 2, Keys: []top.Count{{"a", 1, 0}, {"b", 1, 0}}}},
		"cost":      {p.Cost, top.Ranking{Total: 106, Keys: []top.Count{{"c", 100, 0}, {"a", 6, 0}}}},
	} {
		if c.got.Total != c.want.Total || c.got.Rest != c.want.Rest || !slices.Equal(c.got.Keys, c.want.Keys) {
			t.Errorf("%s: %+v, want %+v", what, c.got, c.want)
		}
	}
}

// Periods follow each other, and an idle one is empty.
func TestPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		k := top.New(top.Config{Size: 2, Period: time.Minute})
		is := func(present, last string, since time.Duration) {
			t.Helper()
			r := k.Report(10)
			of := func(p top.Period) string {
				var all []string
				for _, c := range p.Decisions.Keys {
					all = append(all, fmt.Sprint(c.Key, " ", c.Count))
				}
				return strings.Join(all, ", ")
			}
			if of(r.Present) != present || of(r.Last) != last {
				t.Errorf("after %v: %q and %q, want %q and %q", time.Since(start), of(r.Present), of(r.Last), present, last)
			}
			if got := r.Present.Since.Sub(start); got != since || !r.Present.Until.Equal(time.Now()) || !r.Last.Until.Equal(r.Present.Since) || r.Last.Since.Before(start) {
				t.Errorf("after %v: present %v to %v, last %v to %v", time.Since(start), r.Present.Since, r.Present.Until, r.Last.Since, r.Last.Until)
			}
		}
		is("", "", 0)
		decide(k, "a", 1, true)
		time.Sleep(time.Minute - time.Nanosecond)
		decide(k, "a", 1, true)
		is("a 2", "", 0)
		time.Sleep(time.Nanosecond)
		is("", "a 2", time.Minute)
		decide(k, "b", 1, true)
		is("b 1", "a 2", time.Minute)
		time.Sleep(90 * time.Second)
		decide(k, "c", 1, true)
		is("c 1", "b 1", 2*time.Minute)
		time.Sleep(90 * time.Second) // the period after that has begun at 3m
		decide(k, "d", 1, true)
		is("d 1", "", 4*time.Minute)
		time.Sleep(time.Hour)
		is("", "", 64*time.Minute)
	})
}

// Nothing is lost, and a report is of one moment, whoever asks meanwhile.
func TestStorm(t *testing.T) {
	t.Parallel()
	const callers, each = 16, 5000
	k := top.New(top.Config{Size: 50, Period: 1000 * time.Hour})
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for n := range each {
				decide(k, fmt.Sprint(r.IntN(40), "/", n%7*r.IntN(2)), 3, n%2 == 0)
				if n%500 == 0 {
					p := k.Report(5).Present
					if p.Refusals.Total+p.Cost.Total/3 != p.Decisions.Total {
						t.Errorf("%d refusals and a cost of %d in %d decisions", p.Refusals.Total, p.Cost.Total, p.Decisions.Total)
					}
				}
			}
		})
	}
	work.Wait()
	p := k.Report(50).Present
	if p.Decisions.Total != callers*each || p.Refusals.Total != callers*each/2 || p.Cost.Total != 3*callers*each/2 {
		t.Errorf("%+v", p)
	}
	for _, c := range p.Decisions.Keys {
		if c.Count-c.Over > callers*each/40 {
			t.Errorf("%+v", c)
		}
	}
}

// What was counted does not overflow, and long keys do not stay in memory because of a
// part of them.
func TestHighCosts(t *testing.T) {
	t.Parallel()
	k := top.New(top.Config{Size: 1})
	for range 3 {
		decide(k, "a", math.MaxInt64-1, true)
		decide(k, "b", math.MaxInt64, true)
	}
	c := k.Report(1).Present.Cost
	if c.Total != math.MaxInt64 || c.Keys[0].Count != math.MaxInt64 {
		t.Errorf("%+v", c)
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	k := top.New(top.Config{Size: 20})
	for i := range 15 {
		decide(k, fmt.Sprint("key ", i, "\x1b<&\u202e"), 1, i%2 == 0)
	}
	for query, want := range map[string]int{"": 10, "?n=3": 3, "?n=20": 15, "?n=0": -1, "?n=21": -1, "?n=x": -1, "?n=-1": -1} {
		w := httptest.NewRecorder()
		k.ServeHTTP(w, httptest.NewRequest("GET", "/top"+query, nil))
		if want < 0 {
			if w.Code != 400 || !strings.Contains(w.Body.String(), "from 1 to 20") {
				t.Errorf("%s: %d %s", query, w.Code, w.Body)
			}
			continue
		}
		var r top.Report
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
			t.Fatalf("%s: %d %v, %v, %s", query, w.Code, w.Header(), err, w.Body)
		}
		if len(r.Present.Decisions.Keys) != want || r.Present.Decisions.Total != 15 || r.Last.Decisions.Keys == nil {
			t.Errorf("%s: %+v", query, r)
		}
		if strings.ContainsAny(w.Body.String(), "\x1b\u202e") {
			t.Errorf("%s: a terminal would obey %q", query, w.Body)
		}
	}
	var names map[string]map[string]any
	w := httptest.NewRecorder()
	k.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if err := json.Unmarshal(w.Body.Bytes(), &names); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(names["present"])); !slices.Equal(got, []string{"cost", "decisions", "refusals", "since", "until"}) {
		t.Errorf("%q", got)
	}
}

// BenchmarkDecided measures one decision, beside the Limiter that tells it.
func BenchmarkDecided(b *testing.B) {
	keys := make([]string, 1<<13)
	for i := range keys {
		keys[i] = fmt.Sprint("tenant/", i)
	}
	ctx := context.Background()
	for name, pick := range map[string]func(r *rand.Rand) string{
		"one":    func(*rand.Rand) string { return keys[0] },
		"uneven": func(r *rand.Rand) string { return keys[int(math.Exp(2*r.ExpFloat64()))%len(keys)] },
		"even":   func(r *rand.Rand) string { return keys[r.IntN(len(keys))] }, // nearly all have no counter
	} {
		r := rand.New(rand.NewPCG(5, 6))
		events := make([]ratelimit.DecisionEvent, 1<<13) // few enough to stay in the cache
		for i := range events {
			events[i].Result = ratelimit.Result{Key: pick(r), Cost: 1 + r.Int64N(5), OK: r.IntN(10) > 0}
		}
		b.Run(name, func(b *testing.B) {
			e := top.New(top.Config{}).Events()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				e.Decided(ctx, events[i%len(events)])
			}
		})
		b.Run(name+"/parallel", func(b *testing.B) {
			e := top.New(top.Config{}).Events()
			b.RunParallel(func(p *testing.PB) {
				for i := rand.IntN(len(events)); p.Next(); i++ {
					e.Decided(ctx, events[i%len(events)])
				}
			})
		})
	}
}
