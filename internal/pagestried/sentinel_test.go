package pagestried

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// TestSentinel runs the code of docs/coming-from/sentinel.md with the rules of that page,
// which decide as it says. TestPages sees that it is the code of the page.
func TestSentinel(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/coming-from/sentinel.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := pagecode.Blocks(string(raw), "yaml")
	if len(blocks) == 0 {
		t.Fatal("sentinel.md has no rules")
	}
	all, err := rules.Parse("sentinel.md", []byte(blocks[0]))
	if err != nil {
		t.Fatal(err)
	}
	allow := func(t *testing.T, l *rules.Limiter, r rules.Request) rules.Decision {
		t.Helper()
		d, err := l.Allow(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	// passes is how many of n requests at one moment are allowed.
	passes := func(t *testing.T, l *rules.Limiter, r rules.Request, n int) (passed int) {
		t.Helper()
		for range n {
			if allow(t, l, r).OK {
				passed++
			}
		}
		return passed
	}

	t.Run("flow, Reject", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			// Two instances.
			store := memstore.New()
			a, errA := rules.New(store, all)
			b, errB := rules.New(store, all)
			if err := errors.Join(errA, errB); err != nil {
				t.Fatal(err)
			}
			orders := rules.Request{Rule: "orders", Key: "all"}
			if n := passes(t, a, orders, 60) + passes(t, b, orders, 60); n != 100 {
				t.Errorf("%d passed, want 100", n)
			}
			time.Sleep(allow(t, a, orders).RetryAfter)
			if !allow(t, b, orders).OK {
				t.Error("the time to try again was too early")
			}
		})
	})
	t.Run("flow, Throttling", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, err := rules.New(memstore.New(), all)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 6 {
				d := allow(t, l, rules.Request{Rule: "mail", Key: "all"})
				if want := time.Duration(i) * 100 * time.Millisecond; d.OK != (i < 5) || d.OK && d.Wait != want {
					t.Errorf("request %d: %+v, want a wait of %v", i, d, want)
				}
			}
		})
	})
	t.Run("hotspot", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, err := rules.New(memstore.New(), all)
			if err != nil {
				t.Fatal(err)
			}
			for sku, want := range map[string]int{"sku/1": 53, "sku/2": 0, "sku/3": 8} {
				if n := passes(t, l, rules.Request{Rule: "item", Key: sku}, 60); n != want {
					t.Errorf("%s: %d passed, want %d", sku, n, want)
				}
			}
			time.Sleep(time.Second)
			if n := passes(t, l, rules.Request{Rule: "item", Key: "sku/3"}, 60); n != 5 {
				t.Errorf("%d passed after a second, want 5", n)
			}
			// What is refused takes nothing from the limit of all.
			time.Sleep(2 * time.Second)
			passed := 0
			for i := range 300 {
				passed += passes(t, l, rules.Request{Rule: "item", Key: fmt.Sprint("other/", i)}, 9)
			}
			if passed != 1000 {
				t.Errorf("%d of all passed, want 1000", passed)
			}
		})
	})
	t.Run("Entry", func(t *testing.T) {
		ctx := t.Context()
		limiter, err := rules.New(memstore.New(), all)
		if err != nil {
			t.Fatal(err)
		}
		buy := func(sku string) error {
			d, err := limiter.Allow(ctx, rules.Request{Rule: "item", Key: sku, Cost: 2}) // Entry("item", WithArgs(sku), WithBatchCount(2))
			if err != nil {
				return err
			}
			if !d.OK {
				return fmt.Errorf("try again after %v", d.RetryAfter) // a *base.BlockError
			}
			return nil
		}
		if err := buy("sku/3"); err != nil {
			t.Error(err)
		}
		if err := buy("sku/2"); err == nil {
			t.Error("bought what may not be bought")
		}
		var unknown *rules.UnknownError
		if _, err := limiter.Allow(ctx, rules.Request{Rule: "nothing", Key: "all"}); !errors.As(err, &unknown) {
			t.Error(err)
		}
	})
	t.Run("isolation", func(t *testing.T) {
		ctx := t.Context()
		store := batontest.New(t)
		locks, err := baton.New(store, baton.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var report func(ctx context.Context, others int) error
		report = func(ctx context.Context, others int) error {
			lease, err := locks.TryLock(ctx, "reports", baton.Permits(1, 20)) // isolation: Threshold 20
			if err != nil {
				return err // errors.Is(err, baton.ErrHeld): 20 run
			}
			defer lease.Unlock() // Exit
			if others == 0 {
				return nil
			}
			return report(ctx, others-1)
		}
		if err := report(ctx, 19); err != nil {
			t.Error(err)
		}
		if err := report(ctx, 20); !errors.Is(err, baton.ErrHeld) {
			t.Error(err)
		}
	})
	t.Run("the store fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := batontest.New(t)
			l, err := rules.New(store, all)
			if err != nil {
				t.Fatal(err)
			}
			store.Fail(batontest.Take, driver.ErrUnavailable)
			if n := passes(t, l, rules.Request{Rule: "orders", Key: "all"}, 60); n != 25 {
				t.Errorf("%d passed in one of four instances, want 25", n)
			}
		})
	})
}
