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
