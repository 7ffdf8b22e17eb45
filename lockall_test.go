package baton_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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

func mustLockAll(t testing.TB, l *baton.Locker, keys ...string) *baton.Leases {
	t.Helper()
	all, err := l.LockAll(t.Context(), keys)
	if err != nil {
		t.Fatalf("LockAll(%q): %v", keys, err)
	}
	return all
}

// wantFree fails unless the keys have no holder and no waiter, and the lockers have
// nothing left of them.
func wantFree(t *testing.T, store driver.Inspector, keys []string, lockers ...*baton.Locker) {
	t.Helper()
	for _, key := range keys {
		if info, err := store.Inspect(context.Background(), key); err != nil || len(info.Holders)+len(info.Waiters) > 0 {
			t.Errorf("left in the store: %+v, error %v", info, err)
		}
	}
	for i, l := range lockers {
		if queues, acquisitions := l.Leftovers(); queues+acquisitions > 0 {
			t.Errorf("locker %d has %d local queues and %d acquisitions left", i, queues, acquisitions)
		}
	}
}

func holders(t *testing.T, store driver.Inspector, key string) int {
	t.Helper()
	info, err := store.Inspect(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return len(info.Holders)
}

var abc = []string{"a", "b", "c"}

func TestLockAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		before := mustLock(t, other, "b")
		mustUnlock(t, before)

		var order []string
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			order = append(order, r.Key)
			return store.Store.Acquire(ctx, r)
		}
		given := []string{"c", "a", "b", "a"}
		all := mustLockAll(t, l, given...)
		if !slices.Equal(all.Keys(), abc) || !slices.Equal(order, abc) || given[0] != "c" {
			t.Errorf("keys %q, asked for in the order %q; the caller's list is now %q", all.Keys(), order, given)
		}
		store.set(func() { store.onAcquire = nil })
		for _, key := range abc {
			if all.Token(key) <= 0 || all.Token(key) != all.Lease(key).Token() {
				t.Errorf("%s: token %d, its lease's is %d", key, all.Token(key), all.Lease(key).Token())
			}
			if _, err := other.TryLock(t.Context(), key); !errors.Is(err, baton.ErrHeld) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if all.Token("b") <= before.Token() {
			t.Errorf("token %d after %d", all.Token("b"), before.Token())
		}
		if all.Token("d") != 0 || all.Lease("d") != nil {
			t.Error("there is a lease on a key that was not asked for")
		}
		ctx, done := all.Context(t.Context()), all.Done()
		time.Sleep(time.Minute) // all are renewed
		if all.Err() != nil || ctx.Err() != nil || !all.Deadline().After(time.Now()) {
			t.Errorf("after a minute: %v, %v, until %v", all.Err(), ctx.Err(), all.Deadline())
		}
		for range 2 {
			if err := all.Unlock(); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		}
		<-done
		if !errors.Is(all.Err(), baton.ErrLost) || context.Cause(ctx) != context.Canceled {
			t.Errorf("after Unlock: %v, cause %v", all.Err(), context.Cause(ctx))
		}
		wantFree(t, store, abc, l, other)
	})
}

func TestLockAllRefusesBeforeItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		for _, keys := range [][]string{nil, {}, {"a", ""}, {"a", "b\n"}} {
			if _, err := l.LockAll(t.Context(), keys); !isKeyError(err) {
				t.Errorf("LockAll(%q): %v, want a *KeyError", keys, err)
			}
			if _, err := l.TryLockAll(t.Context(), keys); !isKeyError(err) {
				t.Errorf("TryLockAll(%q): %v, want a *KeyError", keys, err)
			}
		}
		if _, err := l.LockAll(t.Context(), abc, baton.Permits(3, 2)); err == nil {
			t.Error("3 of 2 permits")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.LockAll(ctx, abc); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		if n := store.acquires.Load(); n > 0 {
			t.Errorf("the store was asked %d times", n)
		}
		wantFree(t, store, abc, l)
	})
}

func isKeyError(err error) bool {
	_, ok := errors.AsType[*baton.KeyError](err)
	return ok
}

func TestLockAllNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		there := mustLock(t, other, "a") // a caller that waits for it waits for ever
		b := mustLock(t, l, "b")
		ctx := b.Context(t.Context())
		if _, err := l.LockAll(ctx, abc); !errors.Is(err, baton.ErrNested) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("LockAll: %v, want ErrNested about b", err)
		}
		if _, err := l.TryLockAll(ctx, abc, baton.Shared()); !errors.Is(err, baton.ErrNested) {
			t.Errorf("TryLockAll: %v, want ErrNested", err)
		}
		mustUnlock(t, there)

		all, err := l.LockAll(ctx, abc, baton.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		if all.Token("b") != b.Token() {
			t.Errorf("token %d became %d by nesting", b.Token(), all.Token("b"))
		}
		for _, key := range abc {
			if _, err := l.Lock(all.Context(ctx), key); !errors.Is(err, baton.ErrNested) {
				t.Errorf("%s within LockAll: %v", key, err)
			}
		}
		if err := all.Unlock(); err != nil {
			t.Error(err)
		}
		if b.Err() != nil || holders(t, store, "b") != 1 || holders(t, store, "a") != 0 {
			t.Errorf("after the inner Unlock: %v", b.Err())
		}
		mustUnlock(t, b)
		reader := mustLock(t, l, "b", baton.Shared())
		if _, err := l.LockAll(reader.Context(t.Context()), abc, baton.Reentrant()); !errors.Is(err, baton.ErrNested) {
			t.Errorf("a writer within a reader: %v", err)
		}
		mustUnlock(t, reader)
		wantFree(t, store, abc, l, other)
	})
}

func TestLockAllKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		for _, opt := range []baton.Option{baton.Shared(), baton.Permits(1, 2)} {
			var both [2]*baton.Leases
			for i, l := range []*baton.Locker{l, other} {
				var err error
				if both[i], err = l.TryLockAll(t.Context(), abc, opt); err != nil {
					t.Fatal(err)
				}
			}
			for _, all := range both {
				if err := all.Unlock(); err != nil {
					t.Error(err)
				}
			}
		}
		all := mustLockAll(t, l, abc...)
		if err := all.Lease("b").Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, mustLock(t, other, "b", baton.Shared()))
		if _, err := other.TryLock(t.Context(), "a", baton.Shared()); !errors.Is(err, baton.ErrHeld) || all.Err() != nil {
			t.Errorf("the others are as they were: %v, %v", err, all.Err())
		}
		if err := all.Unlock(); err != nil {
			t.Error(err)
		}
		wantFree(t, store, abc, l, other)
	})
}

// TryLockAll names the key in the way and leaves nothing, whichever key it is.
func TestTryLockAllRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{Owner: "there"})
		for _, from := range []*baton.Locker{l, other} {
			for _, key := range abc {
				there := mustLock(t, from, key)
				_, err := l.TryLockAll(t.Context(), abc)
				if held, ok := errors.AsType[*baton.HeldError](err); !ok || held.Key != key {
					t.Errorf("%s: %v", key, err)
				}
				mustUnlock(t, there)
				wantFree(t, store, abc, l, other)
			}
		}
	})
}

// A caller that gives up while it waits, for whichever key, leaves nothing behind.
func TestLockAllCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		for _, from := range []*baton.Locker{l, other} { // in the local queue, in the store's
			for i, key := range abc {
				there := mustLock(t, from, key)
				ctx, cancel := context.WithCancel(t.Context())
				failed := make(chan error)
				go func() { _, err := l.LockAll(ctx, abc); failed <- err }()
				synctest.Wait()
				for _, earlier := range abc[:i] {
					if holders(t, store, earlier) != 1 {
						t.Errorf("%s is not held while %s is waited for", earlier, key)
					}
				}
				cancel()
				if err := <-failed; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), key) {
					t.Errorf("%s: %v", key, err)
				}
				mustUnlock(t, there)
				wantFree(t, store, abc, l, other)
			}
		}
	})
}

// At each step the answer is lost, or the request, or the context ends while the
// answer is under way. LockAll continues if it can; what it leaves is released at
// once.
func TestLockAllLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for step := range int64(len(abc)) {
			for _, fault := range []string{"answer", "request", "cancel"} {
				for _, wait := range []bool{true, false} {
					store := newHooked()
					l := newLocker(t, store, baton.Config{})
					ctx, cancel := context.WithCancel(t.Context())
					var asked atomic.Int64
					store.onAcquire = func(call context.Context, r driver.Request) (driver.Grant, error) {
						if asked.Add(1) != step+1 {
							return store.Store.Acquire(call, r)
						}
						if fault != "request" {
							store.Store.Acquire(call, r)
						}
						if fault == "cancel" {
							cancel()
							return driver.Grant{}, call.Err()
						}
						return driver.Grant{}, driver.ErrUnknown
					}
					lock := l.TryLockAll
					if wait {
						lock = l.LockAll
					}
					all, err := lock(ctx, abc)
					switch {
					case err == nil && (!wait || fault == "cancel"):
						t.Errorf("step %d, %s lost: no error", step, fault)
					case err == nil:
						err = all.Unlock()
					case fault == "cancel" && errors.Is(err, context.Canceled), !wait && errors.Is(err, baton.ErrUnknown):
						err = nil
					}
					if err != nil {
						t.Errorf("step %d, %s lost, wait %v: %v", step, fault, wait, err)
					}
					cancel()
					synctest.Wait()
					wantFree(t, store, abc, l)
				}
			}
		}
	})
}

// A key is lost while LockAll waits for a later one: it starts again, and all the
// leases that it returns are valid.
func TestLockAllLosesAKeyWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{TTL: 5 * time.Second}), newLocker(t, store, baton.Config{})
		c := mustLock(t, other, "c")
		got := make(chan *baton.Leases)
		go func() { got <- mustLockAll(t, l, abc...) }()
		synctest.Wait()
		if _, err := other.Break(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		b := mustLock(t, other, "b")
		time.Sleep(10 * time.Second)
		if info, err := store.Inspect(t.Context(), "b"); err != nil || len(info.Waiters) != 1 || holders(t, store, "a") != 1 {
			t.Errorf("it did not begin anew: %+v, %v", info, err)
		}
		mustUnlock(t, b)
		synctest.Wait()
		mustUnlock(t, c)
		all := <-got
		if err := all.Err(); err != nil || all.Token("b") <= b.Token() {
			t.Errorf("%v, token %d after %d", err, all.Token("b"), b.Token())
		}
		if err := all.Unlock(); err != nil {
			t.Error(err)
		}
		wantFree(t, store, abc, l, other)
	})
}

// The loss of one key ends the whole. The other keys stay held until Unlock.
func TestLockAllLosesAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{TTL: 5 * time.Second}), newLocker(t, store, baton.Config{})
		all := mustLockAll(t, l, abc...)
		ctx := all.Context(t.Context())
		if _, err := other.Break(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		<-all.Done()
		for _, err := range []error{context.Cause(ctx), all.Err()} {
			if lost, ok := errors.AsType[*baton.LostError](err); !ok || lost.Key != "b" || lost.Cause != baton.Gone {
				t.Errorf("the loss of b: %v", err)
			}
		}
		time.Sleep(time.Minute)
		if holders(t, store, "a") != 1 || holders(t, store, "c") != 1 {
			t.Error("the others were not held on")
		}
		for range 2 {
			err := all.Unlock()
			if lost, ok := errors.AsType[*baton.LostError](err); !ok || lost.Key != "b" || strings.Contains(err.Error(), `"a"`) {
				t.Errorf("Unlock: %v", err)
			}
			if lost, ok := errors.AsType[*baton.LostError](all.Err()); !ok || lost.Key != "b" {
				t.Errorf("Err after Unlock: %v", all.Err())
			}
		}
		wantFree(t, store, abc, l, other)
	})
}

// The machine is suspended: the contexts have ended before anything else has run.
func TestLockAllLooksAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{TTL: 5 * time.Second})
		all := mustLockAll(t, l, "a")
		time.Sleep(time.Second)
		c, err := l.Lock(all.Context(t.Context()), "c")
		if err != nil {
			t.Fatal(err)
		}
		ctx := c.Context(all.Context(t.Context()))
		// a has ended by now, c has not.
		bootclock.Suspend(time.Until(c.Deadline()) - time.Millisecond)
		if ctx.Err() == nil {
			t.Error("a context goes on although a lease that it is within has ended")
		}
		if lost, ok := errors.AsType[*baton.LostError](context.Cause(ctx)); !ok || lost.Key != "a" {
			t.Errorf("cause: %v", context.Cause(ctx))
		}
		_ = c.Unlock()
		_ = all.Unlock()
	})
}

// Unlock is the first to notice that one of the leases has ended. The contexts
// end for that reason, not because the others are unlocked.
func TestLockAllUnlockNoticesALoss(t *testing.T) {
	for range 10 { // which lease is unlocked first is chance
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			l, other := newLocker(t, store, baton.Config{TTL: 5 * time.Second}), newLocker(t, store, baton.Config{})
			b := mustLock(t, other, "b")
			time.AfterFunc(time.Second, func() { mustUnlock(t, b) })
			all := mustLockAll(t, l, abc...)
			ctx := all.Context(t.Context())
			bootclock.Suspend(time.Until(all.Deadline()) + time.Millisecond)
			if all.Lease("c").Err() != nil {
				t.Fatal("all have ended")
			}
			if err := all.Unlock(); !errors.Is(err, baton.ErrLost) {
				t.Errorf("Unlock: %v", err)
			}
			if !errors.Is(context.Cause(ctx), baton.ErrLost) {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
		})
	}
}

// MaxHold counts from when all was held, however long that took.
func TestLockAllMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{MaxHold: 10 * time.Second}), newLocker(t, store.Store, baton.Config{})
		c := mustLock(t, other, "c")
		time.AfterFunc(time.Minute, func() { mustUnlock(t, c) })
		all := mustLockAll(t, l, abc...)
		if n := store.acquires.Load(); n != 3 {
			t.Errorf("the store was asked %d times: it began anew", n)
		}
		began := time.Now()
		<-all.Done()
		if d := time.Since(began); d < 10*time.Second-time.Millisecond || d > 11*time.Second {
			t.Errorf("it ended after %v, want 10s", d)
		}
		if lost, ok := errors.AsType[*baton.LostError](all.Err()); !ok || lost.Cause != baton.Overheld {
			t.Errorf("Err: %v", all.Err())
		}
		if err := all.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		synctest.Wait() // the ends have been reported
		wantFree(t, store, abc, l, other)
	})
}

// The store stops answering: the Unlock of many takes as long as that of one, and
// names the error of each.
func TestLockAllUnlockIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		var keys []string
		for i := range 50 {
			keys = append(keys, fmt.Sprintf("key %02d", i))
		}
		all := mustLockAll(t, l, keys...)
		store.set(func() {
			store.onRelease = func(ctx context.Context, _ driver.Claim) error { <-ctx.Done(); return ctx.Err() }
		})
		began := time.Now()
		err := all.Unlock()
		if d := time.Since(began); d > 8*time.Second {
			t.Errorf("it took %v", d)
		}
		if !errors.Is(err, baton.ErrUnknown) {
			t.Errorf("Unlock: %v", err)
		}
		for _, key := range keys {
			if err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("Unlock does not name %s", key)
			}
		}
		time.Sleep(time.Minute) // the release continues in the background, for a TTL
	})
}

// The store does not answer: a caller that gives up does not wait for it.
func TestLockAllBackOutIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		c := mustLock(t, other, "c")
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() { _, err := l.LockAll(ctx, abc); failed <- err }()
		synctest.Wait()
		store.set(func() {
			store.onRelease = func(ctx context.Context, _ driver.Claim) error { <-ctx.Done(); return ctx.Err() }
		})
		began := time.Now()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("LockAll: %v", err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
		time.Sleep(time.Second)
		store.set(func() { store.onRelease = nil })
		time.Sleep(5 * time.Second)
		mustUnlock(t, c)
		wantFree(t, store, abc, l, other)
	})
}

// Many goroutines of several processes want overlapping sets, in any order: all
// finish, and no two ever hold one key together.
func TestLockAllCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var lockers []*baton.Locker
		for i := range 4 {
			lockers = append(lockers, newLocker(t, store, baton.Config{Owner: fmt.Sprint(i)}))
		}
		rng := rand.New(rand.NewPCG(7, 7))
		var names []string
		for i := range 8 {
			names = append(names, fmt.Sprint("key ", i))
		}
		sets := make(chan []string, 1000)
		for range 1000 {
			rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			sets <- slices.Clone(names[:1+rng.IntN(4)])
		}
		close(sets)
		var inside [8]atomic.Int32
		var last [8]atomic.Int64
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				for set := range sets {
					all := mustLockAll(t, lockers[i%4], set...)
					for _, key := range set {
						n := key[len(key)-1] - '0'
						if inside[n].Add(1) > 1 {
							t.Errorf("%s has two holders", key)
						}
						if token := all.Token(key); last[n].Swap(token) >= token {
							t.Errorf("%s: the tokens do not rise", key)
						}
					}
					time.Sleep(time.Millisecond)
					for _, key := range set {
						inside[key[len(key)-1]-'0'].Add(-1)
					}
					if err := all.Unlock(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Hour):
			t.Fatal("they wait for each other")
		}
		wantFree(t, store, names, lockers...)
	})
}
