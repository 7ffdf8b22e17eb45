package once_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

// TryDo does not wait for an attempt of this process or of another one, and says who
// is at it. When that is over it gets what is recorded.
func TestTryDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		mine, p := newProcess(store), newProcess(store)
		r := newRunner(t, mine, once.Config{Lock: baton.Config{Owner: "me"}})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			expect(t, r, "k", "x", func(context.Context, once.Attempt) ([]byte, error) {
				time.Sleep(time.Minute)
				return []byte("x"), nil
			})
		}()
		time.Sleep(10 * time.Second)
		mine.made()
		for who, other := range map[string]*once.Runner{"this process": r, "another": newRunner(t, p, once.Config{})} {
			start := time.Now()
			_, err := other.TryDo(t.Context(), "k", never(t))
			held, ok := errors.AsType[*baton.HeldError](err)
			if !ok || !errors.Is(err, baton.ErrHeld) || held.Key != "k" || held.Owner != "me" || held.Age < 9*time.Second || held.Age > 11*time.Second || held.Remaining <= 0 {
				t.Errorf("%s: %+v, %v", who, held, err)
			}
			if text := err.Error(); !strings.HasPrefix(text, `once: do "k": it is under way: lock "k" is held by me for 10s`) {
				t.Errorf("%s: %s", who, text)
			}
			if d := time.Since(start); d != 0 {
				t.Errorf("%s: it took %v", who, d)
			}
			_, err = once.TryDo(t.Context(), other, "k", func(context.Context, once.Attempt) (int, error) {
				t.Error("it ran")
				return 0, nil
			})
			if !errors.Is(err, baton.ErrHeld) {
				t.Errorf("%s, by type: %v", who, err)
			}
		}
		if mine, other := mine.made(), p.made(); mine != "find find" || other != "find acquire find acquire" {
			t.Errorf("it cost %q, and another process %q", mine, other)
		}
		<-ended
		if got, err := r.TryDo(t.Context(), "k", never(t)); err != nil || string(got) != "x" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// TryDo runs what nobody is at, like Do, and what was not finished again.
func TestTryDoRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		boom := errors.New("boom")
		if _, err := r.TryDo(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) { return nil, boom }); err != boom {
			t.Errorf("error %v", err)
		}
		for range 2 {
			got, err := once.TryDo(t.Context(), r, "k", func(ctx context.Context, a once.Attempt) (string, error) {
				if a.Attempts != 2 {
					t.Errorf("it is told that it is attempt %d", a.Attempts)
				}
				if _, err := r.TryDo(ctx, "k", never(t)); !errors.Is(err, baton.ErrNested) || errors.Is(err, baton.ErrHeld) {
					t.Errorf("within itself: %v", err)
				}
				return "x", nil
			})
			if err != nil || got != "x" {
				t.Errorf("%q, %v", got, err)
			}
		}
		_, err := r.TryDo(t.Context(), "other", func(context.Context, once.Attempt) ([]byte, error) { return nil, nil }, once.Fingerprint("a"))
		if err != nil {
			t.Error(err)
		}
		if _, err = r.TryDo(t.Context(), "other", never(t), once.Fingerprint("b")); !errors.Is(err, once.ErrOtherRequest) {
			t.Errorf("error %v", err)
		}
		if _, err := r.TryDo(t.Context(), "", never(t)); !errors.As(err, new(*baton.KeyError)) {
			t.Errorf("error %v", err)
		}
	})
}

// Of many callers at the same time one runs, and all others are refused at once or
// get its result.
func TestManyTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var runners []*once.Runner
		for range 4 {
			runners = append(runners, newRunner(t, store, once.Config{}))
		}
		s := &says{text: "x"}
		var wg sync.WaitGroup
		var held, got atomic.Int64
		for i := range 200 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				text, err := runners[i%4].TryDo(t.Context(), "k", func(ctx context.Context, a once.Attempt) ([]byte, error) {
					time.Sleep(time.Second)
					return s.run(ctx, a)
				})
				switch {
				case errors.Is(err, baton.ErrHeld):
					held.Add(1)
				case err == nil && string(text) == "x":
					got.Add(1)
				default:
					t.Errorf("%q, %v", text, err)
				}
			})
		}
		wg.Wait()
		if s.runs.Load() != 1 || held.Load() == 0 || got.Load() < 90 || held.Load()+got.Load() != 200 {
			t.Errorf("%d ran, %d were refused, %d got the result", s.runs.Load(), held.Load(), got.Load())
		}
	})
}

// After a crash TryDo is refused until the lock ends, and then runs.
func TestTryDoAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		cfg := once.Config{Lock: baton.Config{TTL: 10 * time.Second}}
		p := newProcess(store)
		r, next := newRunner(t, p, cfg), newRunner(t, store, cfg)
		ended := make(chan struct{})
		var cont func()
		go func() {
			defer close(ended)
			_, _ = r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) {
				cont = p.stop()
				return []byte("first"), nil
			})
		}()
		time.Sleep(time.Second)
		_, err := next.TryDo(t.Context(), "k", never(t))
		held, ok := errors.AsType[*baton.HeldError](err)
		if !ok || held.Remaining <= 0 || held.Remaining > 10*time.Second {
			t.Fatalf("%+v, %v", held, err)
		}
		time.Sleep(held.Remaining + time.Second)
		got, err := next.TryDo(t.Context(), "k", (&says{text: "next"}).run)
		if err != nil || string(got) != "next" {
			t.Errorf("%q, %v", got, err)
		}
		cont()
		<-ended
	})
}
