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
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

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
