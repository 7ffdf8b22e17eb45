package baton_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
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

// far is a memory store at a distance: requests, answers and hints each take the
// time way.
type far struct {
	*memstore.Store
	way time.Duration
}

// roundTrip asks the store, unless ctx ends before the request arrives.
func (f far) roundTrip(ctx context.Context, ask func()) error {
	arrive := time.NewTimer(f.way)
	defer arrive.Stop()
	select {
	case <-arrive.C:
	case <-ctx.Done():
		// The request arrives all the same: it was sent.
		time.AfterFunc(f.way, ask)
		return errors.Join(driver.ErrUnknown, ctx.Err())
	}
	ask()
	if !sleepFor(ctx, f.way) {
		return errors.Join(driver.ErrUnknown, ctx.Err())
	}
	return nil
}

func (f far) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	var g driver.Grant
	var refused error
	if err := f.roundTrip(ctx, func() { g, refused = f.Store.Acquire(context.Background(), r) }); err != nil {
		return driver.Grant{}, err
	}
	return g, refused
}

func (f far) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
	var answers []driver.Renewal
	if err := f.roundTrip(ctx, func() { answers = f.Store.Renew(context.Background(), c, ttl) }); err != nil {
		failed := make([]driver.Renewal, len(c))
		for i := range failed {
			failed[i].Err = err
		}
		return failed
	}
	return answers
}

func (f far) Release(ctx context.Context, c driver.Claim) error {
	var refused error
	if err := f.roundTrip(ctx, func() { refused = f.Store.Release(context.Background(), c) }); err != nil {
		return err
	}
	return refused
}

func (f far) AcquireAll(context.Context, []driver.Request) ([]driver.Grant, error) {
	return nil, errors.ErrUnsupported
}

func (f far) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	return f.Store.Watch(c, func(h driver.Hint) { time.AfterFunc(f.way, func() { wake(h) }) })
}

// contender locks k again and again, holds it for a while, and notes what happened.
type contender struct {
	locks   *baton.Locker
	hold    time.Duration
	granted int
	lost    int
	longest time.Duration // the longest wait
}

func (c *contender) run(t *testing.T, ctx context.Context, exclusive *sync.Mutex) {
	for ctx.Err() == nil {
		asked := time.Now()
		bound, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		lease, err := c.locks.Lock(bound, "k")
		cancel()
		if err != nil {
			t.Errorf("Lock: %v", err)
			return
		}
		c.longest = max(c.longest, time.Since(asked))
		c.granted++
		if !exclusive.TryLock() {
			t.Error("two believe in the lock at once")
			return
		}
		select {
		case <-time.After(c.hold):
		case <-lease.Done():
		}
		if lease.Err() != nil {
			c.lost++
		}
		exclusive.Unlock()
		if err := lease.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
	}
}

// contend lets all of them contend for two minutes.
func contend(t *testing.T, all ...*contender) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var exclusive sync.Mutex
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() { c.run(t, ctx, &exclusive) })
	}
	wg.Wait()
	time.Sleep(20 * time.Second) // what is under way ends
}

// A program far from the store, and one beside it that always wants the lock: both
// are served alternately, and no lease is lost.
func TestFarFromTheStore(t *testing.T) {
	for _, way := range []time.Duration{10, 100, 150, 200, 300, 400, 500, 600, 800, 1000} {
		for _, hold := range []time.Duration{100, 3000} {
			way, hold := way*time.Millisecond, hold*time.Millisecond
			t.Run(fmt.Sprint(way, " each way, held for ", hold), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := memstore.New()
					distant := &contender{locks: newLocker(t, far{store, way}, baton.Config{}), hold: hold}
					near := &contender{locks: newLocker(t, store, baton.Config{}), hold: hold}
					contend(t, distant, near)
					distant.want(t, "the distant one", 2*hold+8*way+time.Second)
					near.want(t, "the near one", 2*hold+8*way+time.Second)
				})
			})
		}
	}
}

// want asserts that no lease was lost and no wait was longer.
func (c *contender) want(t *testing.T, name string, longest time.Duration) {
	t.Helper()
	if c.granted < 10 || c.lost > 0 || c.longest > longest {
		t.Errorf("%s was granted %d leases, lost %d, and waited for up to %v; want it to wait for %v at most", name, c.granted, c.lost, c.longest, longest)
	}
}

// A store that is so busy that every request takes 0.4s is slow for all.
func TestSlowForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var all []*contender
		for range 8 {
			all = append(all, &contender{locks: newLocker(t, far{store, 200 * time.Millisecond}, baton.Config{}), hold: time.Second})
		}
		contend(t, all...)
		for i, c := range all {
			c.want(t, fmt.Sprint("contender ", i), 8*(c.hold+800*time.Millisecond))
		}
	})
}

// The answer to the renewal of a pushed grant comes when the grant could no longer
// be believed in: it is a grant all the same, and the waiter does not join the
// queue a second time.
func TestLateConfirmationIsAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{LockDelay: time.Second}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		next := lockSoon(t, l)
		store.set(func() {
			store.onRenew = func(_ context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				answers := store.Store.Renew(context.Background(), c, ttl)
				time.Sleep(2 * time.Second)
				return answers
			}
		})
		mustUnlock(t, first)
		lease := within(t, 2500*time.Millisecond, next)
		if n := store.acquires.Load(); n != 1 {
			t.Errorf("%d positions were taken", n)
		}
		time.Sleep(20 * time.Second)
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		mustUnlock(t, lease)
		time.Sleep(5 * time.Second) // what is under way ends
	})
}

// The store says "held" whenever it is asked, but too late to be believed: Lock
// does not hold the lock for ever without saying so.
func TestConfirmationsThatAreAlwaysTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{TTL: 2 * time.Second}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		failed := make(chan error, 1)
		go func() { _, err := l.Lock(t.Context(), "k"); failed <- err }()
		synctest.Wait()
		store.set(func() {
			store.onRenew = func(_ context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				answers := store.Store.Renew(context.Background(), c, ttl)
				time.Sleep(2500 * time.Millisecond)
				return answers
			}
			store.onWatch = func(driver.Claim, func(driver.Hint)) func() { return func() {} }
		})
		time.Sleep(1200 * time.Millisecond) // trust in a push would count from long ago
		mustUnlock(t, first)
		select {
		case err := <-failed:
			if !errors.Is(err, baton.ErrUnavailable) {
				t.Errorf("Lock: %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("Lock goes on for ever")
		}
		time.Sleep(5 * time.Second) // what is under way ends
		if info, _ := store.Inspect(t.Context(), "k"); len(info.Holders)+len(info.Waiters) > 0 {
			t.Errorf("left behind: %+v", info)
		}
	})
}

// A waiter asks about its position, the store grants and pushes, and then answers
// "lost", about the position. That ends no lease: the process asks the store about
// the grant.
func TestLostPositionBesideAHeldGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		first := mustLock(t, other, "k")
		next := lockSoon(t, l)
		store.set(func() {
			asked := store.renews.Load()
			store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				if store.renews.Load() == asked+1 {
					time.Sleep(200 * time.Millisecond)
					return []driver.Renewal{{State: driver.Lost}}
				}
				return store.Store.Renew(ctx, c, ttl)
			}
		})
		time.Sleep(driver.RefreshEvery + 50*time.Millisecond) // the question is under way
		mustUnlock(t, first)
		lease := within(t, time.Millisecond, next)
		asked := store.renews.Load()
		time.Sleep(160 * time.Millisecond)
		if err := lease.Err(); err != nil || store.renews.Load() != asked+1 {
			t.Errorf("%v, and the store was asked %d times", err, store.renews.Load()-asked)
		}
		mustUnlock(t, lease)
	})
}

// A waiter far from the store renews its position before it knows that it has one.
// If such a request overtakes the one for the position, that costs nothing.
func TestConfirmationThatOvertakesTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		store.onAcquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			time.Sleep(time.Second)
			return store.Store.Acquire(context.Background(), r)
		}
		mustUnlock(t, mustLock(t, l, "k")) // from now on the store is known to be slow
		first := mustLock(t, other, "k")
		asked := store.acquires.Load()
		store.set(func() {
			store.onRenew = func(_ context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
				answers := store.Store.Renew(context.Background(), c, ttl)
				time.Sleep(600 * time.Millisecond)
				return answers
			}
		})
		next := lockSoon(t, l)
		time.Sleep(10 * time.Second)
		if n := store.acquires.Load(); n != asked+1 {
			t.Errorf("the lock was asked for %d times", n-asked)
		}
		mustUnlock(t, first)
		mustUnlock(t, within(t, 2*time.Second, next))
		time.Sleep(5 * time.Second) // what is under way ends
	})
}

// A lease whose TTL is three round trips.
func TestFarWithAShortTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, far{memstore.New(), time.Second}, baton.Config{TTL: 6 * time.Second})
		lease := mustLock(t, l, "k")
		time.Sleep(time.Minute)
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		mustUnlock(t, lease)
		time.Sleep(10 * time.Second) // what is under way ends
	})
}
