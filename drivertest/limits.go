package drivertest

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// LimitHarness says how to test the limits of one store.
type LimitHarness struct {
	// Open returns n handles on one fresh and empty keyspace, as n processes would have
	// them. It closes them by t.Cleanup. Several cases run at the same time.
	Open func(t T, n int) []limits.Store

	// FakeTime is as in Harness.
	FakeTime bool

	// SameSlot makes a key of a name, so that one request can contain several of the
	// keys. Nil: the name is the key.
	SameSlot func(key string) string

	// Kept counts what the store keeps in the keyspace for limits: states, and answers
	// remembered for IDs. If it is nil, the case that needs it is skipped.
	Kept func(t T, l limits.Store) int

	// Steps is the number of random requests for each algorithm, whose answers are
	// compared with the right ones. It defaults to 300.
	Steps int

	// Only is as in Harness.
	Only []string
}

// Limits runs the contract of limits.Store, and of limits.Overrider and limits.Lister if
// the store implements them, one subtest for each case.
func Limits(t *testing.T, h LimitHarness) {
	runLimits(t, h, limitCases())
}

// Timelines runs only those cases of Limits that set Now, whose answers are exact. It is
// for handles that are expensive to make.
func Timelines(t *testing.T, h LimitHarness) {
	runLimits(t, h, slices.DeleteFunc(limitCases(), func(c limitCase) bool { return !c.timed }))
}

func runLimits(t *testing.T, h LimitHarness, cases []limitCase) {
	cases, err := chosen(cases, func(c limitCase) string { return c.name }, h.Only)
	if err != nil {
		t.Fatal(err)
	}
	overrides := false
	if slices.ContainsFunc(cases, func(c limitCase) bool { return c.overrides }) {
		_, overrides = limits.OverriderOf(h.Open(t, 1)[0])
	}
	lists := false
	if slices.ContainsFunc(cases, func(c limitCase) bool { return c.listed }) {
		_, lists = limits.ListerOf(h.Open(t, 1)[0])
	}
	for _, c := range cases {
		if c.kept && h.Kept == nil {
			notAsked(t, h.Only, "the limits", []string{c.name + " (no LimitHarness.Kept)"})
			continue
		}
		if c.overrides && !overrides {
			notAsked(t, h.Only, "the limits", []string{c.name + " (no limits.Overrider)"})
			continue
		}
		if c.listed && !lists {
			notAsked(t, h.Only, "the limits", []string{c.name + " (no limits.Lister)"})
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.record(t, h).report(t, c.why)
		})
	}
}

// A limitCase is one row of the contract.
type limitCase struct {
	name  string
	why   string // printed when it fails
	kept  bool   // needs LimitHarness.Kept
	timed bool   // sets Now
	run   func(t *limitTest)

	overrides bool // needs limits.Overrider
	listed    bool // needs limits.Lister
}

func limitCases() []limitCase {
	var all []limitCase
	for _, group := range [][]limitCase{timelineCases(), decisionCases(), keptCases(), turnCases(), clockCases(), repeatCases(), randomCases(), overrideCases(), stateCases()} {
		all = append(all, group...)
	}
	return all
}

func (c limitCase) record(t *testing.T, h LimitHarness) *recorder {
	return recorded(t, h.FakeTime, func(r *recorder) { c.play(r, h) })
}

func (c limitCase) play(t T, h LimitHarness) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	c.run(&limitTest{T: t, h: h, ctx: ctx, all: h.Open(t, handles)})
}

// A limitTest is what a case works with.
type limitTest struct {
	T
	h   LimitHarness
	ctx context.Context
	all []limits.Store // handles of several processes
	n   int            // of requests
}

// key is a key for requests with several keys.
func (t *limitTest) key(name string) string {
	if t.h.SameSlot != nil {
		return t.h.SameSlot(name)
	}
	return name
}

func (t *limitTest) next() limits.Store {
	t.n++
	return t.all[t.n%len(t.all)]
}

// take makes a request that must be answered. The processes take turns.
func (t *limitTest) take(r limits.Request) limits.Taken {
	d, err := t.next().Take(t.ctx, r)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	if len(d.Limits) != len(r.Takes) {
		t.Fatalf("%+v: answered about %d limits: %+v", r, len(d.Limits), d)
	}
	return d
}

// one asks a single limit.
func (t *limitTest) one(key string, l limits.Limit, cost int64) limits.Taken {
	return t.take(limits.Request{Takes: []limits.Take{{Key: key, Limit: l, Cost: cost}}})
}

func (t *limitTest) look(key string, l limits.Limit, now int64) limits.Decision {
	return t.take(limits.Request{Takes: []limits.Take{{Key: key, Limit: l}}, Now: now}).Limits[0]
}

// crowd runs f on n goroutines, which use the handles in turn, and counts how often f
// returned true.
func (t *limitTest) crowd(n int, f func(i int, l limits.Store) (bool, error)) int {
	var wg sync.WaitGroup
	var yes atomic.Int64
	for i := range n {
		wg.Go(func() {
			ok, err := f(i, t.all[i%len(t.all)])
			if err != nil {
				t.Errorf("goroutine %d: %v", i, err)
			}
			if ok {
				yes.Add(1)
			}
		})
	}
	wg.Wait()
	return int(yes.Load())
}

// Limits for the cases. What is taken does not come back during a case, unless the case
// says so.
func fixedWindow(n int64, period time.Duration) limits.Limit {
	return limits.Limit{Algorithm: limits.FixedWindow, N: n, Period: period}
}

func slidingWindow(n int64, period time.Duration, parts int64, classic bool) limits.Limit {
	return limits.Limit{Algorithm: limits.SlidingWindow, N: n, Period: period, Parts: parts, Classic: classic}
}

func slidingLog(n int64, period time.Duration) limits.Limit {
	return limits.Limit{Algorithm: limits.SlidingLog, N: n, Period: period}
}

func estimated(n int64, period time.Duration) limits.Limit {
	return limits.Limit{Algorithm: limits.EstimatedWindow, N: n, Period: period}
}

func tokenBucket(n int64, period time.Duration, burst int64) limits.Limit {
	return limits.Limit{Algorithm: limits.TokenBucket, N: n, Period: period, Burst: burst}
}

func leakyBucket(n int64, period time.Duration, size, ahead int64) limits.Limit {
	return limits.Limit{Algorithm: limits.LeakyBucket, N: n, Period: period, Burst: size, Ahead: ahead}
}

// fiveOfEach has a limit of 5 for each algorithm; none comes back soon.
var fiveOfEach = []limits.Limit{
	fixedWindow(5, 100_000*time.Hour), slidingWindow(5, 1000*time.Hour, 10, false), slidingWindow(5, 1000*time.Hour, 10, true),
	slidingLog(5, 1000*time.Hour), estimated(5, 100_000*time.Hour), tokenBucket(1, 1000*time.Hour, 5), leakyBucket(1, 1000*time.Hour, 5, 0),
}
