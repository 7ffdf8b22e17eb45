package baton_test

import (
	"context"
	"errors"
	"fmt"
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

func TestLockExcludesAndTokensRise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		// Two Lockers are two processes: only the store connects them.
		lockers := []*baton.Locker{newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})}
		var inside, last atomic.Int64
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				lease := mustLock(t, lockers[i%2], "k")
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				if before := last.Swap(lease.Token()); lease.Token() <= before {
					t.Errorf("token %d after %d", lease.Token(), before)
				}
				time.Sleep(time.Second)
				inside.Add(-1)
				mustUnlock(t, lease)
			})
		}
		wg.Wait()
	})
}

func TestThousandGoroutinesAreOneWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		elsewhere := newLocker(t, store, baton.Config{})
		here := newLocker(t, store, baton.Config{})
		first := mustLock(t, elsewhere, "k")
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() { mustUnlock(t, mustLock(t, here, "k")) })
		}
		synctest.Wait()
		info, err := store.Inspect(t.Context(), "k")
		if err != nil || len(info.Waiters) != 1 {
			t.Errorf("the store has %d waiters, error %v; want 1", len(info.Waiters), err)
		}
		store.acquires.Store(0)
		mustUnlock(t, first)
		wg.Wait()
		// One grant serves 32 leases.
		if n := store.acquires.Load(); n > 1000/32+2 {
			t.Errorf("1000 acquisitions cost %d calls of Acquire", n)
		}
	})
}

func TestLocalOrderIsTheOrderOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{})
		lease := mustLock(t, l, "k")
		var order []int
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				lease := mustLock(t, l, "k")
				order = append(order, i)
				mustUnlock(t, lease)
			})
			synctest.Wait() // it is in the queue
		}
		mustUnlock(t, lease)
		wg.Wait()
		for i, n := range order {
			if i != n {
				t.Fatalf("caller %d was served as number %d: %v", n, i, order)
			}
		}
	})
}

func TestLineLetsOthersIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		busy, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					lease := mustLock(t, busy, "k")
					time.Sleep(100 * time.Millisecond)
					mustUnlock(t, lease)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		lease := mustLock(t, other, "k")
		// A quarter of a second of hand-overs, and the section under way.
		if waited := time.Since(began); waited > 500*time.Millisecond {
			t.Errorf("another process waited %v behind a busy line", waited)
		}
		close(stop)
		mustUnlock(t, lease)
		wg.Wait()
	})
}

func TestTryLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a := newLocker(t, store, baton.Config{Owner: "a", TTL: 10 * time.Second})
		b := newLocker(t, store, baton.Config{Owner: "b"})
		lease := mustLock(t, a, "k")
		time.Sleep(time.Second)
		for name, l := range map[string]*baton.Locker{"same process": a, "another": b} {
			_, err := l.TryLock(t.Context(), "k")
			held, ok := errors.AsType[*baton.HeldError](err)
			if !ok || !errors.Is(err, baton.ErrHeld) {
				t.Fatalf("%s: TryLock: %v", name, err)
			}
			if held.Owner != "a" || held.Age.Round(time.Millisecond) != time.Second || held.Remaining <= 0 {
				t.Errorf("%s: %+v", name, held)
			}
		}
		mustUnlock(t, lease)
		lease, err := b.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
		if _, err := store.Inspect(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSharedAndPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{})
		r1, r2 := mustLock(t, l, "rw", baton.Shared()), mustLock(t, l, "rw", baton.Shared())
		if _, err := l.TryLock(t.Context(), "rw"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("writer beside readers: %v", err)
		}
		wrote := make(chan *baton.Lease)
		go func() { wrote <- mustLock(t, l, "rw") }()
		synctest.Wait()
		late := make(chan *baton.Lease)
		go func() { late <- mustLock(t, l, "rw", baton.Shared()) }()
		synctest.Wait()
		select {
		case <-late:
			t.Fatal("a reader overtook a waiting writer")
		default:
		}
		mustUnlock(t, r1)
		mustUnlock(t, r2)
		mustUnlock(t, <-wrote)
		mustUnlock(t, <-late)

		p := mustLock(t, l, "sem", baton.Permits(2, 3))
		q := mustLock(t, l, "sem", baton.Permits(1, 3))
		if _, err := l.TryLock(t.Context(), "sem", baton.Permits(1, 3)); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("a fourth permit of three: %v", err)
		}
		var capacity *baton.CapacityError
		if _, err := l.TryLock(t.Context(), "sem", baton.Permits(1, 5)); !errors.As(err, &capacity) {
			t.Errorf("another capacity: %v", err)
		}
		mustUnlock(t, p)
		mustUnlock(t, q)
	})
}

func TestHeldForHoursAndRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 15 * time.Second})
		lease := mustLock(t, l, "k")
		time.Sleep(time.Hour)
		if err := lease.Err(); err != nil {
			t.Fatalf("after an hour: %v", err)
		}
		if n := store.renews.Load(); n < 700 || n > 820 {
			t.Errorf("%d renewals in an hour, want about 720", n)
		}
		mustUnlock(t, lease)
	})
}

func TestManyLeasesAreRenewedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 15 * time.Second})
		var leases []*baton.Lease
		for i := range 10_000 {
			leases = append(leases, mustLock(t, l, fmt.Sprint("k", i)))
			if i%10 == 0 {
				time.Sleep(5 * time.Millisecond) // five seconds in all, so that they do not begin together
			}
		}
		time.Sleep(10 * time.Second)
		before := store.renews.Load()
		time.Sleep(time.Minute)
		if n := store.renews.Load() - before; n > 13 { // one in five seconds
			t.Errorf("a minute of 10 000 leases took %d requests", n)
		}
		for _, lease := range leases {
			if err := lease.Unlock(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestCancelledWaiterLeavesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		a, b := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		lease := mustLock(t, a, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 3 { // one in the store's queue, two behind it
			wg.Go(func() {
				if _, err := b.Lock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Lock: %v", err)
				}
			})
		}
		wg.Wait()
		if info, _ := store.Inspect(t.Context(), "k"); len(info.Waiters) != 0 {
			t.Errorf("%d places were left behind", len(info.Waiters))
		}
		mustUnlock(t, lease)
		mustUnlock(t, mustLock(t, b, "k"))
	})
}

// A cancel at the moment of the grant releases the lock or hands it over.
func TestCancelRacesWithGrant(t *testing.T) {
	store := memstore.New()
	lockers := []*baton.Locker{newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})}
	for i := range 3000 {
		lease := mustLock(t, lockers[0], "k")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for j := range 4 {
			wg.Go(func() {
				if lease, err := lockers[(i+j)%2].Lock(ctx, "k"); err == nil {
					mustUnlock(t, lease)
				} else if !errors.Is(err, context.Canceled) {
					t.Errorf("Lock: %v", err)
				}
			})
		}
		wg.Go(cancel)
		mustUnlock(t, lease)
		wg.Wait()
		cancel()
	}
	info, err := store.Inspect(t.Context(), "k")
	if err != nil || len(info.Holders)+len(info.Waiters) != 0 {
		t.Errorf("left behind: %+v, error %v", info, err)
	}
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{TTL: time.Second})
		boom := errors.New("boom")
		err := l.Do(t.Context(), "k", func(ctx context.Context, lease *baton.Lease) error {
			if lease.Err() != nil || ctx.Err() != nil {
				t.Error("not held inside")
			}
			return boom
		})
		if !errors.Is(err, boom) {
			t.Errorf("Do: %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = l.Do(t.Context(), "k", func(context.Context, *baton.Lease) error { panic("x") })
		}()
		err = l.Do(t.Context(), "k", func(ctx context.Context, _ *baton.Lease) error {
			if _, err := l.Break(ctx, "k"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), baton.ErrLost) {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
			return nil
		})
		if !errors.Is(err, baton.ErrLost) {
			t.Errorf("Do after a loss: %v", err)
		}
	})
}

func TestBadInputChangesNothing(t *testing.T) {
	store := newHooked()
	l := newLocker(t, store, baton.Config{})
	var key *baton.KeyError
	for _, k := range []string{"", "a\x00b", "a\nb", string([]byte{0xff}), strings.Repeat("x", 513)} {
		if _, err := l.Lock(t.Context(), k); !errors.As(err, &key) {
			t.Errorf("Lock(%q): %v", k, err)
		}
		if _, err := l.TryLock(t.Context(), k); !errors.As(err, &key) {
			t.Errorf("TryLock(%q): %v", k, err)
		}
	}
	for _, p := range [][2]int{{0, 3}, {-1, 3}, {4, 3}, {1, 0}, {1, baton.MaxPermits + 1}} {
		if _, err := l.Lock(t.Context(), "k", baton.Permits(p[0], p[1])); err == nil {
			t.Errorf("Permits%v was accepted", p)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lock(ended, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock with an ended context: %v", err)
	}
	if n := store.acquires.Load(); n != 0 {
		t.Errorf("the store was asked %d times", n)
	}

	var bad *baton.ConfigError
	for _, cfg := range []baton.Config{
		{TTL: -1},
		{TTL: time.Nanosecond},
		{TTL: 1000 * time.Hour},
		{TTL: time.Second, Margin: time.Second},
		{Margin: -1},
		{LockDelay: -1},
		{LockDelay: 1 << 62},
		{MaxHold: -1},
		{Owner: "a\nb"},
		{Owner: strings.Repeat("x", 129)},
	} {
		if _, err := baton.New(store, cfg); !errors.As(err, &bad) {
			t.Errorf("New(%+v): %v", cfg, err)
		}
	}
}

type poorStore struct{ driver.Locks }

func (poorStore) Traits() driver.Traits { return driver.Traits{Store: "poor", MaxTTL: time.Hour} }

func TestMissingAbilitiesAreErrors(t *testing.T) {
	l := newLocker(t, poorStore{memstore.New()}, baton.Config{})
	for name, f := range map[string]func() error{
		"Shared":  func() error { _, err := l.Lock(t.Context(), "k", baton.Shared()); return err },
		"Permits": func() error { _, err := l.Lock(t.Context(), "k", baton.Permits(1, 2)); return err },
		"Inspect": func() error { _, err := l.Inspect(t.Context(), "k"); return err },
		"Break":   func() error { _, err := l.Break(t.Context(), "k"); return err },
		"List": func() (err error) {
			for _, err = range l.List(t.Context(), "") {
			}
			return err
		},
		"Downgrade": func() error {
			lease := mustLock(t, l, "k")
			defer lease.Unlock()
			return lease.Downgrade(t.Context())
		},
	} {
		if err := f(); !errors.Is(err, baton.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A program that did not look at the error of Open is told so, and does not crash.
func TestNoStore(t *testing.T) {
	t.Parallel()
	_, err := baton.New(nil, baton.Config{})
	if bad, ok := errors.AsType[*baton.ConfigError](err); !ok || bad.Field != "store" {
		t.Errorf("New: %v", err)
	}
}

// A caller that waited in vain learns who holds the lock, another process or this
// one.
func TestTimedOutLockSaysWhoHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{Owner: "here"})
		other := newLocker(t, store.Store, baton.Config{Owner: "there"})
		wait := func() *baton.HeldError {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := l.Lock(ctx, "k")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock: %v", err)
			}
			held, _ := errors.AsType[*baton.HeldError](err)
			return held
		}
		lease := mustLock(t, other, "k")
		if held := wait(); held == nil || held.Owner != "there" || held.Key != "k" || held.Age < time.Second || held.Local {
			t.Errorf("another process holds: %v", held)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := l.Lock(ctx, "k"); !errors.Is(err, context.Canceled) || errors.Is(err, baton.ErrHeld) {
			t.Errorf("a Lock that was cancelled: %v", err)
		}
		mustUnlock(t, lease)
		lease = mustLock(t, l, "k")
		if held := wait(); held == nil || held.Owner != "here" || !held.Local || !strings.Contains(held.Error(), "ErrNested") {
			t.Errorf("this process holds: %v", held)
		}
		mustUnlock(t, lease)
	})
}

// A caller whose time is over during an outage learns of the outage, at the front of the
// local queue and behind it; one whose own deadline is all that came to an end does not.
func TestTimedOutLockSaysWhatTheStoreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{})
		store.onAcquire = func(context.Context, driver.Request) (driver.Grant, error) {
			return driver.Grant{}, fmt.Errorf("the file was removed: %w", driver.ErrUnavailable)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, err := l.Lock(ctx, "k")
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "the store said last: the file was removed") {
					t.Errorf("Lock: %v", err)
				}
			})
		}
		wg.Wait()
		store.set(func() {
			store.onAcquire = func(ctx context.Context, _ driver.Request) (driver.Grant, error) {
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
		})
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Lock(ctx, "other"); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "said") {
			t.Errorf("a store that says nothing: %v", err)
		}
		time.Sleep(time.Minute) // what is under way ends
	})
}

// Do returns soon after a loss, although the store hangs, and reports the loss
// once.
func TestDoAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{TTL: 6 * time.Second})
		var lost time.Time
		err := l.Do(t.Context(), "k", func(ctx context.Context, lease *baton.Lease) error {
			store.set(func() {
				store.onRenew = blackHole
				store.onRelease = func(ctx context.Context, _ driver.Claim) error { <-ctx.Done(); return ctx.Err() }
			})
			<-ctx.Done()
			lost = time.Now()
			return context.Cause(ctx)
		})
		if d := time.Since(lost); d > 200*time.Millisecond {
			t.Errorf("returned %v after the loss", d)
		}
		if !errors.Is(err, baton.ErrLost) || strings.Count(err.Error(), "has ended") != 1 {
			t.Errorf("Do: %v", err)
		}
		time.Sleep(30 * time.Second) // the release continues in the background
	})
}
