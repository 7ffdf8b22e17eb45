//lint:file-ignore SA4006 the pages leave out what to do about errors

package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/top"
	"github.com/batonhq/baton/store/memstore"
)

// TestPagesShowWhatRuns finds every Go block of docs/budgets.md, and those of
// docs/limits.md that are named here, in this file, whose tests run them.
func TestPagesShowWhatRuns(t *testing.T) {
	t.Parallel()
	self, err := os.ReadFile("pages_test.go")
	if err != nil {
		t.Fatal(err)
	}
	runs := pagecode.Plain(string(self))
	for page, sections := range map[string][]string{
		"budgets.md": nil, // all
		"limits.md": {
			"", "Another limit for one key, for a while", "Several limits, different costs", "Try a limit before it limits", "Warn before 429", "Watch the decisions",
			"What is hot", "Waiting", "How many at once", "Busy keys",
		},
	} {
		raw, err := os.ReadFile("../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := 0
		for i, section := range strings.Split(string(raw), "\n## ") {
			heading := ""
			if i > 0 {
				heading, _, _ = strings.Cut(section, "\n")
			}
			if sections != nil && !slices.Contains(sections, heading) {
				continue
			}
			for _, block := range pagecode.Blocks(section, "go") {
				blocks++
				for part := range strings.SplitSeq(block, "\n…\n") {
					if !strings.Contains(runs, pagecode.Plain(part)) {
						t.Errorf("docs/%s: no test here runs\n%s", page, part)
					}
				}
			}
		}
		if blocks < max(3, len(sections)) {
			t.Errorf("docs/%s has only %d blocks that a test runs", page, blocks)
		}
	}
}

func TestPageOfLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, ctx := memstore.New(), t.Context()
		limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute))
		r, err := limiter.Allow(ctx, "user/42")
		ok, err := limiter.Allowed(ctx, "user/42")
		if err != nil || !ok || r.Remaining != 99 || r.RetryAfter != 0 || r.ResetAfter != 61*time.Second {
			t.Errorf("%+v, %v, %v", r, ok, err)
		}
	})
}

func TestPageOfSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, ctx, used := memstore.New(), t.Context(), int64(3000)
		berlin, err := time.LoadLocation("Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		limiter, err := ratelimit.New(store,
			ratelimit.SlidingWindow(60, time.Minute).Named("requests").PerCall(),    // each call is one
			ratelimit.TokenBucket(100_000, time.Minute, 20_000).Named("tokens"),     // by cost
			ratelimit.FixedWindow(5_000_000, time.Hour).Named("everybody").ForAll(), // all keys together
			ratelimit.PerDay(1000, berlin).Named("day").PerCall())

		reserved, err := limiter.Reserve(ctx, "tenant/7", 8000) // the most that it can cost
		if err != nil || !reserved.Result.OK {
			t.Fatal(reserved, err)
		}
		err = reserved.Commit(ctx, used) // the rest comes back
		if err != nil {
			t.Fatal(err)
		}
		r, err := limiter.Peek(ctx, "tenant/8")
		if err != nil || r.Limits()[2].Remaining != 5_000_000-used {
			t.Errorf("%+v, %v", r.Limits(), err)
		}
	})
}

func TestPageOfWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, start := t.Context(), time.Now()
		limiter := limiter(t, memstore.New(), ratelimit.LeakyBucket(10, time.Second, time.Second))
		r, err := limiter.Wait(ctx, "user/42")                               // until it is allowed, or ctx ends
		r, err = limiter.WaitWithin(ctx, "user/42", 1, 500*time.Millisecond) // a leaky bucket's turn, if it comes soon enough
		if err != nil || !r.OK || time.Since(start) < 99*time.Millisecond {
			t.Errorf("%+v, %v after %v", r, err, time.Since(start))
		}
	})
}

func TestPageOfPermits(t *testing.T) {
	ctx := t.Context()
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		lease, err := locks.TryLock(ctx, "reports", baton.Permits(1, 3)) // or Lock, to wait
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Unlock()
	}
	if _, err := locks.TryLock(ctx, "reports", baton.Permits(1, 3)); !errors.Is(err, baton.ErrHeld) {
		t.Errorf("the fourth: %v", err)
	}
}

func TestPageOfBatches(t *testing.T) {
	store := &moody{Store: memstore.New()}
	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(10_000, time.Second),
		ratelimit.InBatches(100, 50*time.Millisecond, 8, 800)) // 100 at a time for 50 ms; 8 processes: up to 800 more, which is accepted
	if err != nil {
		t.Fatal(err)
	}
	if r := allow(t, limiter, "k", 1); !r.OK || store.asked.Load() != 1 {
		t.Errorf("%+v after %d requests", r, store.asked.Load())
	}
}

func TestPageOfShadows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, ctx := memstore.New(), t.Context()
		limiter, err := ratelimit.New(store,
			ratelimit.SlidingWindow(100, time.Minute).Named("minute"),
			ratelimit.SlidingWindow(20, time.Minute).Named("stricter").Shadow())
		if err != nil {
			t.Fatal(err)
		}
		would := 0
		for range 120 {
			r, err := limiter.Allow(ctx, "user/42")
			if r.WouldRefuse { // r.OK all the same, unless "minute" refuses
				for _, l := range r.Limits() {
					if l.Shadow && !l.OK {
						would += note("user/42", l.Name, l.RetryAfter)
					}
				}
			}
			if err != nil || r.Name != "minute" {
				t.Fatal(r, err)
			}
		}
		if would != 100 {
			t.Errorf("%d would have been refused", would)
		}
	})
}

func note(_, name string, _ time.Duration) int { return strings.Count(name, "stricter") }

func TestPageOfWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, ctx := memstore.New(), t.Context()
		mailed := 0
		mail := func(string, string) { mailed++ }
		limiter, err := ratelimit.New(store, ratelimit.PerMonth(100_000, time.UTC).Warn(0.8))
		if err != nil {
			t.Fatal(err)
		}
		use := func() {
			r, err := limiter.AllowN(ctx, "tenant/7", 9_000)
			if r.Near {
				mail("tenant/7", fmt.Sprintf("%d of %d calls remain until %v", r.Remaining, r.Limit, r.At.Add(r.ResetAfter)))
			}
			if err != nil {
				t.Error(err)
			}
		}
		for range 12 { // the ninth has used 81,000
			use()
		}
		if mailed != 4 {
			t.Errorf("%d warnings", mailed)
		}
	})
}

func TestPageOfHotKeys(t *testing.T) {
	t.Parallel()
	store, internal := memstore.New(), http.NewServeMux()
	hot := top.New(top.Config{}) // a thousand counters, for a minute
	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute), ratelimit.Observe(hot.Events()))
	internal.Handle("GET /limits/top", hot) // not where strangers can read it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.Allow(t.Context(), "user/42"); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	internal.ServeHTTP(w, httptest.NewRequest("GET", "/limits/top", nil))
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"key": "user/42"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestPageOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: memstore.New()}
		decided, alerts := map[string]int{}, 0
		alert := func(string, error) { alerts++ }
		count := func(outcome, _ string) { decided[outcome]++ }
		limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(3, time.Minute), ratelimit.FailOpen(50*time.Millisecond),
			ratelimit.Observe(&ratelimit.Events{
				Decided: func(ctx context.Context, e ratelimit.DecisionEvent) {
					switch {
					case e.Err != nil:
						count("failed", e.Store)
					case e.Result.OK:
						count("allowed", e.Result.By.String())
					default:
						count("refused", e.Result.Name)
					}
				},
				Degraded: func(ctx context.Context, e ratelimit.FallbackEvent) { alert("limits are not kept", e.Err) },
			}))
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			limiter.Allow(t.Context(), "k")
		}
		store.fail(driver.ErrUnavailable)
		for range 7 {
			limiter.Allow(t.Context(), "k")
		}
		if decided["allowed"] != 10 || decided["refused"] != 2 || decided["failed"] != 0 || alerts != 1 {
			t.Errorf("%v, %d alerts", decided, alerts)
		}
	})
}

// model is a model that answers with as many tokens as it is told.
type model struct {
	fails error // instead of an answer, or after the pieces
	size  int   // of the answer, in tokens
}

type answer struct {
	text string
	used int64
}

func (m *model) count(prompt string) int64 { return int64(len(strings.Fields(prompt))) }

func (m *model) complete(_ context.Context, prompt string, most int64) (answer, error) {
	if m.fails != nil {
		return answer{}, m.fails
	}
	n := min(int64(m.size), most)
	return answer{strings.Repeat("a ", int(n)), m.count(prompt) + n}, nil
}

// stream yields the answer word by word.
func (m *model) stream(_ context.Context, _ string, most int64) func(yield func(string, error) bool) {
	return func(yield func(string, error) bool) {
		for range min(int64(m.size), most) {
			if !yield("a ", nil) {
				return
			}
		}
		if m.fails != nil {
			yield("", m.fails)
		}
	}
}

type assistant struct {
	budget *ratelimit.Limiter
	model  *model
}

// Ask answers a prompt of a tenant, with at most so many tokens.
func (a *assistant) Ask(ctx context.Context, tenant, prompt string, most int64) (string, error) {
	reserved, err := a.budget.Reserve(ctx, tenant, a.model.count(prompt)+most) // the most that it can cost
	if err != nil {
		return "", err // the store could not be asked
	}
	if !reserved.Result.OK {
		return "", &ratelimit.RefusedError{Result: reserved.Result} // RetryAfter says when it is allowed
	}
	answer, err := a.model.complete(ctx, prompt, most)
	if err != nil { // the model has counted nothing
		return "", errors.Join(err, settle(ctx, reserved, 0))
	}
	return answer.text, settle(ctx, reserved, answer.used)
}

// settle works also when the caller has gone.
func settle(ctx context.Context, reserved *ratelimit.Reservation, used int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return reserved.Commit(ctx, used)
}

// Fits is the longest answer that the tenant's budget has room for now, up to most.
func (a *assistant) Fits(ctx context.Context, tenant, prompt string, most int64) (int64, error) {
	r, err := a.budget.Peek(ctx, tenant)
	if err != nil {
		return 0, err
	}
	for _, l := range r.Limits() {
		if l.Name != "requests" { // that counts each call as one
			most = min(most, l.Remaining-a.model.count(prompt))
		}
	}
	return max(most, 0), nil
}

// Stream writes the answer as it comes.
func (a *assistant) Stream(ctx context.Context, w io.Writer, tenant, prompt string, most int64) (err error) {
	used := a.model.count(prompt)
	reserved, err := a.budget.Reserve(ctx, tenant, used+most)
	if err != nil {
		return err
	}
	if !reserved.Result.OK {
		return &ratelimit.RefusedError{Result: reserved.Result}
	}
	defer func() { err = errors.Join(err, settle(ctx, reserved, used)) }()
	for piece, err := range a.model.stream(ctx, prompt, most) {
		if err != nil {
			return err // what was streamed until now is used
		}
		used += a.model.count(piece)
		if _, err := io.WriteString(w, piece); err != nil {
			return err // the caller has gone
		}
	}
	return nil
}

// gone is a caller that has gone after some writes.
type gone struct{ after int }

func (g *gone) Write(p []byte) (int, error) {
	if g.after--; g.after < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func TestPageOfBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, ctx := memstore.New(), t.Context()
		budget, err := ratelimit.New(store,
			ratelimit.SlidingWindow(60, time.Minute).Named("requests").PerCall(),
			ratelimit.SlidingWindow(10_000, time.Hour).Named("tokens").Warn(0.8),
			ratelimit.PerMonth(1_000_000, time.UTC).Named("month"),
			ratelimit.FailClosed(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		m := new(model)
		a := &assistant{budget, m}
		used := func(want int64) {
			t.Helper()
			r, err := budget.Peek(ctx, "tenant/7")
			if err != nil || r.Limits()[1].Remaining != 10_000-want || r.Limits()[2].Remaining != 1_000_000-want {
				t.Errorf("%d should be used: %+v, %v", want, r, err)
			}
		}
		m.size = 500
		if text, err := a.Ask(ctx, "tenant/7", "a prompt of five words", 2000); err != nil || m.count(text) != 500 {
			t.Error(text, err)
		}
		used(505)
		m.fails = errors.New("overloaded")
		if _, err := a.Ask(ctx, "tenant/7", "a prompt of five words", 2000); !errors.Is(err, m.fails) {
			t.Error(err)
		}
		used(505) // it was cancelled
		if err := a.Stream(ctx, io.Discard, "tenant/7", "a prompt", 3000); !errors.Is(err, m.fails) {
			t.Error(err)
		}
		used(505 + 502) // what came before the stream broke off
		m.fails = nil
		if err := a.Stream(ctx, &gone{after: 100}, "tenant/7", "a prompt", 3000); !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
		used(505 + 502 + 103) // the piece that could not be written was made, too
		left, cancel := context.WithCancel(ctx)
		w := writer(func(p []byte) (int, error) { cancel(); return len(p), nil })
		if err := a.Stream(left, w, "tenant/7", "a prompt", 3000); err != nil {
			t.Error(err)
		}
		used(505 + 502 + 103 + 502) // settled, although the caller's context has ended
		if _, err := a.Ask(ctx, "tenant/7", "a prompt", 9000); !errors.Is(err, ratelimit.ErrRefused) {
			t.Error(err)
		}
		used(505 + 502 + 103 + 502)

		prompt, most := "a prompt", int64(9000)
		if most, err = a.Fits(ctx, "tenant/7", prompt, most); err != nil || most != 10_000-(505+502+103+502)-2 {
			t.Error(most, err)
		}
		if text, err := a.Ask(ctx, "tenant/7", prompt, most); err != nil || m.count(text) != 500 {
			t.Error(most, text, err)
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// What docs/budgets.md says of three budgets of 100,000 tokens per day: a tenant
// asks for 1,000 as often as it can, from 8:00 on.
func TestPageOfWindowsAndBuckets(t *testing.T) {
	page, err := os.ReadFile("../docs/budgets.md")
	if err != nil {
		t.Fatal(err)
	}
	const n = 100_000
	budgets := []ratelimit.Limit{
		ratelimit.PerDay(n, time.UTC),
		ratelimit.SlidingWindow(n, 24*time.Hour),
		ratelimit.TokenBucket(n, 24*time.Hour, n),
	}
	for _, until := range []time.Duration{time.Hour, 2 * time.Hour, 17 * time.Hour, 24 * time.Hour, 25 * time.Hour, 48 * time.Hour} {
		row := fmt.Sprintf("| %v |", after(until))
		for _, limit := range budgets {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(8 * time.Hour) // fake time, which begins at midnight
				l := limiter(t, memstore.New(), limit)
				got := int64(0)
				for begin := time.Now(); ; {
					r := allow(t, l, "k", 1000)
					if r.OK {
						got += r.Cost
						continue
					}
					if time.Since(begin)+r.RetryAfter > until {
						break
					}
					time.Sleep(r.RetryAfter) // fake time
				}
				row += fmt.Sprintf(" %d,000 |", got/1000)
			})
		}
		if !strings.Contains(string(page), row+"\n") {
			t.Errorf("docs/budgets.md has no row %s", row)
		}
	}
}

func after(d time.Duration) string { return fmt.Sprintf("%d h", int(d.Hours())) }

func TestPageOverride(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, store := t.Context(), memstore.New()
		limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute), ratelimit.Overridable())
		if err != nil {
			t.Fatal(err)
		}
		err = limiter.SetOverride(ctx, "api/acme", ratelimit.Override{N: 500, Period: time.Minute}, 2*time.Hour)
		if r := allow(t, limiter, "api/acme", 101); err != nil || r.Remaining != 399 {
			t.Errorf("%+v, %v", r, err)
		}
		time.Sleep(2 * time.Hour) // of a bubble
		if r := allow(t, limiter, "api/acme", 1); r.Limit != 100 {
			t.Errorf("after the end: %+v", r)
		}
	})
}
