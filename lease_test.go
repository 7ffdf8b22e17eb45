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

func TestExtendALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		locks := newLocker(t, store, baton.Config{TTL: 10 * time.Second, MaxHold: time.Minute})
		lease := mustLock(t, locks, "k")
		time.Sleep(2 * time.Second)
		before, renews := lease.Deadline(), store.renews.Load()
		until, err := lease.Extend(t.Context())
		if err != nil || until.Sub(before) < time.Second || !until.Equal(lease.Deadline()) {
			t.Errorf("until %v, %v; it was %v before", until, err, before)
		}
		if n := store.renews.Load() - renews; n != 1 {
			t.Errorf("the store was asked %d times, want once", n)
		}
		time.Sleep(55 * time.Second)
		if until, err := lease.Extend(t.Context()); err != nil || time.Until(until) > 4*time.Second {
			t.Errorf("beyond MaxHold: %v, %v", time.Until(until), err)
		}
		time.Sleep(5 * time.Second)
		if _, err := lease.Extend(t.Context()); !errors.Is(err, baton.ErrLost) {
			t.Errorf("held for too long: %v, want a *LostError", err)
		}
		if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("unlock: %v", err)
		}
	})
}

// A caller that extends a broken or unlocked lease learns that at once, and so do
// the lease's contexts.
func TestExtendWhatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locks := newLocker(t, store, baton.Config{TTL: time.Minute})
		lease := mustLock(t, locks, "k")
		work := lease.Context(t.Context())
		if _, err := newLocker(t, store, baton.Config{}).Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if _, err := lease.Extend(t.Context()); !errors.Is(err, baton.ErrLost) {
			t.Errorf("broken: %v, want a *LostError", err)
		}
		if work.Err() == nil {
			t.Error("the lease's context goes on")
		}
		lease = mustLock(t, locks, "k")
		mustUnlock(t, lease)
		if _, err := lease.Extend(t.Context()); !errors.Is(err, baton.ErrLost) {
			t.Errorf("unlocked: %v, want a *LostError", err)
		}
	})
}

// A store that does not answer does not keep the caller beyond its context, and the
// error does not end the lease.
func TestExtendWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		locks := newLocker(t, store, baton.Config{TTL: 30 * time.Second})
		lease := mustLock(t, locks, "k")
		store.set(func() {
			store.onRenew = func(ctx context.Context, c []driver.Claim, _ time.Duration) []driver.Renewal {
				<-ctx.Done()
				return []driver.Renewal{{Err: errors.Join(driver.ErrUnknown, ctx.Err())}}
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := lease.Extend(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, baton.ErrLost) || time.Since(began) > time.Second {
			t.Errorf("%v after %v, want the context's error after 1s", err, time.Since(began))
		}
		store.set(func() { store.onRenew = nil })
		if until, err := lease.Extend(t.Context()); err != nil || time.Until(until) < 25*time.Second {
			t.Errorf("the store answers again: %v, %v", time.Until(until), err)
		}
		mustUnlock(t, lease)
	})
}

// A goroutine to which this process hands the lock over while another one extends
// it keeps the lock; the one that extended learns that its lease has ended.
func TestExtendMeetsAHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		locks := newLocker(t, store, baton.Config{TTL: 30 * time.Second})
		first := mustLock(t, locks, "k")
		asked, answer := make(chan bool), make(chan bool)
		store.set(func() {
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				close(asked)
				<-answer
				return store.Store.Renew(ctx, c, ttl)
			}
		})
		extended := make(chan error)
		go func() {
			_, err := first.Extend(context.Background())
			extended <- err
		}()
		<-asked
		store.set(func() { store.onRenew = nil })
		got := make(chan *baton.Lease)
		go func() {
			lease, err := locks.Lock(context.Background(), "k")
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		synctest.Wait()
		mustUnlock(t, first)
		second := <-got
		close(answer)
		if err := <-extended; !errors.Is(err, baton.ErrLost) {
			t.Errorf("the one who extended: %v, want a *LostError", err)
		}
		if err := second.Err(); err != nil {
			t.Errorf("the next one: %v", err)
		}
		mustUnlock(t, second)
	})
}

// Calls that the caller's own context ends, however many, and calls that the store does
// not answer put off no renewal.
func TestExtendDoesNotDisturbTheBackground(t *testing.T) {
	for _, every := range []time.Duration{100 * time.Millisecond, 2 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			locks := newLocker(t, memstore.New(), baton.Config{TTL: 10 * time.Second})
			lease := mustLock(t, locks, "k")
			over, cancel := context.WithCancel(t.Context())
			cancel()
			for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(every) {
				if _, err := lease.Extend(over); !errors.Is(err, context.Canceled) {
					t.Fatalf("every %v: %v, want the context's error", every, err)
				}
				if left := time.Until(lease.Deadline()); left < 3*time.Second {
					t.Fatalf("every %v: only %v are left", every, left)
				}
			}
			mustUnlock(t, lease)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		store := newHooked()
		store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
			if at := time.Since(began); at < 200*time.Millisecond || at > 4*time.Second && at < 6*time.Second {
				<-ctx.Done()
				all := make([]driver.Renewal, len(c))
				for i := range all {
					all[i].Err = driver.ErrUnknown
				}
				return all
			}
			return store.Store.Renew(ctx, c, ttl)
		}
		lease := mustLock(t, newLocker(t, store, baton.Config{TTL: 10 * time.Second}), "k")
		time.Sleep(100 * time.Millisecond)
		for range 5 {
			go lease.Extend(context.Background())
		}
		time.Sleep(20 * time.Second)
		mustUnlock(t, lease)
		time.Sleep(time.Minute) // until the calls have ended
	})
}

// An answer about the exclusive lock says nothing of the read lock that it was made
// meanwhile: the store is asked again.
func TestExtendMeetsADowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		lease := mustLock(t, newLocker(t, store, baton.Config{TTL: 10 * time.Second}), "k")
		time.Sleep(2 * time.Second)
		first := true
		store.set(func() {
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				if !first {
					return store.Store.Renew(ctx, c, ttl)
				}
				first = false
				if err := lease.Downgrade(t.Context()); err != nil {
					t.Error(err)
				}
				return []driver.Renewal{{State: driver.Lost}}
			}
		})
		before := store.renews.Load()
		if until, err := lease.Extend(t.Context()); err != nil || time.Until(until) < 8*time.Second {
			t.Errorf("%v, %v", time.Until(until), err)
		}
		if n := store.renews.Load() - before; n != 2 {
			t.Errorf("the store was asked %d times, want twice", n)
		}
		mustUnlock(t, lease)
	})
}

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

// A store that refuses a downgrade until the lease ends is asked now and then, and the loss
// says what the store said.
func TestDowngradeOfAStoreOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		lease := mustLock(t, newLocker(t, store, baton.Config{}), "k")
		refused, asked := errors.New("the server is in maintenance"), 0
		store.onDowngrade = func(context.Context, driver.Claim, time.Duration) (driver.Grant, error) {
			asked++
			return driver.Grant{}, errors.Join(driver.ErrUnavailable, refused)
		}
		began := time.Now()
		err := lease.Downgrade(t.Context())
		if !errors.Is(err, baton.ErrLost) || !errors.Is(err, refused) {
			t.Errorf("Downgrade: %v", err)
		}
		if d := time.Since(began); d < 13*time.Second || d > 15*time.Second || asked < 20 || asked > 100 {
			t.Errorf("the store was asked %d times in %v", asked, d)
		}
	})
}

// A lease that is lost for a reason of the store ends an Extend at once.
func TestExtendEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		lease := mustLock(t, newLocker(t, store, baton.Config{TTL: 2 * time.Second}), "k")
		store.set(func() {
			store.onRenew = func(_ context.Context, c []driver.Claim, _ time.Duration) []driver.Renewal {
				return unavailable(len(c))
			}
		})
		time.Sleep(time.Second) // a renewal has failed
		began := time.Now()
		if _, err := lease.Extend(t.Context()); !errors.Is(err, baton.ErrLost) || time.Since(began) > 1500*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
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
