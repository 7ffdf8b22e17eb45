package baton_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// The store grants and pushes; its older answer "waiting" to a poll arrives after
// that. It is no loss.
func TestOlderAnswerAfterThePush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		store.onRenew = func(_ context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
			answers := store.Store.Renew(context.Background(), c, ttl)
			time.Sleep(300 * time.Millisecond)
			return answers
		}
		next := lockSoon(t, l)
		time.Sleep(driver.RefreshEvery + 100*time.Millisecond) // a poll is under way
		mustUnlock(t, first)
		lease := within(t, time.Millisecond, next)
		time.Sleep(10 * time.Second)
		if err := lease.Err(); err != nil {
			t.Errorf("after the older answer: %v", err)
		}
		mustUnlock(t, lease)
		time.Sleep(time.Second) // a renewal may be under way
	})
}

// A poll hangs while the store pushes the grant: another request renews the short
// grant in time.
func TestHungPollDoesNotCostThePushedGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{TTL: time.Minute}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		next := lockSoon(t, l)
		store.set(func() { store.onRenew = blackHole })
		time.Sleep(driver.RefreshEvery + 50*time.Millisecond)
		store.set(func() { store.onRenew = nil })
		mustUnlock(t, first)
		lease := within(t, time.Second, next)
		time.Sleep(10 * time.Second)
		if err := lease.Err(); err != nil {
			t.Errorf("the pushed grant was not renewed: %v", err)
		}
		mustUnlock(t, lease)
	})
}

// Hints that come faster than the pause after a hint must not delay the question
// for ever.
func TestFloodOfHintsDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		hint := hints(store)
		l, other := newLocker(t, store, baton.Config{TTL: 3 * time.Second}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		next := lockSoon(t, l)
		ctx, stop := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		flood.Go(func() {
			for sleepFor(ctx, time.Millisecond) {
				hint(driver.Hint{})
			}
		})
		time.Sleep(time.Second)
		if n := store.renews.Load(); n > 250 {
			t.Errorf("1000 hints in a second cost %d requests", n)
		}
		mustUnlock(t, first)
		lease := within(t, 100*time.Millisecond, next)

		// Nor must they delay the end of a lease that cannot be renewed.
		store.set(func() {
			store.onRenew = func(_ context.Context, c []driver.Claim, _ time.Duration) []driver.Renewal {
				return unavailable(len(c))
			}
		})
		began := time.Now()
		select {
		case <-lease.Done():
		case <-time.After(time.Minute):
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("the end was noticed after %v", d)
		}
		stop()
		flood.Wait()
	})
}

// A hint overtakes the answer "waiting" that was sent before it: it is kept.
func TestEarlyHint(t *testing.T) {
	for name, push := range map[string]bool{"push": true, "bare": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newHooked()
				hint := hints(store)
				if push {
					store.onWatch = nil
				}
				l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
				first := mustLock(t, other, "k")
				store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
					g, err := store.Store.Acquire(ctx, r)
					mustUnlock(t, first)
					hint(driver.Hint{})
					time.Sleep(10 * time.Millisecond) // the answer is on its way
					return g, err
				}
				began := time.Now()
				mustUnlock(t, mustLock(t, l, "k"))
				if d := time.Since(began); d > 50*time.Millisecond {
					t.Errorf("the hint was forgotten: %v", d)
				}
			})
		})
	}
}

// A waiter's grant was broken before the waiter knew that it was renewed, and the
// waiter took a new position. The late answer to the old renewal says "held", about
// the old claim.
func TestLateConfirmationOfAnEarlierLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 10 * time.Second, LockDelay: time.Second})
		other := newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		next := lockSoon(t, l)
		asked := store.renews.Load()
		store.set(func() {
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				late := store.renews.Load() == asked+1
				answers := store.Store.Renew(ctx, c, ttl)
				if late {
					time.Sleep(1800 * time.Millisecond)
				}
				return answers
			}
			store.onRelease = func(ctx context.Context, _ driver.Claim) error { <-ctx.Done(); return ctx.Err() }
		})
		mustUnlock(t, first) // pushed; because of LockDelay it must be renewed first
		time.Sleep(500 * time.Millisecond)
		if _, err := other.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		third := mustLock(t, other, "k")
		time.Sleep(time.Second)
		store.set(func() { store.onRenew = nil })
		if n := store.acquires.Load(); n != 2 {
			t.Fatalf("%d attempts, want a second place by now", n)
		}
		time.Sleep(time.Second) // the late answer comes
		select {
		case lease := <-next:
			t.Errorf("believes in token %d beside %d", lease.Token(), third.Token())
		default:
		}
		mustUnlock(t, third)
		lease := within(t, time.Minute, next)
		time.Sleep(20 * time.Second)
		if err := lease.Err(); err != nil {
			t.Errorf("the lease was not of the second place: %v", err)
		}
		store.set(func() { store.onRelease = nil })
		mustUnlock(t, lease)
		time.Sleep(20 * time.Second)
	})
}

// The answer "waiting" was long under way, and the push came after it: trust in the
// grant counts from when the poll was sent.
func TestPushIsTrustedFromTheLastPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		pushes := make(chan func(), 1)
		store.onWatch = func(c driver.Claim, wake func(driver.Hint)) func() {
			return store.Store.Watch(c, func(h driver.Hint) { pushes <- func() { wake(h) } })
		}
		store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
			answers := store.Store.Renew(ctx, c, ttl)
			time.Sleep(300 * time.Millisecond)
			return answers
		}
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		next := lockSoon(t, l)
		time.Sleep(driver.RefreshEvery + 50*time.Millisecond)
		mustUnlock(t, first)
		time.Sleep(300 * time.Millisecond)
		store.set(func() { store.onRenew = blackHole })
		asked := store.renews.Load()
		(<-pushes)()
		lease := within(t, time.Millisecond, next)
		synctest.Wait()
		if n := store.renews.Load(); n != asked+1 {
			t.Errorf("renewed %d times at once, want once", n-asked)
		}
		info, _ := store.Inspect(t.Context(), "k")
		if left := time.Until(lease.Deadline()); left <= 0 || left > info.Holders[0].Remaining-driver.ClaimTTL/10 {
			t.Errorf("believed in for %v, the store for %v", left, info.Holders[0].Remaining)
		}
		_ = lease.Unlock()
		time.Sleep(2 * time.Second) // what is under way ends
	})
}

// A pushed grant has a short TTL: a request that hangs leaves time for another.
func TestHungRenewalOfAPushedGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		next := lockSoon(t, l)
		mustUnlock(t, first)
		lease := within(t, time.Millisecond, next)
		store.set(func() {
			asked := store.renews.Load()
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				if store.renews.Load() == asked+1 {
					return blackHole(ctx, c, ttl)
				}
				return store.Store.Renew(ctx, c, ttl)
			}
		})
		time.Sleep(10 * time.Second)
		mustUnlock(t, lease)
	})
}

// A push was under way while its position was lost and another one taken.
func TestStalePush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		pushes := make(chan func(), 9)
		store.onWatch = func(c driver.Claim, wake func(driver.Hint)) func() {
			return store.Store.Watch(c, func(h driver.Hint) { pushes <- func() { wake(h) } })
		}
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		next := lockSoon(t, l)
		store.set(func() { store.onRenew = blackHole })
		mustUnlock(t, first)
		time.Sleep(2 * time.Second)
		second := mustLock(t, other, "k")
		store.set(func() { store.onRenew = nil })
		time.Sleep(4 * time.Second)
		(<-pushes)()
		synctest.Wait()
		select {
		case lease := <-next:
			t.Errorf("believes in token %d beside %d", lease.Token(), second.Token())
		default:
		}
		mustUnlock(t, second)
		mustUnlock(t, within(t, time.Second, next))
	})
}
