package baton_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
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

// counted counts the requests to a store, and its hints.
type counted struct {
	*memstore.Store
	acquires, releases, hints atomic.Int64
}

func (c *counted) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	c.acquires.Add(1)
	return c.Store.Acquire(ctx, r)
}

func (c *counted) Release(ctx context.Context, l driver.Claim) error {
	c.releases.Add(1)
	return c.Store.Release(ctx, l)
}

func (c *counted) Watch(l driver.Claim, wake func(driver.Hint)) func() {
	return c.Store.Watch(l, func(h driver.Hint) {
		c.hints.Add(1)
		wake(h)
	})
}

// A hundred thousand goroutines wait for a thousand keys in one process: the store
// has one position for each key, and each release serves one goroutine and wakes no
// other.
func TestParkedWaiters(t *testing.T) {
	const keys, each = 1000, 100
	store := &counted{Store: memstore.New()}
	locks, err := baton.New(store, baton.Config{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	other, err := baton.New(store, baton.Config{TTL: time.Minute}) // another process
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	holders := make([]*baton.Lease, keys)
	for i := range holders {
		if holders[i], err = other.Lock(ctx, fmt.Sprint("key ", i)); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	served := make(chan *baton.Lease, keys*each)
	var wg sync.WaitGroup
	for i := range keys * each {
		wg.Go(func() {
			lease, err := locks.Lock(ctx, fmt.Sprint("key ", i%keys))
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				return
			}
			served <- lease
		})
	}
	for i := range keys { // until the process has a position for each key, with all its goroutines behind it
		awaitQueue(t, other, fmt.Sprint("key ", i))
	}
	awaitParked(t, keys*each)
	runtime.ReadMemStats(&after)
	t.Logf("a waiter costs %d bytes, its stack included", (after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/(keys*each))

	store.acquires.Store(0)
	store.releases.Store(0)
	store.hints.Store(0)
	for _, h := range holders {
		if err := h.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	first := make([]*baton.Lease, keys)
	for i := range first {
		first[i] = <-served
	}
	if n := len(served); n > 0 {
		t.Errorf("%d releases served %d", keys, keys+n)
	}
	if a, r, h := store.acquires.Load(), store.releases.Load(), store.hints.Load(); a > keys || r != keys || h > 2*keys {
		t.Errorf("%d releases: %d releases, %d acquires and %d hints of the store", keys, r, a, h)
	}
	for _, l := range first {
		awaitRenewed(t, l)
	}
	cancel() // all others give up at the same time
	wg.Wait()
	for _, l := range first {
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
	for len(served) > 0 { // in the last moment
		if err := (<-served).Unlock(); err != nil {
			t.Error(err)
		}
	}
	all, err := other.Lock(t.Context(), "key 0")
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Unlock(); err != nil {
		t.Error(err)
	}
}

func awaitQueue(t *testing.T, locks *baton.Locker, key string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // no event reports a new position
		info, err := locks.Inspect(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if len(info.Waiters) == 1 {
			return
		}
		if len(info.Waiters) > 1 || time.Now().After(end) {
			t.Fatalf("%s: %d places in line, want one for the process", key, len(info.Waiters))
		}
	}
}

// awaitRenewed waits until a lease that the store granted on its own lasts for
// longer than such a grant does.
func awaitRenewed(t *testing.T, l *baton.Lease) {
	t.Helper()
	for time.Until(l.Deadline()) < driver.ClaimTTL {
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // no event reports a renewal
	}
}

// awaitParked waits until n goroutines do nothing but wait.
func awaitParked(t *testing.T, n int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); runtime.NumGoroutine() < n; time.Sleep(time.Millisecond) { // goroutines start without an event
		if time.Now().After(end) {
			t.Fatalf("only %d goroutines wait", runtime.NumGoroutine())
		}
	}
}

// Callers give up at the moment in which they are granted: no permit is lost.
// BATON_RACES=10000000 makes more rounds.
func TestGivingUpLosesNoPermit(t *testing.T) {
	const permits = 3
	races := int64(50_000)
	if n, err := strconv.ParseInt(os.Getenv("BATON_RACES"), 10, 64); err == nil {
		races = n
	}
	store := memstore.New()
	var lockers [2]*baton.Locker
	for i := range lockers {
		var err error
		if lockers[i], err = baton.New(store, baton.Config{TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	var left, granted, gaveUp atomic.Int64
	left.Store(races)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 9))
			for left.Add(-1) >= 0 {
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					for range rng.IntN(64) {
						runtime.Gosched()
					}
					cancel()
				}()
				lease, err := lockers[g%2].Lock(ctx, "k", baton.Permits(1+g%permits, permits))
				began := time.Now()
				<-ctx.Done()
				switch {
				case err == nil:
					granted.Add(1)
					// A machine that stands still for much of a short grant's TTL
					// loses the grant.
					if err := lease.Unlock(); err != nil && !(errors.Is(err, baton.ErrLost) && time.Since(began) > driver.ClaimTTL/6) {
						t.Error(err)
					}
				case errors.Is(err, context.Canceled):
					gaveUp.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d were granted, %d gave up", granted.Load(), gaveUp.Load())
	if granted.Load() == 0 || gaveUp.Load() == 0 {
		t.Error("nothing raced")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all, err := lockers[0].Lock(ctx, "k", baton.Permits(permits, permits))
	if err != nil {
		t.Fatalf("not all permits can be had: %v", err)
	}
	if _, err := lockers[1].TryLock(ctx, "k", baton.Permits(1, permits)); !errors.Is(err, baton.ErrHeld) {
		t.Errorf("one more than there are: %v", err)
	}
	if err := all.Unlock(); err != nil {
		t.Error(err)
	}
}
