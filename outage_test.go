package baton_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// The goroutines that want a key wait out an outage of the store once, not once
// each.
func TestOutageIsWaitedOutOnce(t *testing.T) {
	refuses := func(context.Context, driver.Request) (driver.Grant, error) {
		return driver.Grant{}, driver.ErrUnavailable
	}
	hangs := func(ctx context.Context, _ driver.Request) (driver.Grant, error) {
		<-ctx.Done()
		return driver.Grant{}, ctx.Err()
	}
	for name, acquire := range map[string]func(context.Context, driver.Request) (driver.Grant, error){"refuses": refuses, "hangs": hangs, "stops to answer a waiter": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newHooked()
				l := newLocker(t, store, baton.Config{})
				store.onAcquire = acquire
				if acquire == nil {
					mustLock(t, newLocker(t, store.Store, baton.Config{TTL: time.Hour}), "k")
					store.onRenew = blackHole
				}
				began := time.Now()
				var wg sync.WaitGroup
				lock := func(after time.Duration, ctx context.Context) {
					wg.Go(func() {
						time.Sleep(after)
						_, err := l.Lock(ctx, "k")
						took := time.Since(began) - after
						if ctx.Err() != nil {
							return
						}
						if !errors.Is(err, baton.ErrUnavailable) && !errors.Is(err, baton.ErrUnknown) || isContextError(err) || !strings.Contains(err.Error(), `"k"`) {
							t.Errorf("one who came after %v: %v", after, err)
						}
						if took < 10*time.Second || took > 30*time.Second {
							t.Errorf("one who came after %v was told after %v", after, took)
						}
					})
				}
				impatient, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				lock(0, impatient) // the first front
				synctest.Wait()
				for range 40 {
					lock(0, t.Context())
				}
				lock(9*time.Second, t.Context()) // waits for a time of its own
				wg.Wait()
				time.Sleep(20 * time.Second) // what is under way ends
				if queues, acquisitions := l.Leftovers(); queues+acquisitions > 0 {
					t.Errorf("%d local queues and %d acquisitions are left", queues, acquisitions)
				}
			})
		})
	}
}

// An outage that is over does not count for those behind.
func TestOutageThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		store.onAcquire = func(context.Context, driver.Request) (driver.Grant, error) {
			return driver.Grant{}, driver.ErrUnavailable
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				lease := mustLock(t, l, "k")
				time.Sleep(3 * time.Second) // the last one waits for longer than an outage
				mustUnlock(t, lease)
			})
		}
		time.Sleep(10 * time.Second)
		store.set(func() { store.onAcquire = nil })
		time.Sleep(6 * time.Second) // two of them have been served
		store.set(func() {
			store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				store.set(func() { store.onAcquire = nil })
				return driver.Grant{}, driver.ErrUnavailable // one request fails
			}
		})
		wg.Wait()
	})
}

// A caller behind others waits an outage out for its own TTL, not for that of its Locker
// or of the one before it.
func TestOutageBehindAnotherTTL(t *testing.T) {
	for front, behind := range map[time.Duration]time.Duration{5 * time.Second: time.Minute, time.Minute: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := newHooked()
			store.onAcquire = func(context.Context, driver.Request) (driver.Grant, error) {
				return driver.Grant{}, driver.ErrUnavailable
			}
			l := newLocker(t, store, baton.Config{TTL: front})
			go func() { _, _ = l.Lock(t.Context(), "k") }()
			synctest.Wait()
			began := time.Now()
			_, err := l.Lock(t.Context(), "k", baton.TTL(behind))
			if took := time.Since(began); !errors.Is(err, baton.ErrUnavailable) || took < behind || took > behind+10*time.Second {
				t.Errorf("with %v behind %v: after %v: %v", behind, front, took, err)
			}
			time.Sleep(2 * time.Minute)
			if queues, acquisitions := l.Leftovers(); queues+acquisitions > 0 {
				t.Errorf("%d local queues and %d acquisitions are left", queues, acquisitions)
			}
		})
	}
}

// A store that its program has closed never answers again: callers that wait for a lock
// are told at once.
func TestCloseEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		mustLock(t, newLocker(t, store, baton.Config{TTL: time.Hour}), "k")
		l := newLocker(t, store, baton.Config{})
		var wg sync.WaitGroup
		began := time.Now()
		for range 3 {
			wg.Go(func() {
				if _, err := l.Lock(t.Context(), "k"); !errors.Is(err, driver.ErrClosed) {
					t.Errorf("a caller that waited: %v, want driver.ErrClosed", err)
				}
			})
		}
		synctest.Wait()
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("they were told after %v", took)
		}
	})
}
