package baton_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// A call is shown under the name that it gave. The process does not hand a lease
// over to a call with another name, because the store would continue to show the
// first.
func TestOwnerOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{Owner: "everybody"})
		shown := func() string {
			t.Helper()
			info, err := l.Inspect(t.Context(), "k")
			if err != nil || len(info.Holders) != 1 {
				t.Fatalf("%d holders, %v", len(info.Holders), err)
			}
			return info.Holders[0].Owner
		}
		var leases []*baton.Lease
		for i, c := range []struct {
			opts  []baton.Option
			want  string
			grant bool // by the store
		}{
			{nil, "everybody", true},
			{[]baton.Option{baton.Owner("me")}, "me", true},
			{[]baton.Option{baton.Owner("me")}, "me", false},
			{[]baton.Option{baton.Owner("you")}, "you", true},
			{[]baton.Option{baton.Owner("")}, "everybody", true},
			{[]baton.Option{baton.Owner("everybody")}, "everybody", false},
		} {
			if i == 0 {
				leases = append(leases, mustLock(t, l, "k"))
			} else {
				next := lockSoon(t, l, c.opts...)
				mustUnlock(t, leases[i-1])
				leases = append(leases, within(t, 10*time.Second, next))
			}
			if got := shown(); got != c.want {
				t.Errorf("lease %d is shown as %q, want %q", i, got, c.want)
			}
			if i > 0 {
				last, now := leases[i-1].Token(), leases[i].Token()
				if now <= last || (now/64 != last/64) != c.grant {
					t.Errorf("lease %d: token %d after %d, want a grant of the store: %v", i, now, last, c.grant)
				}
			}
			_, err := l.TryLock(t.Context(), "k")
			if held, ok := errors.AsType[*baton.HeldError](err); !ok || held.Owner != c.want {
				t.Errorf("lease %d: TryLock says %v", i, err)
			}
		}
		mustUnlock(t, leases[len(leases)-1])
	})
}

func TestOwnerThatCannotBeShown(t *testing.T) {
	l := newLocker(t, memstore.New(), baton.Config{})
	for _, owner := range []string{strings.Repeat("x", 129), "a\nb", "\xff"} {
		_, err := l.Lock(t.Context(), "k", baton.Owner(owner))
		if bad, ok := errors.AsType[*driver.RequestError](err); !ok || bad.Field != "owner" {
			t.Errorf("owner %q: %v", owner, err)
		}
	}
	mustUnlock(t, mustLock(t, l, "k"))
}

// wantFull fails unless the call was refused because of a queue, at once.
func wantFull(t *testing.T, l *baton.Locker, opts ...baton.Option) *baton.QueueFullError {
	t.Helper()
	start := time.Now()
	lease, err := l.Lock(t.Context(), "k", opts...)
	full, ok := errors.AsType[*baton.QueueFullError](err)
	if !ok || lease != nil || !errors.Is(err, baton.ErrQueueFull) || errors.Is(err, baton.ErrHeld) {
		t.Fatalf("%v, want a *baton.QueueFullError", err)
	}
	if d := time.Since(start); d != 0 { // of the bubble
		t.Errorf("refused after %v", d)
	}
	if full.Key != "k" || !strings.Contains(err.Error(), `"k"`) {
		t.Errorf("the error names another key: %v", err)
	}
	return full
}

// At most so many goroutines wait behind the one that has the lock. The next one is
// refused without a request to the store, and the others are served in order.
func TestFullLocalQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		h := mustLock(t, l, "k", baton.MaxWaiting(2))
		ctx, giveUp := context.WithCancel(t.Context())
		a := lockSoon(t, l, baton.MaxWaiting(2))
		gone := make(chan error, 1)
		go func() {
			_, err := l.Lock(ctx, "k")
			gone <- err
		}()
		synctest.Wait()
		asked := store.acquires.Load()
		for _, opts := range [][]baton.Option{{baton.MaxWaiting(2)}, {baton.MaxWaiting(1), baton.Shared()}, {baton.MaxWaiting(2), baton.Permits(1, 3)}} {
			if full := wantFull(t, l, opts...); !full.Local || full.Waiting != 2 || !strings.Contains(full.Error(), "in this process") {
				t.Errorf("%+v: %v", full, full)
			}
		}
		if _, err := l.TryLock(t.Context(), "k", baton.MaxWaiting(1)); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("TryLock: %v", err)
		}
		if n := store.acquires.Load() - asked; n != 0 {
			t.Errorf("the store was asked %d times", n)
		}
		b := lockSoon(t, l) // without a bound, and it counts
		if full := wantFull(t, l, baton.MaxWaiting(3)); full.Waiting != 3 {
			t.Errorf("%v", full)
		}
		giveUp()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		c := lockSoon(t, l, baton.MaxWaiting(3))
		mustUnlock(t, h)
		for _, next := range []<-chan *baton.Lease{a, b, c} {
			lease := within(t, time.Second, next)
			if len(b)+len(c) > 1 {
				t.Error("out of order")
			}
			mustUnlock(t, lease)
		}
		wantFree(t, store, []string{"k"}, l)
	})
}

// The bound holds for the queue of all processes in the store. What it refuses leaves
// nothing there, and goroutines behind it ask for themselves.
func TestFullQueueInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		others := make([]*baton.Locker, 3)
		for i := range others {
			others[i] = newLocker(t, store.Store, baton.Config{})
		}
		h := mustLock(t, others[0], "k")
		a, b := lockSoon(t, others[1]), lockSoon(t, others[2], baton.MaxWaiting(2))
		if full := wantFull(t, l, baton.MaxWaiting(2)); full.Local || full.Waiting != 2 || !strings.Contains(full.Error(), "in the store") {
			t.Errorf("%+v: %v", full, full)
		}
		wantFull(t, l, baton.MaxWaiting(1), baton.Shared())
		if info, _ := store.Inspect(t.Context(), "k"); len(info.Waiters) != 2 {
			t.Errorf("%d wait in the store", len(info.Waiters))
		}
		if n := store.releases.Load(); n != 0 {
			t.Errorf("%d releases of what was refused", n)
		}
		// The front is under way while others come behind it: each gets its own answer.
		answer := make(chan struct{})
		store.set(func() {
			store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				<-answer
				return store.Store.Acquire(ctx, r)
			}
		})
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() {
				_, err := l.Lock(t.Context(), "k", baton.MaxWaiting(2))
				errs <- err
			}()
		}
		synctest.Wait()
		third := lockSoon(t, l, baton.MaxWaiting(3))
		close(answer)
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, baton.ErrQueueFull) {
				t.Error(err)
			}
		}
		mustUnlock(t, h)
		for _, next := range []<-chan *baton.Lease{a, b, third} {
			mustUnlock(t, within(t, time.Second, next))
		}
		wantFree(t, store, []string{"k"}, l, others[0], others[1], others[2])
	})
}

// A goroutine that waited in its process is counted in the store when its turn comes.
func TestFullQueueWhenItsTurnComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		h := mustLock(t, l, "k")
		errs := make(chan error, 1)
		go func() {
			_, err := l.Lock(t.Context(), "k", baton.Shared(), baton.MaxWaiting(1)) // not handed over to
			errs <- err
		}()
		synctest.Wait()
		a := lockSoon(t, other)
		b := lockSoon(t, newLocker(t, store, baton.Config{}))
		mustUnlock(t, h)
		if full, ok := errors.AsType[*baton.QueueFullError](<-errs); !ok || full.Local {
			t.Errorf("%v", full)
		}
		mustUnlock(t, within(t, time.Second, a))
		mustUnlock(t, within(t, time.Second, b))
		wantFree(t, store, []string{"k"}, l, other)
	})
}

// A refusal that comes after an attempt without an answer releases what that attempt
// may have left.
func TestFullQueueAfterALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store.Store, baton.Config{})
		h := mustLock(t, other, "k")
		store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Retry {
				return driver.Grant{}, &driver.QueueFullError{Key: r.Key, Waiting: 1}
			}
			_, _ = store.Store.Acquire(ctx, r)
			return driver.Grant{}, driver.ErrUnknown
		}
		if _, err := l.Lock(t.Context(), "k", baton.MaxWaiting(1)); !errors.Is(err, baton.ErrQueueFull) {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		if info, _ := store.Inspect(t.Context(), "k"); len(info.Waiters) != 0 {
			t.Errorf("%d wait in the store", len(info.Waiters))
		}
		mustUnlock(t, h)
		wantFree(t, store, []string{"k"}, l, other)
	})
}

// LockAll applies the bound to each key, and gives back what it had got.
func TestFullQueueOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		h := mustLock(t, other, "k")
		waiter := lockSoon(t, newLocker(t, store, baton.Config{}))
		_, err := l.LockAll(t.Context(), []string{"z", "k", "a"}, baton.MaxWaiting(1))
		if full, ok := errors.AsType[*baton.QueueFullError](err); !ok || full.Key != "k" {
			t.Errorf("%v", err)
		}
		wantFree(t, store, []string{"a", "z"}, l)
		mustUnlock(t, h)
		mustUnlock(t, within(t, time.Second, waiter))
		all, err := l.LockAll(t.Context(), abc, baton.MaxWaiting(1))
		if err != nil {
			t.Fatal(err)
		}
		if err := all.Unlock(); err != nil {
			t.Error(err)
		}
		wantFree(t, store, []string{"k", "a", "b", "c"}, l, other)
	})
}

func TestMaxWaitingThatMakesNoSense(t *testing.T) {
	store := newHooked()
	l := newLocker(t, store, baton.Config{})
	for _, n := range []int{0, -1} {
		_, err := l.Lock(t.Context(), "k", baton.MaxWaiting(n))
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("MaxWaiting(%d)", n)) || !strings.Contains(err.Error(), "TryLock") {
			t.Errorf("%d: %v", n, err)
		}
	}
	if n := store.acquires.Load(); n != 0 {
		t.Errorf("the store was asked %d times", n)
	}
}

// Many goroutines of several processes, each time with the same small bound: a
// caller that is refused leaves nothing in the store, and each other one is served.
func TestCrowdAtBoundedQueues(t *testing.T) {
	store := memstore.New()
	const processes, goroutines, rounds, most = 4, 25, 40, 3
	lockers := make([]*baton.Locker, processes)
	for i := range lockers {
		lockers[i] = newLocker(t, store, baton.Config{TTL: time.Minute})
	}
	var mu sync.Mutex
	var served, refused, inside int
	var wg sync.WaitGroup
	for i := range processes * goroutines {
		wg.Go(func() {
			for range rounds {
				lease, err := lockers[i%processes].Lock(t.Context(), "k", baton.MaxWaiting(most))
				switch {
				case errors.Is(err, baton.ErrQueueFull):
					mu.Lock()
					refused++
					mu.Unlock()
					continue
				case err != nil:
					t.Error(err)
					return
				}
				mu.Lock()
				served++
				inside++
				if inside != 1 {
					t.Errorf("%d hold at once", inside)
				}
				mu.Unlock()
				if info, err := store.Inspect(t.Context(), "k"); err != nil || len(info.Waiters) > most {
					t.Errorf("%d wait in the store, %v", len(info.Waiters), err)
				}
				mu.Lock()
				inside--
				mu.Unlock()
				if err := lease.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if served+refused != processes*goroutines*rounds || served == 0 || refused == 0 {
		t.Errorf("%d served, %d refused", served, refused)
	}
	wantFree(t, store, []string{"k"}, lockers...)
	t.Logf("%d served, %d refused", served, refused)
}
