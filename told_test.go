package baton_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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
		if held := wait(); held == nil || held.Owner != "there" || held.Key != "k" || held.Age < time.Second || held.Local {
			t.Errorf("another process holds: %v", held)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := l.Lock(ctx, "k"); !errors.Is(err, context.Canceled) || errors.Is(err, baton.ErrHeld) {
			t.Errorf("a Lock that was cancelled: %v", err)
		}
		mustUnlock(t, lease)
		lease = mustLock(t, l, "k")
		if held := wait(); held == nil || held.Owner != "here" || !held.Local || !strings.Contains(held.Error(), "ErrNested") {
			t.Errorf("this process holds: %v", held)
		}
		mustUnlock(t, lease)
	})
}

// A caller whose time is over during an outage learns of the outage, at the front of the
// local queue and behind it; one whose own deadline is all that came to an end does not.
func TestTimedOutLockSaysWhatTheStoreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		store.onAcquire = func(context.Context, driver.Request) (driver.Grant, error) {
			return driver.Grant{}, fmt.Errorf("the file was removed: %w", driver.ErrUnavailable)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, err := l.Lock(ctx, "k")
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "the store said last: the file was removed") {
					t.Errorf("Lock: %v", err)
				}
			})
		}
		wg.Wait()
		store.set(func() {
			store.onAcquire = func(ctx context.Context, _ driver.Request) (driver.Grant, error) {
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
		})
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Lock(ctx, "other"); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "said") {
			t.Errorf("a store that says nothing: %v", err)
		}
		time.Sleep(time.Minute) // what is under way ends
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
