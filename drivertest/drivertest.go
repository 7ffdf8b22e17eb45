// Package drivertest is the contract of package driver as tests. A store tests itself
// with a few lines:
//
//	func TestContract(t *testing.T) {
//		drivertest.Locks(t, drivertest.Harness{Open: open})
//	}
//
// Limits does the same for the store's decisions about rates, and Records for its
// records.
//
// Each case is small, has a name and a reason, and expects the same of every store. Cases
// for what a store does not promise by its Traits or does not implement are skipped, and
// the run names them.
//
// The contract is tested itself: each store of package badstores has one real bug, which
// the case for that bug must catch.
// each, and the case that exists for a bug must catch it.
package drivertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/quorum"
)

// T is the part of *testing.T that harnesses and cases use. Fatalf ends the goroutine
// that calls it.
type T interface {
	Helper()
	Name() string
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Context() context.Context // ends before the cleanups run
	Cleanup(func())           // last in, first out, when the case ends
	TempDir() string
}

// Harness says how to test one store.
type Harness struct {
	// Open returns n handles on one fresh and empty keyspace, as n processes would have
	// them. It closes them by t.Cleanup. Up to sixteen cases run at the same time.
	Open func(t T, n int) []driver.Locks

	// OpenOwn is Open on a server that no other case uses, for the few cases that call
	// Restart or Fill. If it is nil they use Open.
	OpenOwn func(t T, n int) []driver.Locks

	// FakeTime runs each case in a testing/synctest bubble. The store must live within
	// the process, without real network or files.
	FakeTime bool

	// The harness's actions on the store. If one is nil, the cases that need it are
	// skipped. Each action affects only the keyspace of locks; otherwise Open must give
	// each keyspace a server of its own. After it the handles work; it may replace
	// elements of the slice by new handles.

	// Restart stops the server and starts it again with what it promises to keep:
	// everything if Traits.Durable, else possibly nothing. A store within the process is
	// dropped and made anew.
	Restart func(t T, locks []driver.Locks)

	// Reconnect cuts every connection of the handles once.
	Reconnect func(t T, locks []driver.Locks)

	// Delete removes all that the store keeps of key as an operator with a plain client
	// would, without the handles.
	Delete func(t T, key string, l driver.Locks)

	// Put writes something under key that is not a lock. Acquire must refuse it with a
	// *driver.NotLockError.
	Put func(t T, key string, l driver.Locks)

	// Fill uses up the memory or the disk of the store, so that new locks have no space.
	// empty frees it.
	Fill func(t T, locks []driver.Locks) (empty func())

	// Depend begins a user's transaction and makes it depend on the lease by the store's
	// InTx. end commits it. If err is not nil it is the error of InTx, and the
	// transaction was rolled back.
	Depend func(t T, l driver.Locks, lease driver.Leased) (end func() error, err error)

	// Only names the cases to run; nil means all. It is for a second way to a store that
	// has passed all cases, and names what that way may change. The cases must exist, and
	// the store must run them.
	Only []string

	// Except names existing cases to skip: a test may rely on something that the store
	// does not promise by its traits.
	Except []string
}

// Locks runs the contract of driver.Locks and of the optional interfaces that the store
// implements, one subtest for each case.
func Locks(t *testing.T, h Harness) {
	probe := h.Open(t, 1)[0]
	var left []string
	gate := make(chan struct{}, 16) // more would overload a small machine; fewer would take long
	all, err := chosen(cases(), func(c testCase) string { return c.name }, h.Only)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chosen(all, func(c testCase) string { return c.name }, h.Except); err != nil {
		t.Fatalf("Harness.Except: %v", err)
	}
	for _, c := range all {
		missing := c.missing(h, probe)
		if slices.Contains(h.Except, c.name) {
			missing = "promise: Harness.Except"
		}
		if missing != "" {
			left = append(left, c.name+" (no "+missing+")")
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if h.FakeTime {
				synctest.Test(t, func(t *testing.T) {
					r := newRecorder(t)
					<-r.run(func() { c.play(r, h) })
					if r.paused != "" && !r.Failed() {
						r.Errorf("the case is wrong: %s, unannounced", r.paused)
					}
					r.report(t, c.why)
				})
				return
			}
			// The case runs on its own goroutine at once. With t.Parallel alone, only as
			// many cases could wait at a time as there are processors.
			ended := make(chan *recorder, 1)
			go func() {
				gate <- struct{}{}
				defer func() { <-gate }()
				ended <- c.insist(t, h)
			}()
			t.Parallel()
			(<-ended).report(t, c.why)
		})
	}
	notAsked(t, h.Only, probe.Traits().Store, left)
}

// A testCase is one row of the contract.
type testCase struct {
	name  string
	why   string // printed when it fails
	needs []need
	run   func(t *test)
}

// A need is something that a store or a harness may lack.
type need struct {
	name string
	met  func(h Harness, l driver.Locks) bool
}

func trait(name string, has func(driver.Traits) bool) need {
	return need{name, func(_ Harness, l driver.Locks) bool { return has(l.Traits()) }}
}

func method[I any](name string) need {
	return need{name, func(_ Harness, l driver.Locks) bool { _, ok := driver.As[I](l); return ok }}
}

// ability returns the interface that a case needs.
func ability[I any](l driver.Locks) I {
	a, _ := driver.As[I](l)
	return a
}

func power(name string, has func(Harness) bool) need {
	return need{name, func(h Harness, _ driver.Locks) bool { return has(h) }}
}

var (
	fencing    = trait("Traits.Fencing", func(t driver.Traits) bool { return t.Fencing })
	fifo       = trait("Traits.FIFO", func(t driver.Traits) bool { return t.FIFO })
	shared     = trait("Traits.Shared", func(t driver.Traits) bool { return t.Shared })
	permits    = trait("Traits.Permits", func(t driver.Traits) bool { return t.Permits })
	durable    = trait("Traits.Durable", func(t driver.Traits) bool { return t.Durable })
	watcher    = method[driver.Watcher]("Watch")
	inspector  = method[driver.Inspector]("Inspect")
	downgrader = method[driver.Downgrader]("Downgrade")
	member     = method[quorum.Member]("Raise and Life")
	restart    = power("Harness.Restart", func(h Harness) bool { return h.Restart != nil })
	reconnect  = power("Harness.Reconnect", func(h Harness) bool { return h.Reconnect != nil })
	deletion   = power("Harness.Delete", func(h Harness) bool { return h.Delete != nil })
	filling    = power("Harness.Fill", func(h Harness) bool { return h.Fill != nil })
	foreign    = power("Harness.Put", func(h Harness) bool { return h.Put != nil })
)

// missing names the first need that is not met.
func (c testCase) missing(h Harness, l driver.Locks) string {
	for _, n := range c.needs {
		if !n.met(h, l) {
			return n.name
		}
	}
	return ""
}

// handles is the number of processes that a case imitates.
const handles = 3

// insist runs the case. If a pause of the machine may have made it fail, the case runs
// again.
func (c testCase) insist(t *testing.T, h Harness) *recorder {
	var pauses []string
	for {
		free := atWork(len(pauses) > 0)
		r, pause := c.attempt(t, h)
		free()
		if pause == "" || !r.Failed() {
			return r
		}
		if pauses = append(pauses, pause); len(pauses) == attempts {
			r.Logf("this machine may be too slow: %s", strings.Join(pauses, "; "))
			return r
		}
	}
}

// attempt runs the case once. pause is what may have made it fail.
func (c testCase) attempt(t *testing.T, h Harness) (r *recorder, pause string) {
	r = newRecorder(t)
	select {
	case <-r.run(func() { c.play(r, h) }):
		return r, cmp.Or(r.paused, r.slow)
	case <-time.After(2 * time.Minute):
		r.Errorf("the case has not ended after two minutes")
		return r, ""
	}
}

// play runs the case against a keyspace of its own.
func (c testCase) play(r *recorder, h Harness) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	t := &test{T: r, h: h, ctx: ctx, ids: map[string]bool{}}
	start := time.Now()
	defer func() {
		if t.locks == nil { // a server may open too slowly
			t.timed("opening", start)
		}
		r.paused, r.slow = t.pauses()
	}()
	open := h.Open
	if h.OpenOwn != nil && slices.ContainsFunc(c.needs, func(n need) bool { return n.name == restart.name || n.name == filling.name }) {
		open = h.OpenOwn
	}
	t.locks = open(r, handles)
	t.traits = t.locks[0].Traits()
	t.slack = 3 * time.Second
	if h.FakeTime {
		t.slack = 50 * time.Millisecond
	} else {
		t.watchMachine()
	}
	c.run(t)
}

// chosen returns the named cases, or all if names is nil.
func chosen[Case any](all []Case, nameOf func(Case) string, names []string) ([]Case, error) {
	if names == nil {
		return all, nil
	}
	var some []Case
	for _, c := range all {
		if slices.Contains(names, nameOf(c)) {
			some = append(some, c)
		}
	}
	if len(some) != len(names) {
		return nil, fmt.Errorf("%d cases are named, but of these names there are %d: %q", len(names), len(some), names)
	}
	return some, nil
}

// notAsked prints the names of skipped cases. If Only names one of them, that is an
// error.
func notAsked(t *testing.T, only []string, of string, left []string) {
	t.Helper()
	switch text := fmt.Sprintf("not asked of %s: %s", of, strings.Join(left, ", ")); {
	case left == nil:
	case only != nil:
		t.Error(text)
	default:
		t.Log(text)
	}
}

func cases() []testCase {
	var all []testCase
	seen := map[string]bool{}
	for _, group := range [][]testCase{
		exclusionCases, tokenCases, idempotentCases, repeatedCases, queueCases, boundedCases, sharedCases, permitCases, downgradeCases, moveCases, renameCases, togetherCases, dependenceCases,
		overlapCases, fullCases, batchCases, foreignCases, requestCases, inspectCases, watchCases, memberCases, raceCases,
	} {
		for _, c := range group {
			if seen[c.name] {
				panic(fmt.Sprintf("two cases are called %q", c.name))
			}
			seen[c.name] = true
			all = append(all, c)
		}
	}
	return all
}
