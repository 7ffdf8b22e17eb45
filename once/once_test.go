package once_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

func newRunner(t testing.TB, store driver.Locks, cfg once.Config) *once.Runner {
	t.Helper()
	r, err := once.New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// says is a function that returns a text and counts its runs.
type says struct {
	text string
	runs atomic.Int64
	last once.Attempt
}

func (s *says) run(_ context.Context, a once.Attempt) ([]byte, error) {
	s.runs.Add(1)
	s.last = a
	return []byte(s.text), nil
}

func never(t *testing.T) func(context.Context, once.Attempt) ([]byte, error) {
	return func(context.Context, once.Attempt) ([]byte, error) {
		t.Error("an operation that is done has run")
		return nil, nil
	}
}

func expect(t *testing.T, r *once.Runner, key, want string, fn func(context.Context, once.Attempt) ([]byte, error)) {
	t.Helper()
	if got, err := r.Do(t.Context(), key, fn); err != nil || string(got) != want {
		t.Errorf("Do(%q): %q, %v; want %q", key, got, err, want)
	}
}

func TestRunsOnceAndAnswersEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var runners []*once.Runner // processes: only the store connects them
		for range 4 {
			runners = append(runners, newRunner(t, store, once.Config{}))
		}
		s := &says{text: "receipt"}
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				expect(t, runners[i%4], "k", "receipt", func(ctx context.Context, a once.Attempt) ([]byte, error) {
					time.Sleep(time.Minute) // longer than any TTL
					return s.run(ctx, a)
				})
			})
		}
		wg.Wait()
		if n := s.runs.Load(); n != 1 {
			t.Errorf("it ran %d times", n)
		}
		if s.last.Key != "k" || s.last.Attempts != 1 || s.last.Token <= 0 || s.last.Lease.Token() != s.last.Token {
			t.Errorf("the function was told %+v", s.last)
		}
	})
}

// Many callers redeem a coupon of ten orders at once, several times each.
func TestAnOrderIsRedeemedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		points := make(map[string]*atomic.Int64)
		for i := range 10 {
			points[fmt.Sprint("order/", i)] = new(atomic.Int64)
		}
		var wg sync.WaitGroup
		for range 20 {
			r := newRunner(t, store, once.Config{})
			for order, redeemed := range points {
				wg.Go(func() {
					at, err := once.Do(t.Context(), r, order, func(context.Context, once.Attempt) (time.Time, error) {
						time.Sleep(time.Second)
						redeemed.Add(100)
						return time.Now(), nil
					})
					if err != nil || time.Since(at) > time.Minute {
						t.Errorf("%s: redeemed at %v, %v", order, at, err)
					}
				})
			}
		}
		wg.Wait()
		for order, redeemed := range points {
			if n := redeemed.Load(); n != 100 {
				t.Errorf("%s: %d points", order, n)
			}
		}
	})
}

func TestWhatIsDoneCostsOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(memstore.New())
		r := newRunner(t, p, once.Config{})
		expect(t, r, "k", "x", (&says{text: "x"}).run)
		if got, want := p.made(), "find acquire begin finish release"; got != want {
			t.Errorf("a first run costs %q, want %q", got, want)
		}
		expect(t, r, "k", "x", never(t))
		if got := p.made(); got != "find" {
			t.Errorf("an operation that is done costs %q", got)
		}
	})
}

func TestErrorsAreNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		boom := errors.New("boom")
		var tokens []int64
		for range 3 {
			_, err := r.Do(t.Context(), "k", func(_ context.Context, a once.Attempt) ([]byte, error) {
				tokens = append(tokens, a.Token)
				if int(a.Attempts) != len(tokens) {
					t.Errorf("attempt %d is called attempt %d", len(tokens), a.Attempts)
				}
				return []byte("not this"), boom
			})
			if err != boom {
				t.Errorf("error %v, want that of the function as it is", err)
			}
		}
		if len(tokens) != 3 || tokens[0] >= tokens[1] || tokens[1] >= tokens[2] {
			t.Errorf("tokens %v do not rise", tokens)
		}
		rec, err := r.Find(t.Context(), "k")
		if err != nil || rec.Done || rec.Attempts != 3 || rec.Left < 6*24*time.Hour {
			t.Errorf("record %+v, %v", rec, err)
		}
		s := &says{text: "at last"}
		expect(t, r, "k", "at last", s.run)
		if s.last.Attempts != 4 {
			t.Errorf("the last attempt is told that it is number %d", s.last.Attempts)
		}
	})
}

func TestFinalErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		spent := errors.New("coupon spent")
		_, err := r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) {
			return []byte("not this"), fmt.Errorf("redeem: %w", once.Final(spent))
		})
		if !errors.Is(err, once.ErrFinal) || !errors.Is(err, spent) {
			t.Errorf("the first caller got %v", err)
		}
		_, err = r.Do(t.Context(), "k", never(t))
		last, ok := errors.AsType[*once.FinalError](err)
		if !ok || !errors.Is(err, once.ErrFinal) || last.Key != "k" || last.Text != "redeem: coupon spent" || errors.Is(err, spent) {
			t.Errorf("a later caller got %v", err)
		}
		if rec, err := r.Find(t.Context(), "k"); err != nil || !rec.Done || !rec.Failed {
			t.Errorf("record %+v, %v", rec, err)
		}
		if once.Final(nil) != nil {
			t.Error("Final(nil) is an error")
		}

		// The final error of one operation is not that of another that needs it.
		for _, inner := range []string{"new", "k"} {
			_, err := r.Do(t.Context(), "outer", func(ctx context.Context, _ once.Attempt) ([]byte, error) {
				_, err := r.Do(ctx, inner, func(context.Context, once.Attempt) ([]byte, error) { return nil, once.Final(spent) })
				return nil, fmt.Errorf("inner: %w", errors.Join(err, nil))
			})
			if !errors.Is(err, once.ErrFinal) {
				t.Errorf("error %v", err)
			}
		}
		if rec, err := r.Find(t.Context(), "outer"); err != nil || rec.Done || rec.Attempts != 2 {
			t.Errorf("record of the outer operation %+v, %v", rec, err)
		}

		// A text of any length.
		long := strings.Repeat("x", check.MaxResult+1)
		_, err = r.Do(t.Context(), "long", func(context.Context, once.Attempt) ([]byte, error) { return nil, once.Final(errors.New(long)) })
		if last, ok := errors.AsType[*once.FinalError](err); !ok || last.Text != long[1:] {
			t.Errorf("a long error is not kept in part: %.100v", err)
		}
	})
}

// A function that ends without returning has not finished, and does not keep the
// others waiting.
func TestPanicsAreNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("recovered %v", p)
				}
			}()
			_, _ = r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) { panic("boom") })
		}()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) { runtime.Goexit(); return nil, nil })
		}()
		<-gone
		start := time.Now()
		s := &says{text: "x"}
		expect(t, r, "k", "x", s.run)
		if s.last.Attempts != 3 {
			t.Errorf("attempt %d", s.last.Attempts)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("the lock was free after %v", d)
		}
	})
}

func TestOutcomesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{Keep: time.Hour})
		expect(t, r, "k", "first", (&says{text: "first"}).run)
		time.Sleep(time.Hour - time.Second)
		expect(t, r, "k", "first", never(t))
		time.Sleep(time.Minute)
		s := &says{text: "second"}
		expect(t, r, "k", "second", s.run)
		if s.last.Attempts != 1 {
			t.Errorf("attempt %d of an operation that was forgotten", s.last.Attempts)
		}
	})
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		if err := r.Forget(t.Context(), "k"); !errors.Is(err, once.ErrNoRecord) {
			t.Errorf("Forget: %v", err)
		}
		if _, err := r.Find(t.Context(), "k"); !errors.Is(err, once.ErrNoRecord) {
			t.Errorf("Find: %v", err)
		}
		expect(t, r, "k", "first", (&says{text: "first"}).run)
		if err := r.Forget(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		// Forgotten once more, while it runs.
		_, err := r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) {
			return []byte("second"), r.Forget(t.Context(), "k")
		})
		lost, ok := errors.AsType[*once.UnrecordedError](err)
		if !ok || string(lost.Result) != "second" || lost.Instead != nil || !errors.Is(err, driver.ErrSuperseded) {
			t.Errorf("error %v", err)
		}
		expect(t, r, "k", "third", (&says{text: "third"}).run)
	})
}

func TestTooLongAResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		_, err := r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) { return make([]byte, check.MaxResult+1), nil })
		lost, ok := errors.AsType[*once.UnrecordedError](err)
		if !ok || len(lost.Result) != check.MaxResult+1 || !errors.As(err, new(*driver.RequestError)) {
			t.Errorf("error %v", err)
		}
		expect(t, r, "k", string(make([]byte, check.MaxResult)), func(context.Context, once.Attempt) ([]byte, error) {
			return make([]byte, check.MaxResult), nil
		})
	})
}

func TestBadKeysAreRefusedBeforeAnythingHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(memstore.New())
		r := newRunner(t, p, once.Config{})
		for _, key := range []string{"", "a\nb", strings.Repeat("k", once.MaxKey+1)} {
			_, err1 := r.Do(t.Context(), key, never(t))
			_, err2 := r.Find(t.Context(), key)
			err3 := r.Forget(t.Context(), key)
			for _, err := range []error{err1, err2, err3} {
				if !errors.As(err, new(*baton.KeyError)) {
					t.Errorf("%.10q: %v", key, err)
				}
			}
		}
		if got := p.made(); got != "" {
			t.Errorf("requests were made: %s", got)
		}
		expect(t, r, strings.Repeat("k", once.MaxKey), "x", (&says{text: "x"}).run)
	})
}

func TestNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		expect(t, r, "k", "other", func(ctx context.Context, _ once.Attempt) ([]byte, error) {
			if _, err := r.Do(ctx, "k", never(t)); !errors.Is(err, baton.ErrNested) {
				t.Errorf("error %v", err)
			}
			return r.Do(ctx, "another", (&says{text: "other"}).run)
		})
	})
}

func TestContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		r := newRunner(t, store, once.Config{})
		why := errors.New("why")
		ended, end := context.WithCancelCause(t.Context())
		end(why)
		if _, err := r.Do(ended, "k", never(t)); !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}

		// The context ends while another caller runs, and while the caller's own
		// function does.
		for _, other := range []*once.Runner{r, newRunner(t, store, once.Config{})} {
			go func() {
				_, _ = r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) { time.Sleep(time.Minute); return nil, why })
			}()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := other.Do(ctx, "k", never(t)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			cancel()
			time.Sleep(time.Hour)
		}
		ctx, cancel := context.WithCancel(t.Context())
		got, err := r.Do(ctx, "k", func(ctx context.Context, _ once.Attempt) ([]byte, error) {
			cancel()
			<-ctx.Done()
			return []byte("done all the same"), nil
		})
		if err != nil || string(got) != "done all the same" {
			t.Errorf("%q, %v", got, err)
		}
		expect(t, r, "k", "done all the same", never(t))
	})
}

func TestNew(t *testing.T) {
	t.Parallel()
	type locksOnly struct{ driver.Locks }
	if _, err := once.New(locksOnly{memstore.New()}, once.Config{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a store without records: %v", err)
	}
	for field, cfg := range map[string]once.Config{
		"Keep":     {Keep: time.Millisecond},
		"Remember": {Remember: check.MaxRecordKeep + 1},
		"TTL":      {Lock: baton.Config{TTL: time.Microsecond}},
	} {
		_, err := once.New(memstore.New(), cfg)
		if bad, ok := errors.AsType[*baton.ConfigError](err); !ok || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		type receipt struct {
			Order  string
			Points int
		}
		want := receipt{"a-1", 100}
		for range 2 {
			got, err := once.Do(t.Context(), r, "k", func(context.Context, once.Attempt) (*receipt, error) { return &want, nil })
			if err != nil || *got != want || got == &want {
				t.Errorf("%+v, %v", got, err)
			}
		}
		if _, err := once.Do(t.Context(), r, "k", func(context.Context, once.Attempt) (int, error) { return 0, nil }); err == nil {
			t.Error("a receipt was taken for a number")
		}
		_, err := once.Do(t.Context(), r, "c", func(context.Context, once.Attempt) (chan int, error) {
			t.Error("it ran")
			return nil, nil
		})
		if err == nil {
			t.Error("a channel was recorded")
		}
		boom := errors.New("boom")
		if _, err := once.Do(t.Context(), r, "e", func(context.Context, once.Attempt) (int, error) { return 0, boom }); err != boom {
			t.Errorf("error %v", err)
		}
	})
}

// A program that did not look at the error of Open is told so, and does not crash.
func TestNoStore(t *testing.T) {
	t.Parallel()
	_, err := once.New(nil, once.Config{})
	if bad, ok := errors.AsType[*baton.ConfigError](err); !ok || bad.Field != "store" {
		t.Errorf("New: %v", err)
	}
}
