package baton_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// A caller that waited in vain learns who holds the lock, another process or this
// one.
func TestTimedOutLockSaysWhoHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{Owner: "here"})
		other := newLocker(t, store.Store, baton.Config{Owner: "there"})
		wait := func() *baton.HeldError {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := l.Lock(ctx, "k")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock: %v", err)
			}
			held, _ := errors.AsType[*baton.HeldError](err)
			return held
		}
		lease := mustLock(t, other, "k")
		if held := wait(); held == nil || held.Owner != "there" || held.Key != "k" || held.Age < time.Second {
			t.Errorf("another process holds: %v", held)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := l.Lock(ctx, "k"); !errors.Is(err, context.Canceled) || errors.Is(err, baton.ErrHeld) {
			t.Errorf("a Lock that was cancelled: %v", err)
		}
		mustUnlock(t, lease)
		lease = mustLock(t, l, "k")
		if held := wait(); held == nil || held.Owner != "here" {
			t.Errorf("this process holds: %v", held)
		}
		mustUnlock(t, lease)
	})
}

// Do returns soon after a loss, although the store hangs, and reports the loss
// once.
func TestDoAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 6 * time.Second})
		var lost time.Time
		err := l.Do(t.Context(), "k", func(ctx context.Context, lease *baton.Lease) error {
			store.set(func() {
				store.onRenew = blackHole
				store.onRelease = func(ctx context.Context, _ driver.Claim) error { <-ctx.Done(); return ctx.Err() }
			})
			<-ctx.Done()
			lost = time.Now()
			return context.Cause(ctx)
		})
		if d := time.Since(lost); d > 200*time.Millisecond {
			t.Errorf("returned %v after the loss", d)
		}
		if !errors.Is(err, baton.ErrLost) || strings.Count(err.Error(), "has ended") != 1 {
			t.Errorf("Do: %v", err)
		}
		time.Sleep(30 * time.Second) // the release continues in the background
	})
}
