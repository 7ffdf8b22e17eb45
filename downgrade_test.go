package baton_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// Unlock while a downgrade is under way: the process must not hand the lock over as
// an exclusive one, because in the store it becomes a read lock.
func TestUnlockDuringDowngradeHandsNothingOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		goOn := make(chan struct{})
		store.onDowngrade = func(_ context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
			<-goOn
			return store.Store.Downgrade(context.Background(), c, ttl)
		}
		lease := mustLock(t, l, "k")
		next := lockSoon(t, l)
		downgraded := make(chan error)
		go func() { downgraded <- lease.Downgrade(context.Background()) }()
		synctest.Wait()
		_ = lease.Unlock()
		close(goOn)
		if err := <-downgraded; err == nil {
			t.Error("the downgrade of an unlocked lease succeeded")
		}
		writer := within(t, 20*time.Second, next)
		if r, err := other.TryLock(t.Context(), "k", baton.Shared()); err == nil && writer.Err() == nil {
			t.Error("a reader and a writer hold together")
			mustUnlock(t, r)
		}
		mustUnlock(t, writer)
	})
}

// A downgrade may have taken effect; the next attempt certainly did not, and the
// caller gives up. The holder must not believe in the exclusive lease any more.
func TestDowngradeUnknownThenUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		store.onDowngrade = func(_ context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
			if calls++; calls == 1 {
				_, err := store.Store.Downgrade(ctx, c, ttl)
				return driver.Grant{}, errors.Join(driver.ErrUnknown, err)
			}
			cancel()
			return driver.Grant{}, driver.ErrUnavailable
		}
		lease := mustLock(t, l, "k")
		err := lease.Downgrade(ctx)
		if !errors.Is(err, baton.ErrLost) || !errors.Is(err, baton.ErrUnknown) {
			t.Errorf("Downgrade: %v", err)
		}
		r, err := other.TryLock(t.Context(), "k", baton.Shared())
		if err != nil {
			t.Fatal(err)
		}
		if lease.Err() == nil {
			t.Error("a writer believes in its lease beside a reader")
		}
		mustUnlock(t, r)
	})
}

// A lease that is lost by a downgrade without an answer is released when its holder
// unlocks it, and not before: the holder may still be at work.
func TestLostByADowngradeUntilUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		store.onDowngrade = func(context.Context, driver.Claim, time.Duration) (driver.Grant, error) {
			cancel()
			return driver.Grant{}, driver.ErrUnknown
		}
		lease := mustLock(t, l, "k")
		if err := lease.Downgrade(ctx); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Downgrade: %v", err)
		}
		select {
		case <-lease.Done():
		default:
			t.Error("its holder has not been told")
		}
		time.Sleep(time.Second)
		if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("beside a holder at work: %v", err)
		}
		if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		next, err := other.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatalf("after the Unlock: %v", err)
		}
		mustUnlock(t, next)
	})
}

// A downgrade that was never sent changes nothing.
func TestDowngradeWithAnEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{})
		lease := mustLock(t, l, "k")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := lease.Downgrade(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, baton.ErrLost) {
			t.Errorf("Downgrade: %v", err)
		}
		mustUnlock(t, lease)
	})
}

// A nested caller gets no lease on the key while its kind changes.
func TestNestDuringDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		goOn := make(chan struct{})
		store.onDowngrade = func(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
			<-goOn
			return store.Store.Downgrade(ctx, c, ttl)
		}
		lease := mustLock(t, l, "k")
		done := make(chan error)
		go func() { done <- lease.Downgrade(context.Background()) }()
		synctest.Wait()
		if inner, err := l.Lock(lease.Context(t.Context()), "k", baton.Reentrant()); err == nil {
			t.Errorf("a nested writer was let in: %v", inner.Err())
		}
		close(goOn)
		if err := <-done; err != nil {
			t.Error(err)
		}
		mustUnlock(t, lease)
	})
}

// A downgraded lease has left the local queue; its Unlock must not make a second
// caller the front.
func TestDowngradedLeaseLeavesTheLineOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		lease := mustLock(t, l, "k")
		reader := lockSoon(t, other, baton.Shared())
		var writers []<-chan *baton.Lease
		for range 3 {
			writers = append(writers, lockSoon(t, l))
		}
		if err := lease.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := within(t, time.Second, reader)
		mustUnlock(t, lease)
		synctest.Wait()
		if info, _ := store.Inspect(t.Context(), "k"); len(info.Waiters) != 1 {
			t.Errorf("one line has %d places in the store's", len(info.Waiters))
		}
		mustUnlock(t, r)
		for _, w := range writers {
			mustUnlock(t, within(t, time.Second, w))
		}
	})
}
