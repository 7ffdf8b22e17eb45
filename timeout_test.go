package baton_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// The bound of an Unlock does not depend on how long an attempt to acquire may
// take.
func TestUnlockIsBoundedWhateverTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 10 * time.Minute})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for _, another := range []string{"a", "b"} { // whichever kind of call comes first
			lease, err := l.Lock(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.TryLock(context.Background(), another); err != nil {
				t.Fatal(err)
			}
			store.set(func() {
				store.onRelease = func(ctx context.Context, c driver.Claim) error {
					<-ctx.Done()
					return ctx.Err()
				}
			})
			began := time.Now()
			err = lease.Unlock()
			if d := time.Since(began); d > 6*time.Second {
				t.Errorf("Unlock took %v", d)
			}
			if !errors.Is(err, baton.ErrUnknown) || isContextError(err) {
				t.Errorf("Unlock: %v", err)
			}
			time.Sleep(time.Hour)
			store.set(func() { store.onRelease = nil })
		}
	})
}

// An Unlock without an answer continues after it has returned: once the store is
// back the lock is free, however long the TTL.
func TestUnlockGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{TTL: 10 * time.Minute}), newLocker(t, store.Store, baton.Config{})
		lease := mustLock(t, l, "k")
		back := time.Now().Add(8 * time.Second)
		store.onRelease = func(ctx context.Context, c driver.Claim) error {
			if time.Now().Before(back) {
				return driver.ErrUnavailable
			}
			return store.Store.Release(ctx, c)
		}
		if err := lease.Unlock(); !errors.Is(err, baton.ErrUnavailable) || time.Now().After(back) {
			t.Errorf("Unlock: %v", err)
		}
		mustUnlock(t, mustLock(t, other, "k"))
		if d := time.Since(back); d > 4*time.Second {
			t.Errorf("it was free %v after the store was back", d)
		}
	})
}

// A process that stood still during a request has asked once, however long it took.
func TestStopDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if store.acquires.Load() == 1 {
				time.Sleep(time.Minute)
				return driver.Grant{}, driver.ErrUnknown
			}
			return store.Store.Acquire(ctx, r)
		}
		lease, err := l.Lock(t.Context(), "k")
		if err != nil {
			t.Fatalf("Lock: %v", err)
		}
		mustUnlock(t, lease)
	})
}

// An attempt to acquire has its own bound, whatever was released before.
func TestSlowAcquireAfterARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: time.Minute})
		lease, err := l.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		mustUnlock(t, lease)
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			select {
			case <-time.After(20 * time.Second):
				return store.Store.Acquire(ctx, r)
			case <-ctx.Done():
				return driver.Grant{}, ctx.Err()
			}
		}
		lease, err = l.TryLock(context.Background(), "k")
		if err != nil {
			t.Fatalf("an answer after a third of the TTL: %v", err)
		}
		mustUnlock(t, lease)
	})
}

// The error shows whose time was up: it contains the end of the caller's context,
// and never this package's own bounds.
func TestWhoseTimeWasUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{TTL: 6 * time.Second}), newLocker(t, store.Store, baton.Config{})
		lease := mustLock(t, other, "k")
		mine := errors.New("my own reason")
		for range 2 { // in the store's queue, and behind that one
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(mine) })
			go func() {
				if _, err := l.Lock(ctx, "k"); !errors.Is(err, context.Canceled) || !errors.Is(err, mine) {
					t.Errorf("Lock: %v", err)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		mustUnlock(t, lease)

		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			<-ctx.Done()
			return driver.Grant{}, ctx.Err()
		}
		began := time.Now()
		if _, err := l.Lock(t.Context(), "k"); !errors.Is(err, baton.ErrUnknown) || isContextError(err) {
			t.Errorf("Lock: %v", err)
		}
		if d := time.Since(began); d > 8*time.Second { // TTL, and a call's second of grace
			t.Errorf("a silent store was asked for %v", d)
		}
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrUnknown) || isContextError(err) {
			t.Errorf("TryLock: %v", err)
		}
		store.set(func() { store.onAcquire = nil })
		lease = mustLock(t, l, "k")
		handle, err := lease.Detach()
		if err != nil {
			t.Fatal(err)
		}
		store.set(func() {
			store.onMove = func(ctx context.Context, _ driver.Claim, _, _ string, _ time.Duration) (driver.Grant, error) {
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
		})
		if _, err := l.Extend(t.Context(), handle); err != nil {
			t.Errorf("Extend: %v", err)
		}
		if _, err := l.Attach(t.Context(), handle); !errors.Is(err, baton.ErrUnknown) || isContextError(err) {
			t.Errorf("Attach: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Attach(ctx, handle); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Attach: %v", err)
		}
		// A waiter that the store does not answer.
		store.set(func() { store.onRenew = nil })
		lease = mustLock(t, other, "waited for")
		store.set(func() { store.onRenew = blackHole })
		if _, err := l.Lock(t.Context(), "waited for"); !errors.Is(err, baton.ErrUnknown) || isContextError(err) {
			t.Errorf("Lock: %v", err)
		}
		mustUnlock(t, lease)
		time.Sleep(5 * time.Second) // what is under way ends
	})
}

// A goroutine becomes the front when its context has ended and the store is out of
// reach: giving up takes no longer than otherwise.
func TestCancelledTurnIsGivenUpQuickly(t *testing.T) {
	for range 20 { // which of the two is seen first is chance
		synctest.Test(t, func(t *testing.T) {
			store := newHooked()
			events, goOn := parked()
			l := newLocker(t, store, baton.Config{Events: events})
			lease := mustLock(t, l, "k")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan time.Duration)
			go func() {
				next, err := l.Lock(ctx, "k")
				if err == nil {
					go next.Unlock()
				} else if !errors.Is(err, context.Canceled) {
					t.Errorf("Lock: %v", err)
				}
				began := time.Now()
				done <- time.Since(began)
			}()
			synctest.Wait()
			mustUnlock(t, lease)
			store.onRelease = func(ctx context.Context, c driver.Claim) error { <-ctx.Done(); return ctx.Err() }
			cancel()
			began := time.Now()
			close(goOn)
			<-done
			if d := time.Since(began); d > time.Second {
				t.Errorf("giving up took %v", d)
			}
			store.set(func() { store.onRelease = nil })
			mustUnlock(t, mustLock(t, l, "k"))
		})
	}
}

// A pooledContext is one that serves one request after another.
type pooledContext struct{ context.Context }

// A context that is used again for another request is another one.
func TestContextThatIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			select {
			case <-ctx.Done():
				return driver.Grant{}, ctx.Err()
			default:
				return store.Store.Acquire(ctx, r)
			}
		}
		pooled := &pooledContext{}
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			pooled.Context = ctx
			began := time.Now()
			lease, err := l.Lock(pooled, "k")
			if err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > 0 {
				t.Errorf("a lock that is free took %v", d)
			}
			mustUnlock(t, lease)
			cancel()
			synctest.Wait()
		}
	})
}
