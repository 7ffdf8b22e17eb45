package baton_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// remaining is how long the store will keep the lock of key taken.
func remaining(t *testing.T, store driver.Inspector, key string) time.Duration {
	t.Helper()
	info, err := store.Inspect(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Holders) != 1 {
		t.Fatalf("%d holders", len(info.Holders))
	}
	return info.Holders[0].Remaining
}

// A call with a TTL of its own is granted, trusted, renewed and given back by it, beside
// calls with the Locker's.
func TestTTLOfOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 10 * time.Second})
		usual := mustLock(t, l, "usual")
		var leases []*baton.Lease
		for key, ttl := range map[string]time.Duration{"short": 3 * time.Second, "long": time.Minute} {
			lease, err := l.Lock(t.Context(), key, baton.TTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			if left := time.Until(lease.Deadline()); left != ttl*9/10 {
				t.Errorf("a lease of %v is trusted for %v", ttl, left)
			}
			if left := remaining(t, store, key); left != ttl {
				t.Errorf("the store keeps a lease of %v for %v", ttl, left)
			}
			leases = append(leases, lease)
		}
		asked := map[time.Duration]int{}
		store.set(func() {
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				store.mu.Lock()
				asked[ttl] += len(c)
				store.mu.Unlock()
				return store.Store.Renew(ctx, c, ttl)
			}
		})
		time.Sleep(2 * time.Minute)
		for _, lease := range append(leases, usual) {
			if err := lease.Err(); err != nil {
				t.Error(err)
			}
			mustUnlock(t, lease)
		}
		store.mu.Lock()
		defer store.mu.Unlock()
		for ttl, least := range map[time.Duration]int{3 * time.Second: 100, 10 * time.Second: 30, time.Minute: 5} {
			if n := asked[ttl]; n < least || n > 2*least {
				t.Errorf("renewed %d times for %v in two minutes", n, ttl)
			}
		}
		if len(asked) != 3 {
			t.Errorf("renewed for %v", asked)
		}
	})
}

// A goroutine that asks for another TTL does not get the lease of the one before it.
func TestTTLIsNotHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{TTL: 3 * time.Second})
		lease := mustLock(t, l, "k")
		next := make(chan *baton.Lease)
		go func() {
			lease, err := l.Lock(t.Context(), "k", baton.TTL(time.Minute))
			if err != nil {
				t.Error(err)
			}
			next <- lease
		}()
		synctest.Wait()
		mustUnlock(t, lease)
		lease = <-next
		time.Sleep(10 * time.Millisecond)
		if left := time.Until(lease.Deadline()); left < 50*time.Second {
			t.Errorf("ends in %v", left)
		}
		mustUnlock(t, lease)
	})
}

func TestTTLsThatCannotBe(t *testing.T) {
	l := newLocker(t, memstore.New(), baton.Config{Margin: 5 * time.Second})
	for _, ttl := range []time.Duration{0, -time.Second, 9 * time.Second, time.Nanosecond} {
		var bad *baton.ConfigError
		if _, err := l.Lock(t.Context(), "k", baton.TTL(ttl)); !errors.As(err, &bad) {
			t.Errorf("TTL %v: %v", ttl, err)
		}
	}
	if _, err := l.TryLock(t.Context(), "k", baton.MinHold(-1)); err == nil {
		t.Error("a negative MinHold")
	}
	mustUnlock(t, mustLock(t, l, "k"))
}

// A lock with a MinHold stays taken for that time, however soon it is unlocked and
// whoever waits: a goroutine of the same process, or another process.
func TestMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{TTL: 5 * time.Second}), newLocker(t, store, baton.Config{})
		for what, c := range map[string]struct {
			hold, min, taken time.Duration
			same             bool
		}{
			"longer than the TTL":       {0, time.Minute, time.Minute, false},
			"shorter than the TTL":      {time.Second, 3 * time.Second, 3 * time.Second, false},
			"over at the unlock":        {10 * time.Second, 3 * time.Second, 10 * time.Second, false},
			"for the same process, too": {100 * time.Millisecond, 3 * time.Second, 3 * time.Second, true},
		} {
			began := time.Now()
			lease, err := l.Lock(t.Context(), "k", baton.MinHold(c.min))
			if err != nil {
				t.Fatal(what, err)
			}
			waiter := other
			if c.same {
				waiter = l
			}
			next := lockSoon(t, waiter)
			time.Sleep(c.hold)
			mustUnlock(t, lease)
			if lease.Err() == nil {
				t.Errorf("%s: the lease lasts on", what)
			}
			mustUnlock(t, <-next)
			if d := time.Since(began); d < c.taken || d > c.taken+2*time.Second {
				t.Errorf("%s: taken for %v", what, d)
			}
		}
	})
}

// A renewal that is under way while the lock is left taken does not shorten the time,
// and an answer that is lost is asked for again.
func TestMinHoldBesideALateRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 3 * time.Second})
		lease, err := l.Lock(t.Context(), "k", baton.MinHold(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		late := make(chan struct{})
		store.set(func() {
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				<-late
				return store.Store.Renew(context.Background(), c, ttl)
			}
		})
		time.Sleep(1500 * time.Millisecond) // it is asked for
		mustUnlock(t, lease)
		close(late)
		time.Sleep(10 * time.Second)
		if left := remaining(t, store, "k"); left < 48*time.Second || left > 49*time.Second {
			t.Errorf("taken for another %v", left)
		}
		time.Sleep(left(t, store))
		mustUnlock(t, mustLock(t, l, "k"))
	})
}

func left(t *testing.T, store driver.Inspector) time.Duration { return remaining(t, store, "k") }

// A lease that is lost, or whose acquisition LockAll gave up, leaves no lock taken.
func TestMinHoldEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		held := mustLock(t, other, "b")
		if _, err := l.TryLockAll(t.Context(), []string{"a", "b"}, baton.MinHold(time.Hour)); !errors.Is(err, baton.ErrHeld) {
			t.Fatal(err)
		}
		mustUnlock(t, mustLock(t, other, "a"))
		mustUnlock(t, held)
		lease, err := l.Lock(t.Context(), "k", baton.MinHold(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		<-lease.Done()
		_ = lease.Unlock()
		mustUnlock(t, mustLock(t, other, "k"))
	})
}

// A MinHold as long as the longest TTL of the store is kept, and is no error.
func TestLongestMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, most := newLocker(t, store, baton.Config{}), store.Traits().MaxTTL
		mustUnlock(t, mustLock(t, l, "k", baton.MinHold(most)))
		if got := left(t, store); got < most-time.Second || got > most {
			t.Errorf("taken for another %v, want %v", got, most)
		}
	})
}

// The store left the lock taken, its answer was lost, and the time is over when it is
// asked again: the lease was not lost.
func TestMinHoldThatEndsBeforeItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		var once sync.Once
		store.onMove = func(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (g driver.Grant, err error) {
			g, err = store.Store.Move(ctx, c, id, owner, ttl)
			once.Do(func() {
				<-ctx.Done()
				err = ctx.Err()
			})
			return g, err
		}
		mustUnlock(t, mustLock(t, l, "k", baton.MinHold(500*time.Millisecond)))
		mustUnlock(t, mustLock(t, newLocker(t, store, baton.Config{}), "k"))
	})
}

// The lease expires before the store is able to leave the lock taken: that is no loss, and
// the MinHold was not kept.
func TestMinHoldOfALeaseThatExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		lease := mustLock(t, newLocker(t, store, baton.Config{TTL: 3 * time.Second}), "k", baton.MinHold(time.Hour))
		store.onMove = func(_ context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
			time.Sleep(4 * time.Second)
			return store.Store.Move(context.Background(), c, id, owner, ttl)
		}
		if err := lease.Unlock(); errors.Is(err, baton.ErrLost) || !errors.Is(err, baton.ErrUnavailable) || !strings.Contains(err.Error(), "MinHold") {
			t.Errorf("Unlock: %v", err)
		}
	})
}

// The store does not answer while the lock is to be left taken, and Unlock gives up. The
// Locker goes on to ask, and the lock stays taken for its time.
func TestMinHoldThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		lease := mustLock(t, l, "k", baton.MinHold(time.Hour))
		store.set(func() {
			store.onMove = func(context.Context, driver.Claim, string, string, time.Duration) (driver.Grant, error) {
				return driver.Grant{}, driver.ErrUnavailable
			}
		})
		if err := lease.Unlock(); !errors.Is(err, baton.ErrUnavailable) || !strings.Contains(err.Error(), "within 1h") {
			t.Errorf("Unlock: %v", err)
		}
		store.set(func() { store.onMove = nil })
		time.Sleep(time.Minute)
		if got := left(t, store); got < 58*time.Minute || got > 59*time.Minute {
			t.Errorf("taken for another %v", got)
		}
	})
}

// On a store that cannot move a claim, a renewal that is under way at the Unlock does
// not shorten the time either.
func TestMinHoldBesideALateRenewalWithoutMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, struct{ driver.Locks }{store}, baton.Config{TTL: 3 * time.Second})
		lease := mustLock(t, l, "k", baton.MinHold(time.Minute))
		var slow atomic.Bool
		store.set(func() {
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				if slow.CompareAndSwap(false, true) {
					time.Sleep(700 * time.Millisecond)
				}
				return store.Store.Renew(ctx, c, ttl)
			}
		})
		time.Sleep(1010 * time.Millisecond) // it is under way
		mustUnlock(t, lease)
		time.Sleep(10 * time.Second)
		if got := left(t, store); got < 48*time.Second || got > 49*time.Second {
			t.Errorf("taken for another %v", got)
		}
	})
}

// A LockAll that fails leaves nothing taken for the MinHold: neither what it had locked
// before, nor what it still holds when it has lost another one.
func TestMinHoldOfALockAllThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		held := mustLock(t, other, "b")
		if _, err := l.TryLockAll(t.Context(), []string{"a", "b"}, baton.MinHold(time.Hour)); !errors.Is(err, baton.ErrHeld) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.LockAll(ctx, []string{"a", "b"}, baton.MinHold(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		lease, err := other.TryLock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
		mustUnlock(t, held)

		held = mustLock(t, other, "c")
		all := make(chan *baton.Leases)
		go func() {
			ls, err := l.LockAll(t.Context(), []string{"a", "b", "c"}, baton.MinHold(time.Hour))
			if err != nil {
				t.Error(err)
			}
			all <- ls
		}()
		time.Sleep(time.Second) // it waits for the last one
		if _, err := other.Break(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // it starts again
		mustUnlock(t, held)
		began := time.Now()
		ls := <-all
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("LockAll took %v", took)
		}
		if err := ls.Unlock(); err != nil {
			t.Error(err)
		}
	})
}

// The requests that a holder makes are repeated as its lease's own TTL asks for.
func TestExtendOfAnotherTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: time.Hour})
		lease := mustLock(t, l, "k", baton.TTL(6*time.Second))
		store.set(func() {
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				store.set(func() { store.onRenew = nil })
				return blackHole(ctx, c, ttl)
			}
		})
		began := time.Now()
		if _, err := lease.Extend(t.Context()); err != nil || time.Since(began) > 4*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		mustUnlock(t, lease)
	})
}

// A store that grants a little less than it is asked for keeps the lock for the whole
// time all the same.
func TestMinHoldWithShortGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
			return store.Store.Renew(ctx, c, ttl-min(100*time.Millisecond, ttl/20))
		}
		l := newLocker(t, struct{ driver.Locks }{store}, baton.Config{})
		for _, d := range []time.Duration{50 * time.Millisecond, time.Second, time.Minute} {
			began := time.Now()
			mustUnlock(t, mustLock(t, l, "k", baton.MinHold(d)))
			if took := time.Since(began) + left(t, store); took < d || took > d+300*time.Millisecond {
				t.Errorf("taken for %v, want %v", took, d)
			}
			mustUnlock(t, mustLock(t, l, "k"))
		}
	})
}

// movesNothing is a store that cannot move claims.
type movesNothing struct {
	driver.Locks
	driver.Downgrader
}

// What the holder itself has asked the store for is under way at the Unlock, on a store
// that cannot move a claim. It does not shorten the time either.
func TestMinHoldBesideWhatItsHolderAsks(t *testing.T) {
	for what, c := range map[string]struct {
		asks   func(*baton.Lease) error
		unlock time.Duration
	}{
		"Extend": {func(lease *baton.Lease) error {
			_, err := lease.Extend(context.Background())
			return err
		}, 100 * time.Millisecond},
		"Downgrade": {func(lease *baton.Lease) error { return lease.Downgrade(context.Background()) }, 100 * time.Millisecond},
		// Its answer does not count any more after the downgrade.
		"a renewal from before a Downgrade": {func(lease *baton.Lease) error {
			time.Sleep(1010 * time.Millisecond) // it is under way
			return lease.Downgrade(context.Background())
		}, 1100 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newHooked()
				l := newLocker(t, movesNothing{store, store}, baton.Config{TTL: 3 * time.Second})
				lease := mustLock(t, l, "k", baton.MinHold(time.Minute))
				var first atomic.Bool
				slow := func() {
					if first.CompareAndSwap(false, true) {
						time.Sleep(700 * time.Millisecond)
					}
				}
				store.set(func() {
					store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
						slow()
						return store.Store.Renew(ctx, c, ttl)
					}
					store.onDowngrade = func(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
						slow()
						return store.Store.Downgrade(ctx, c, ttl)
					}
				})
				asked := make(chan error, 1)
				go func() { asked <- c.asks(lease) }()
				time.Sleep(c.unlock)
				mustUnlock(t, lease)
				<-asked
				time.Sleep(10 * time.Second)
				if got, want := left(t, store), time.Minute-10*time.Second-c.unlock; got < want-time.Second || got > want {
					t.Errorf("taken for another %v, want about %v", got, want)
				}
			})
		})
	}
}

// A Downgrade without an answer leaves the kind of the lock unknown, but not the time
// for which it stays taken.
func TestMinHoldBesideADowngradeThatFails(t *testing.T) {
	for name, wrap := range map[string]func(*hooked) driver.Locks{
		"moved":   func(h *hooked) driver.Locks { return h },
		"renewed": func(h *hooked) driver.Locks { return movesNothing{h, h} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newHooked()
				l := newLocker(t, wrap(store), baton.Config{TTL: 3 * time.Second})
				lease := mustLock(t, l, "k", baton.MinHold(time.Minute))
				ctx, cancel := context.WithCancel(t.Context())
				store.set(func() {
					store.onDowngrade = func(ctx context.Context, _ driver.Claim, _ time.Duration) (driver.Grant, error) {
						<-ctx.Done()
						return driver.Grant{}, ctx.Err()
					}
				})
				asked := make(chan error, 1)
				go func() { asked <- lease.Downgrade(ctx) }()
				synctest.Wait()
				time.AfterFunc(300*time.Millisecond, cancel)
				mustUnlock(t, lease)
				if err := <-asked; !errors.Is(err, baton.ErrLost) {
					t.Errorf("Downgrade: %v", err)
				}
				time.Sleep(10 * time.Second)
				if got := left(t, store); got < 49*time.Second || got > 50*time.Second {
					t.Errorf("taken for another %v", got)
				}
			})
		})
	}
}
