package baton_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/store/memstore"
)

// wantLost asserts how a lease ended, in every way to ask.
func wantLost(t *testing.T, lease *baton.Lease, ctx context.Context, cause baton.Cause) {
	t.Helper()
	lost, ok := errors.AsType[*baton.LostError](lease.Err())
	if !ok || lost.Cause != cause {
		t.Errorf("Err: %v, want the cause %q", lease.Err(), cause)
	}
	select {
	case <-lease.Done():
	default:
		t.Error("Done is not closed")
	}
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), baton.ErrLost) {
		t.Errorf("context: %v, cause %v", ctx.Err(), context.Cause(ctx))
	}
	if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
}

// The store goes silent: the lease ends before the store can grant the lock to
// another, counted from when the last answered request was sent.
func TestSilentStoreEndsTheLeaseInTime(t *testing.T) {
	for name, onRenew := range map[string]func(context.Context, []driver.Claim, time.Duration) []driver.Renewal{
		"hangs": blackHole,
		"refuses": func(_ context.Context, c []driver.Claim, _ time.Duration) []driver.Renewal {
			r := make([]driver.Renewal, len(c))
			for i := range r {
				r[i].Err = driver.ErrUnavailable
			}
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newHooked()
				l := newLocker(t, store, baton.Config{TTL: 10 * time.Second})
				sent := time.Now()
				lease := mustLock(t, l, "k")
				ctx := lease.Context(t.Context())
				store.set(func() { store.onRenew = onRenew })
				<-ctx.Done()
				if d := time.Since(sent); d > 9*time.Second || d < 8*time.Second {
					t.Errorf("the lease of 10s ended %v after it was asked for, want 9s", d)
				}
				if n := store.renews.Load(); n < 2 || n > 2000 {
					t.Errorf("%d attempts to renew", n)
				}
				wantLost(t, lease, ctx, baton.Expired)
				time.Sleep(time.Second) // what is under way ends
			})
		})
	}
}

// The answer to a renewal arrives after the lease's end, which is too late.
func TestLateRenewalRevivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 3 * time.Second})
		lease := mustLock(t, l, "k")
		ctx := lease.Context(t.Context())
		store.set(func() {
			store.onRenew = func(_ context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				answer := store.Store.Renew(context.Background(), c, ttl)
				time.Sleep(10 * time.Second)
				return answer
			}
		})
		<-ctx.Done()
		time.Sleep(20 * time.Second)
		wantLost(t, lease, ctx, baton.Expired)
	})
}

func TestTrustCountsFromTheSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := store.Store.Acquire(ctx, r)
			time.Sleep(3 * time.Second) // the answer is slow
			return g, err
		}
		store.onRenew = blackHole
		l := newLocker(t, store, baton.Config{TTL: 10 * time.Second})
		sent := time.Now()
		lease := mustLock(t, l, "k")
		<-lease.Done()
		if d := time.Since(sent); d > 9*time.Second {
			t.Errorf("believed in for %v, the store expires it after 10s", d)
		}
		time.Sleep(time.Second) // what is under way ends
	})
}

func TestSuspendedHolderLearnsAtOnce(t *testing.T) {
	l := newLocker(t, memstore.New(), baton.Config{TTL: 5 * time.Second})
	lease := mustLock(t, l, "k")
	ctx := lease.Context(t.Context())
	bootclock.Suspend(50 * time.Second)
	if ctx.Err() == nil { // the first look, before anything else could notice
		t.Error("the context is alive after a suspension of ten TTLs")
	}
	wantLost(t, lease, ctx, baton.Expired)
}

func TestBrokenLockIsNoticedByTheNextRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{TTL: 9 * time.Second})
		other := newLocker(t, store, baton.Config{})
		lease := mustLock(t, l, "k")
		ctx := lease.Context(t.Context())
		if n, err := other.Break(t.Context(), "k"); n != 1 || err != nil {
			t.Fatalf("Break: %d, %v", n, err)
		}
		next := mustLock(t, other, "k")
		if next.Token() <= lease.Token() {
			t.Errorf("token %d after %d", next.Token(), lease.Token())
		}
		broken := time.Now()
		<-ctx.Done()
		if d := time.Since(broken); d > 3*time.Second {
			t.Errorf("noticed after %v", d)
		}
		wantLost(t, lease, ctx, baton.Gone)
		mustUnlock(t, next)
	})
}

func TestMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{TTL: 5 * time.Second, MaxHold: time.Minute})
		other := newLocker(t, store, baton.Config{})
		lease := mustLock(t, l, "k")
		ctx := lease.Context(t.Context())
		began := time.Now()
		<-ctx.Done()
		if d := time.Since(began).Round(time.Millisecond); d != time.Minute {
			t.Errorf("ended after %v", d)
		}
		// The holder still has time to stop: the lock is free at its Unlock.
		if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("TryLock: %v", err)
		}
		wantLost(t, lease, ctx, baton.Overheld)
		next, err := other.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatalf("after the Unlock: %v", err)
		}
		mustUnlock(t, next)

		mustLock(t, l, "k") // and is not unlocked
		began = time.Now()
		mustUnlock(t, mustLock(t, other, "k"))
		if d := time.Since(began); d > time.Minute+6*time.Second {
			t.Errorf("a stuck holder blocked for %v", d)
		}
	})
}

// After a crash the lock stays taken for LockDelay longer, after a release it
// does not.
func TestLockDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 5 * time.Second, LockDelay: 30 * time.Second})
		other := newLocker(t, store.Store, baton.Config{})
		mustUnlock(t, mustLock(t, l, "k"))
		lease, err := other.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatalf("after a release: %v", err)
		}
		mustUnlock(t, lease)

		began := time.Now()
		lease = mustLock(t, l, "k")
		store.set(func() { store.onRenew = blackHole })
		<-lease.Done()
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("believed in for %v", d)
		}
		if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		mustUnlock(t, mustLock(t, other, "k"))
		if d := time.Since(began); d < 35*time.Second || d > 37*time.Second {
			t.Errorf("given away after %v, want 35s", d)
		}
	})
}

// The store grants, and its answer is lost: the caller gets the grant by asking
// again.
func TestLostAnswerToAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		lose := true
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := store.Store.Acquire(ctx, r)
			if lose {
				lose = false
				return driver.Grant{}, errors.Join(driver.ErrUnknown, errors.New("connection reset"))
			}
			if !r.Retry {
				t.Error("asked again without saying so")
			}
			return g, err
		}
		l := newLocker(t, store, baton.Config{})
		began := time.Now()
		mustUnlock(t, mustLock(t, l, "k"))
		if d := time.Since(began); d > time.Second {
			t.Errorf("took %v", d)
		}
	})
}

// A store that has ended an attempt says so to its repetition, which continues
// under another ID. If it says so to a new attempt, that is an error.
func TestEndedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		var ids []string
		var retries []bool
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			ids, retries = append(ids, r.ID), append(retries, r.Retry)
			switch len(ids) {
			case 1:
				return driver.Grant{}, driver.ErrUnknown
			case 2:
				return driver.Grant{}, driver.ErrLost
			}
			return store.Store.Acquire(ctx, r)
		}
		lease := mustLock(t, l, "k")
		if len(ids) != 3 || ids[0] != ids[1] || ids[1] == ids[2] || !slices.Equal(retries, []bool{false, true, false}) {
			t.Errorf("asked with the IDs %q, as retries: %v", ids, retries)
		}
		time.Sleep(time.Minute) // the lease is renewed under that ID
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		mustUnlock(t, lease)

		store.set(func() {
			store.onAcquire = func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, driver.ErrLost }
		})
		if _, err := l.Lock(t.Context(), "k"); !errors.Is(err, driver.ErrLost) {
			t.Errorf("the first of an ID: %v", err)
		}
	})
}

// The store grants, its answer is lost, and the caller gives up: nothing may stay
// behind.
func TestLostAnswerIsCleanedUp(t *testing.T) {
	for _, try := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := newHooked()
			store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if _, err := store.Store.Acquire(ctx, r); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
				return driver.Grant{}, errors.Join(driver.ErrUnknown, ctx.Err())
			}
			l := newLocker(t, store, baton.Config{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			lock := l.Lock
			if try {
				lock = l.TryLock
			}
			if _, err := lock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error: %v", err)
			}
			synctest.Wait()
			if info, _ := store.Inspect(t.Context(), "k"); len(info.Holders) != 0 {
				t.Errorf("left behind: %+v", info)
			}
		})
	}
}

func TestStoreOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		down := func(context.Context, driver.Request) (driver.Grant, error) {
			return driver.Grant{}, driver.ErrUnavailable
		}
		store.onAcquire = down
		l := newLocker(t, store, baton.Config{TTL: 10 * time.Second})
		began := time.Now()
		_, err := l.Lock(t.Context(), "k")
		if !errors.Is(err, baton.ErrUnavailable) {
			t.Errorf("Lock: %v", err)
		}
		if d := time.Since(began); d < 9*time.Second || d > 12*time.Second {
			t.Errorf("gave up after %v, want about a TTL", d)
		}
		began = time.Now()
		if _, err = l.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrUnavailable) || time.Since(began) > 0 {
			t.Errorf("TryLock: %v after %v", err, time.Since(began))
		}
		// The store comes back in time.
		time.AfterFunc(4*time.Second, func() { store.set(func() { store.onAcquire = nil }) })
		mustUnlock(t, mustLock(t, l, "k"))
	})
}

// A waiter survives an outage of the store that costs it its position.
func TestWaiterRejoinsAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		a := newLocker(t, store.Store, baton.Config{})
		b := newLocker(t, store, baton.Config{})
		lease := mustLock(t, a, "k")
		got := make(chan *baton.Lease)
		go func() { got <- mustLock(t, b, "k") }()
		synctest.Wait()
		store.set(func() { store.onRenew = blackHole })
		time.Sleep(4 * time.Second) // its position is gone by now
		store.set(func() { store.onRenew = nil })
		time.Sleep(5 * time.Second)
		if info, _ := store.Inspect(t.Context(), "k"); len(info.Waiters) != 1 {
			t.Errorf("%d waiters after the outage", len(info.Waiters))
		}
		mustUnlock(t, lease)
		mustUnlock(t, <-got)
	})
}

// A lost lease does not block those behind it in the local queue, even if its
// holder never unlocks.
func TestLossFreesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{TTL: 6 * time.Second})
		stuck := mustLock(t, l, "k")
		got := make(chan *baton.Lease)
		go func() { got <- mustLock(t, l, "k") }()
		synctest.Wait()
		if _, err := l.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		lease := <-got
		if lease.Token() <= stuck.Token() {
			t.Errorf("token %d after %d", lease.Token(), stuck.Token())
		}
		mustUnlock(t, lease)
	})
}

func TestUnlockOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 3 * time.Second})
		lease := mustLock(t, l, "k")
		store.onRelease = func(ctx context.Context, c driver.Claim) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		err := lease.Unlock()
		if err == nil || errors.Is(err, baton.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("Unlock took %v", d)
		}
		if again := lease.Unlock(); again == nil || again.Error() != err.Error() {
			t.Errorf("Unlock again: %v, the first time: %v", again, err)
		}
		time.Sleep(time.Minute) // the release continues in the background, for a TTL
	})
}

// The release takes effect, its answer is lost, and the store then does not know
// the claim. That is success, not a loss.
func TestLostAnswerToRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		lease := mustLock(t, l, "k")
		var lost atomic.Bool
		store.onRelease = func(ctx context.Context, c driver.Claim) error {
			err := store.Store.Release(ctx, c)
			if lost.CompareAndSwap(false, true) {
				return driver.ErrUnknown
			}
			return err
		}
		mustUnlock(t, lease)
		mustUnlock(t, lease)
	})
}

func TestEventsAndCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waiting, acquired, released, lost, renewed atomic.Int64
		store := memstore.New()
		l := newLocker(t, store, baton.Config{TTL: 3 * time.Second, Events: &baton.Events{
			Waiting:  func(context.Context, baton.LockEvent) { waiting.Add(1) },
			Acquired: func(context.Context, baton.LockEvent) { acquired.Add(1) },
			Renewed:  func(context.Context, baton.RenewalEvent) { renewed.Add(1) },
			Lost:     func(context.Context, baton.LockEvent) { lost.Add(1) },
			Released: func(context.Context, baton.LockEvent) { released.Add(1) },
		}})
		lease := mustLock(t, l, "k")
		got := make(chan *baton.Lease)
		go func() { got <- mustLock(t, l, "k") }()
		time.Sleep(10 * time.Second)
		mustUnlock(t, lease)
		lease = <-got
		if _, err := l.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		<-lease.Done()
		synctest.Wait()
		if waiting.Load() != 1 || acquired.Load() != 2 || released.Load() != 1 || lost.Load() != 1 || renewed.Load() < 5 {
			t.Errorf("waiting %d, acquired %d, released %d, lost %d, renewed %d", waiting.Load(), acquired.Load(), released.Load(), lost.Load(), renewed.Load())
		}
	})
}

// The store stands still while it is asked to release a lock that it has just handed over:
// the short claim of the hand-over ends before the release is carried out. The lease was
// valid until Unlock was called, so it was not lost.
func TestUnlockThatOutlastsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		done := make(chan error, 1)
		go func() {
			done <- l.Do(t.Context(), "k", func(context.Context, *baton.Lease) error {
				store.set(func() {
					store.onRelease = func(_ context.Context, c driver.Claim) error {
						time.Sleep(1800 * time.Millisecond)
						return store.Store.Release(context.Background(), c)
					}
				})
				return nil
			})
		}()
		synctest.Wait()
		mustUnlock(t, first)
		if err := <-done; err != nil {
			t.Errorf("Do: %v", err)
		}
		mustUnlock(t, mustLock(t, other, "k"))
	})
}

// A store that answers in time that it does not know the lease says so of the lease.
func TestUnlockOfABrokenLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{})
		lease := mustLock(t, l, "k")
		if _, err := l.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if lost, ok := errors.AsType[*baton.LostError](lease.Unlock()); !ok || lost.Cause != baton.Gone {
			t.Errorf("Unlock: %v", lost)
		}
	})
}

// The margin is kept even if the store grants a shorter TTL.
func TestMarginIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := store.Store.Acquire(ctx, r)
			g.TTL -= time.Millisecond // rounded down, say
			return g, err
		}
		store.onRenew = blackHole
		cfg := baton.Config{TTL: 10 * time.Second, Margin: 4 * time.Second}
		l := newLocker(t, store, cfg)
		began := time.Now()
		lease := mustLock(t, l, "k")
		<-lease.Done()
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("with a margin of 4s, a lease of 10s ended after %v", d)
		}
		_ = lease.Unlock()
		time.Sleep(time.Second) // what is under way ends

		// Nor is a short grant, which the store makes on its own, enough.
		store.set(func() { store.onAcquire, store.onRenew = nil, nil })
		other := newLocker(t, store.Store, baton.Config{})
		cfg.Margin = 1100 * time.Millisecond // a little more than usual
		l = newLocker(t, store, cfg)
		first := mustLock(t, other, "k")
		next := lockSoon(t, l)
		mustUnlock(t, first)
		lease = within(t, time.Second, next)
		info, _ := store.Inspect(t.Context(), "k")
		if left := time.Until(lease.Deadline()); left > info.Holders[0].Remaining-cfg.Margin {
			t.Errorf("believed in for %v, the store for %v", left, info.Holders[0].Remaining)
		}
		mustUnlock(t, lease)

		var bad *baton.ConfigError
		if _, err := baton.New(store, baton.Config{TTL: time.Minute, Margin: time.Millisecond}); !errors.As(err, &bad) {
			t.Errorf("a margin of a millisecond: %v", err)
		}
	})
}
