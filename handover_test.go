package baton_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/store/memstore"
)

// The process stops for ten TTLs during a hand-over inside it. The next goroutine
// must not believe in the lease, and what the store keeps of it, for LockDelay,
// must not delay other processes: the lease was never used.
func TestHandOverThatTookTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		events, goOn := parked()
		l := newLocker(t, store, baton.Config{TTL: 5 * time.Second, LockDelay: time.Hour, Events: events})
		lease := mustLock(t, l, "k")
		next := lockSoon(t, l)
		mustUnlock(t, lease)
		bootclock.Suspend(50 * time.Second)
		time.Sleep(200 * time.Millisecond)
		close(goOn)
		second := within(t, 10*time.Second, next)
		if err := second.Err(); err != nil {
			t.Errorf("the lease that came after: %v", err)
		}
		if second.Token() <= lease.Token() {
			t.Errorf("token %d after %d", second.Token(), lease.Token())
		}
		mustUnlock(t, second)
	})
}

// No later lease has the claim of a pinned one: the store grants the next goroutine
// with a claim of its own.
func TestClaimIsNotHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{})
		lease := mustLock(t, l, "k")
		shown, err := lease.Pin()
		if err != nil || shown.Key != "k" || shown.ID == "" {
			t.Fatalf("Pin: key %q, %v", shown.Key, err)
		}
		var _ driver.Leased = lease
		next := lockSoon(t, l)
		mustUnlock(t, lease)
		second := within(t, 10*time.Second, next)
		own, err := second.Pin()
		if err != nil {
			t.Fatal(err)
		}
		if own.ID == shown.ID {
			t.Error("the next lease has the claim that the first one showed")
		}
		if second.Token() <= lease.Token() {
			t.Errorf("token %d after %d", second.Token(), lease.Token())
		}
		if _, err := lease.Pin(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Pin after Unlock: %v, want ErrLost", err)
		}
		mustUnlock(t, second)
	})
}

// Reading a claim changes nothing: the lock is handed over all the same, and the
// next lease has that claim.
func TestClaimIsAGetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{})
		lease := mustLock(t, l, "k")
		shown, err := lease.Claim()
		if err != nil || shown.Key != "k" || shown.ID == "" {
			t.Fatalf("Claim: key %q, %v", shown.Key, err)
		}
		next := lockSoon(t, l)
		mustUnlock(t, lease)
		second := within(t, time.Millisecond, next)
		if own, err := second.Claim(); err != nil || own.ID != shown.ID {
			t.Errorf("the lock was not handed over: %v", err)
		}
		if _, err := lease.Claim(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Claim after Unlock: %v, want ErrLost", err)
		}
		mustUnlock(t, second)
	})
}

// A lease that was lost during a hand-over has no holder: TryLock asks the store
// who holds the lock.
func TestLostHandOverHidesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		events, goOn := parked()
		l := newLocker(t, store, baton.Config{Owner: "here", TTL: 5 * time.Second, Events: events})
		other := newLocker(t, store, baton.Config{Owner: "there"})
		lease := mustLock(t, l, "k")
		next := lockSoon(t, l)
		mustUnlock(t, lease)
		if _, err := other.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		there := mustLock(t, other, "k")
		time.Sleep(time.Second) // the loss is noticed
		close(goOn)
		time.Sleep(10 * time.Second)
		_, err := l.TryLock(t.Context(), "k")
		if held, ok := errors.AsType[*baton.HeldError](err); !ok || held.Owner != "there" {
			t.Errorf("TryLock: %v", err)
		}
		mustUnlock(t, there)
		mustUnlock(t, within(t, 10*time.Second, next))
	})
}

// A pushed grant is renewed, with effect, but no answer comes. When the caller
// looks, it no longer believes in the lease and its own time is up, too. The store
// forgets the claim all the same.
func TestUnconfirmedGrantIsGivenBack(t *testing.T) {
	for range 10 { // which of the two is seen first is chance
		synctest.Test(t, func(t *testing.T) {
			store := newHooked()
			goOn := make(chan struct{})
			l := newLocker(t, store, baton.Config{TTL: time.Minute, LockDelay: time.Hour, Events: &baton.Events{
				Waiting: func(context.Context, baton.LockEvent) { <-goOn },
			}})
			other := newLocker(t, store.Store, baton.Config{})
			first := mustLock(t, other, "k")
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				store.Store.Renew(ctx, c, ttl)
				return unavailable(len(c))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			failed := make(chan error)
			go func() { _, err := l.Lock(ctx, "k"); failed <- err }()
			synctest.Wait()
			mustUnlock(t, first)
			time.Sleep(3 * time.Second)
			close(goOn)
			if err := <-failed; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock: %v", err)
			}
			synctest.Wait()
			if info, _ := store.Inspect(t.Context(), "k"); len(info.Holders)+len(info.Waiters) > 0 {
				t.Errorf("left behind: %+v", info)
			}
		})
	}
}

// Two busy processes share a key: each keeps a grant for many of its goroutines,
// and releases it in time.
func TestBusyProcessesHandOnInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		lockers := []*baton.Locker{newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})}
		var served [2]int
		var wg sync.WaitGroup
		until := time.Now().Add(10 * time.Second)
		for i := range 16 {
			wg.Go(func() {
				for time.Now().Before(until) {
					lease := mustLock(t, lockers[i%2], "k")
					served[i%2]++
					time.Sleep(time.Millisecond)
					mustUnlock(t, lease)
				}
			})
		}
		wg.Wait()
		total := served[0] + served[1]
		if n := int(store.releases.Load()); n > total/25 {
			t.Errorf("%d sections cost %d hand-overs by the store", total, n)
		}
		if served[0] < total/3 || served[1] < total/3 {
			t.Errorf("served unequally: %v", served)
		}
	})
}
