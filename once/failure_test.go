package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

// failing runs an attempt that does not succeed.
func failing(t *testing.T, r *once.Runner, fn func() ([]byte, error)) {
	t.Helper()
	func() {
		defer func() { _ = recover() }()
		if _, err := r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) { return fn() }); err == nil {
			t.Error("the attempt has not failed")
		}
	}()
}

// Those who look later see how the last attempt failed, until the next one begins.
func TestHowAnAttemptFailed(t *testing.T) {
	boom := func() ([]byte, error) { return nil, errors.New("no rows of customer 4711") }
	for name, c := range map[string]struct {
		cfg  once.Config
		fn   func() ([]byte, error)
		want string
	}{
		"an error":       {once.Config{}, boom, "no rows of customer 4711"},
		"a secret":       {once.Config{Failure: func(err error) string { return "an error of " + err.Error()[:7] }}, boom, "an error of no rows"},
		"a panic":        {once.Config{}, func() ([]byte, error) { panic("secret") }, "once: the function did not return: it panicked or ended its goroutine"},
		"a long error":   {once.Config{}, func() ([]byte, error) { return nil, errors.New(strings.Repeat("ö", check.MaxFailure)) }, strings.Repeat("ö", check.MaxFailure/2)},
		"a split letter": {once.Config{}, func() ([]byte, error) { return nil, errors.New("x" + strings.Repeat("ö", check.MaxFailure)) }, "x" + strings.Repeat("ö", check.MaxFailure/2-1)},
		"a long result": {
			once.Config{},
			func() ([]byte, error) { return make([]byte, check.MaxResult+1), nil },
			`bad result for "k": it has 262145 bytes, at most 262144 can be kept: keep it elsewhere and record where`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(memstore.New())
				r := newRunner(t, p, c.cfg)
				failing(t, r, c.fn)
				if got, want := p.made(), "find acquire begin finish release"; got != want {
					t.Errorf("it made the requests %q, want %q", got, want)
				}
				rec, err := r.Find(t.Context(), "k")
				if err != nil || rec.Done || !rec.Retry || !strings.Contains(string(rec.Result), c.want) || rec.Finished.IsZero() {
					t.Errorf("record %+v (%q), %v; want %q", rec, rec.Result, err, c.want)
				}
				if rec.Left < 6*24*time.Hour {
					t.Errorf("it is kept for %v", rec.Left)
				}
				for rec, err := range r.List(t.Context(), "") {
					if err != nil || !rec.Retry || !strings.Contains(string(rec.Result), c.want) {
						t.Errorf("listed %+v, %v", rec, err)
					}
				}
				// No caller of Do is told, and the next attempt runs.
				expect(t, r, "k", "done", func(ctx context.Context, a once.Attempt) ([]byte, error) {
					if rec, err := r.Find(ctx, "k"); err != nil || rec.Retry || len(rec.Result) > 0 || a.Attempts != 2 {
						t.Errorf("while attempt %d runs: %+v, %v", a.Attempts, rec, err)
					}
					return []byte("done"), nil
				})
			})
		})
	}
}

// An attempt that fails after the next one has begun says nothing of that one.
func TestFailureOfASupersededAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		r := newRunner(t, store, once.Config{Lock: baton.Config{TTL: time.Minute}})
		_, err := r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) {
			if _, err := store.Break(t.Context(), once.LockPrefix+"k"); err != nil {
				t.Fatal(err)
			}
			expect(t, newRunner(t, store, once.Config{}), "k", "by the next", func(context.Context, once.Attempt) ([]byte, error) { return []byte("by the next"), nil })
			return nil, errors.New("too late")
		})
		if err == nil {
			t.Error("the first attempt has succeeded")
		}
		if rec, err := r.Find(t.Context(), "k"); err != nil || !rec.Done || string(rec.Result) != "by the next" {
			t.Errorf("record %+v, %v", rec, err)
		}
	})
}

// A store that does not answer keeps the caller of a failed attempt for some seconds, not
// for as long as an outcome would.
func TestFailureWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(memstore.New())
		r := newRunner(t, p, once.Config{Lock: baton.Config{TTL: time.Minute}})
		boom := errors.New("boom")
		var from time.Time
		_, err := r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) {
			p.mu.Lock()
			p.lose = func(call string, _ bool) error { return driver.ErrUnavailable }
			p.mu.Unlock()
			from = time.Now()
			return nil, boom
		})
		if took := time.Since(from); !errors.Is(err, boom) || took > 10*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		if got := strings.Count(p.made(), "finish"); got != 1 {
			t.Errorf("the store was asked %d times to keep it", got)
		}
		p.mu.Lock()
		p.lose = nil // so that the lock is released
		p.mu.Unlock()
		expect(t, r, "k", "x", func(context.Context, once.Attempt) ([]byte, error) { return []byte("x"), nil })
	})
}

// What an attempt left must not make the next caller believe that it is done, whichever
// command it asks for.
func TestFailureAndFingerprint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		ask := func(of string) error {
			_, err := r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) { return nil, errors.New("the secret of " + of) }, once.Fingerprint(of))
			return err
		}
		if err := ask("one"); err == nil {
			t.Error("it has not failed")
		}
		err := ask("two")
		if !errors.Is(err, once.ErrOtherRequest) || strings.Contains(err.Error(), "secret") {
			t.Errorf("another request gets %v", err)
		}
	})
}
