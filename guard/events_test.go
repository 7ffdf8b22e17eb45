//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package guard_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/guard"
)

// Whoever refuses tells it once, also through a Gate and HTTP. Who only hears of it
// tells nothing.
func TestRefusedIsToldOnce(t *testing.T) {
	t.Parallel()
	db := sqliteDB(t)
	if err := guard.SQLite.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{miniredis.RunT(t).Addr()}})
	t.Cleanup(func() { client.Close() })
	file := filepath.Join(t.TempDir(), "report")
	nothing := func() error { return nil }
	var memory guard.Memory
	var gate, site guard.Gate
	overSQL := guard.Gate{Marks: guard.SQLite.Marks(db)}
	handler := newDirect(guard.HTTP(&site, byPath))
	for _, c := range []struct {
		name, store string
		write       func(ctx context.Context, p guard.Pass) error
	}{
		{"memory", "memory", func(ctx context.Context, p guard.Pass) error { return memory.Raise(ctx, "r", p) }},
		{"gate", "memory", func(ctx context.Context, p guard.Pass) error { return gate.Do(ctx, "r", p, nothing) }},
		{"gate over SQL", "sqlite", func(ctx context.Context, p guard.Pass) error { return overSQL.Do(ctx, "r", p, nothing) }},
		{"HTTP", "memory", func(ctx context.Context, p guard.Pass) error { return handler.write(ctx, p, func() {}) }},
		{"file", "file", func(ctx context.Context, p guard.Pass) error { return writeToken(ctx, file, p) }},
		{"redis", "redis", func(ctx context.Context, p guard.Pass) error {
			_, err := byGoRedis(client).Do(ctx, "r", p, "SET", "x")
			return err
		}},
		{"transaction", "sqlite", func(ctx context.Context, p guard.Pass) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := guard.SQLite.Raise(ctx, tx, "row", p); err != nil {
				return err
			}
			return tx.Commit()
		}},
	} {
		ctx, refusals := observed(t, t.Context())
		for _, p := range []guard.Pass{pass(7, "a"), pass(7, "a"), pass(6, "b"), pass(7, "b"), pass(8, "c")} {
			err := c.write(ctx, p)
			if err != nil && !errors.Is(err, guard.ErrStale) || (err != nil) != (p.Holder == "b") {
				t.Errorf("%s: %v: %v", c.name, p, err)
			}
			if c.name != "HTTP" {
				exactly(t, refusals, c.store, err)
				continue
			}
			// The client makes an error of its own of the response.
			all := refusals.take()
			if stale, ok := errors.AsType[*guard.StaleError](err); ok && (len(all) != 1 || *all[0].Err != *stale || all[0].Err == stale) || !ok && len(all) > 0 {
				t.Errorf("HTTP: %v, told %+v", err, all)
			}
		}
		if err := c.write(ctx, pass(0, "")); err == nil || len(refusals.take()) > 0 {
			t.Errorf("%s: a bad pass is told as a refusal: %v", c.name, err)
		}
	}
}

// A client that reads a refusal of another process tells nothing.
func TestRefusedElsewhereIsNotTold(t *testing.T) {
	t.Parallel()
	mine := t.Name()
	n := 0
	t.Cleanup(guard.Observe(guard.Events{Refused: func(_ context.Context, e guard.RefusedEvent) {
		if e.Err.Resource == mine {
			n++
		}
	}}))
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusPreconditionFailed)
		_, _ = w.Write([]byte(`{"type":"https://github.com/batonhq/baton/blob/main/docs/fencing.md#stale","resource":"` + mine + `","token":"6","last":"7"}`))
	}))
	t.Cleanup(elsewhere.Close)
	resp, err := http.Get(elsewhere.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := guard.Refused(resp); !errors.Is(err, guard.ErrStale) || n != 0 {
		t.Errorf("%v, told %d times", err, n)
	}
}

// Several observers are called in order, until each is stopped. They may call
// guards, observe and stop.
func TestObserve(t *testing.T) {
	t.Parallel()
	var m guard.Memory
	if err := m.Raise(t.Context(), "r", pass(7, "")); err != nil {
		t.Fatal(err)
	}
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, true)
	var calls []string
	note := func(name string, more func()) guard.Events {
		return guard.Events{Refused: func(ctx context.Context, e guard.RefusedEvent) {
			if ctx.Value(key{}) == nil {
				return
			}
			calls = append(calls, name)
			if more != nil {
				more()
			}
		}}
	}
	refuse := func(want ...string) {
		t.Helper()
		calls = nil
		if err := m.Raise(ctx, "r", pass(6, "")); !errors.Is(err, guard.ErrStale) || !slices.Equal(calls, want) {
			t.Errorf("%v, calls %q, want %q", err, calls, want)
		}
	}
	refuse()
	stopNone := guard.Observe(guard.Events{})
	stopA := guard.Observe(note("a", nil))
	refuse("a")
	var stopB func()
	stopB = guard.Observe(note("b", func() {
		stopB()
		if err := m.Raise(t.Context(), "r", pass(6, "")); !errors.Is(err, guard.ErrStale) {
			t.Errorf("within a function: %v", err)
		}
		guard.Observe(guard.Events{})()
	}))
	stopC := guard.Observe(note("c", nil))
	refuse("a", "b", "c")
	refuse("a", "c")
	stopA()
	stopA()
	stopB()
	refuse("c")
	same := note("same", nil)
	stopD, stopE := guard.Observe(same), guard.Observe(same)
	refuse("c", "same", "same")
	stopD()
	stopD()
	refuse("c", "same")
	stopC()
	stopE()
	stopNone()
	refuse()
}

// Observers come and go while guards refuse. Whoever observes all the time is told
// everything.
func TestObserveAtOnce(t *testing.T) {
	t.Parallel()
	ctx, refusals := observed(t, t.Context())
	var m guard.Memory
	if err := m.Raise(ctx, "r", pass(7, "")); err != nil {
		t.Fatal(err)
	}
	const writers, writes = 4, 500
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range writes {
				if err := m.Raise(ctx, "r", pass(6, "")); !errors.Is(err, guard.ErrStale) {
					t.Errorf("%v", err)
				}
			}
		})
		wg.Go(func() {
			for range writes {
				stop := guard.Observe(guard.Events{Refused: func(context.Context, guard.RefusedEvent) {}})
				wg.Go(stop)
				stop()
			}
		})
	}
	wg.Wait()
	if n := len(refusals.take()); n != writers*writes {
		t.Errorf("told %d refusals of %d", n, writers*writes)
	}
}

// A guard that admits does the same whether or not it is observed.
func BenchmarkAdmitted(b *testing.B) {
	for name, n := range map[string]int{"alone": 0, "observed": 10} {
		b.Run(name, func(b *testing.B) {
			for range n {
				b.Cleanup(guard.Observe(guard.Events{Refused: func(context.Context, guard.RefusedEvent) { b.Error("refused") }}))
			}
			var m guard.Memory
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Raise(b.Context(), "r", pass(7, "")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
