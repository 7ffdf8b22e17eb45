package baton_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/store/memstore"
)

func TestNestedLockFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{})
		a := mustLock(t, l, "a")
		b, err := l.Lock(a.Context(t.Context()), "b")
		if err != nil {
			t.Fatal(err)
		}
		ctx := b.Context(a.Context(t.Context()))
		for _, key := range []string{"a", "b"} {
			if _, err := l.Lock(ctx, key); !errors.Is(err, baton.ErrNested) {
				t.Errorf("%s: %v", key, err)
			}
			if _, err := l.TryLock(ctx, key, baton.Shared()); !errors.Is(err, baton.ErrNested) {
				t.Errorf("%s: %v", key, err)
			}
		}
		mustUnlock(t, b)
		mustUnlock(t, a)
		// A context that outlived its lease says nothing about nesting.
		lease, err := l.Lock(context.WithoutCancel(ctx), "a")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
	})
}

func TestReentrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		outer := mustLock(t, l, "k")
		ctx := outer.Context(t.Context())
		inner, err := l.Lock(ctx, "k", baton.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		reader, err := l.Lock(inner.Context(ctx), "k", baton.Reentrant(), baton.Shared())
		if err != nil {
			t.Fatal(err)
		}
		if inner.Token() != outer.Token() || reader.Token() != outer.Token() {
			t.Error("the token changed on re-entry")
		}
		mustUnlock(t, outer) // the order does not matter
		mustUnlock(t, inner)
		mustUnlock(t, inner) // repeated: nothing
		if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("free before the last Unlock: %v", err)
		}
		if reader.Err() != nil || ctx.Err() != nil {
			t.Error("ended before the last Unlock")
		}
		mustUnlock(t, reader)
		if ctx.Err() == nil || context.Cause(ctx) != context.Canceled {
			t.Errorf("after the last Unlock: %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
		lease, err := other.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)

		r := mustLock(t, l, "k", baton.Shared())
		if _, err := l.Lock(r.Context(t.Context()), "k", baton.Reentrant()); !errors.Is(err, baton.ErrNested) {
			t.Errorf("a reader became a writer: %v", err)
		}
		mustUnlock(t, r)
	})
}

// Nesting is about the lock, not about the Locker: another one on the same store, wrapped
// or not, would wait for itself.
func TestNestedLockByAnotherLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := newLocker(t, store, baton.Config{}), newLocker(t, opened{&tallied{Locks: store}}, baton.Config{})
		a := mustLock(t, l, "a")
		ctx := a.Context(t.Context())
		if _, err := other.Lock(ctx, "a"); !errors.Is(err, baton.ErrNested) {
			t.Errorf("by another Locker: %v", err)
		}
		if _, err := other.LockAll(ctx, []string{"a", "b"}); !errors.Is(err, baton.ErrNested) {
			t.Errorf("among several: %v", err)
		}
		inner, err := other.Lock(ctx, "a", baton.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		if inner.Token() != a.Token() {
			t.Errorf("token %d within %d", inner.Token(), a.Token())
		}
		mustUnlock(t, inner)
		if err := a.Err(); err != nil {
			t.Error(err)
		}
		elsewhere := newLocker(t, memstore.New(), baton.Config{}) // the same key is another lock
		mustUnlock(t, mustLockWithin(ctx, t, elsewhere, "a"))
		mustUnlock(t, a)
	})
}

func mustLockWithin(ctx context.Context, t *testing.T, l *baton.Locker, key string) *baton.Lease {
	t.Helper()
	lease, err := l.Lock(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestNestedLeaseIsLostWithItsOuter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{TTL: 3 * time.Second})
		outer := mustLock(t, l, "k")
		inner, err := l.Lock(outer.Context(t.Context()), "k", baton.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		<-inner.Done()
		for _, lease := range []*baton.Lease{inner, outer} {
			if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
				t.Errorf("Unlock: %v", err)
			}
		}
	})
}

func TestDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{TTL: 5 * time.Second})
		w := mustLock(t, l, "k")
		token := w.Token()
		got := make(chan *baton.Lease)
		go func() { got <- mustLock(t, l, "k", baton.Shared()) }() // behind it in the local queue
		synctest.Wait()
		if err := w.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := <-got
		if w.Token() != token || r.Token() <= token {
			t.Errorf("tokens: %d, then %d and %d", token, w.Token(), r.Token())
		}
		time.Sleep(time.Minute) // both are renewed as the kind that they are
		if w.Err() != nil || r.Err() != nil {
			t.Errorf("after a minute: %v, %v", w.Err(), r.Err())
		}
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("a writer beside readers: %v", err)
		}
		if err := w.Downgrade(t.Context()); err == nil {
			t.Error("a reader was downgraded")
		}
		mustUnlock(t, w)
		mustUnlock(t, r)
		if err := w.Downgrade(t.Context()); !errors.Is(err, baton.ErrLost) {
			t.Errorf("after Unlock: %v", err)
		}
	})
}

// A handle that no other process could use is not made.
func TestDetachNeedsAStoreWithoutSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := mustLock(t, newLocker(t, tied{memstore.New()}, baton.Config{}), "k")
		if handle, err := lease.Detach(); !errors.Is(err, baton.ErrUnsupported) {
			t.Errorf("Detach: %q, %v", handle, err)
		}
		mustUnlock(t, lease) // it is still valid
	})
}

type tied struct{ driver.Locks }

func (s tied) Traits() driver.Traits {
	traits := s.Locks.Traits()
	traits.Sessions = true
	return traits
}

func TestDetachAndAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a := newLocker(t, store, baton.Config{TTL: 10 * time.Second})
		b := newLocker(t, store, baton.Config{TTL: 10 * time.Second})
		first := mustLock(t, a, "k")
		ctx := first.Context(t.Context())
		handle, err := first.Detach()
		if err != nil {
			t.Fatal(err)
		}
		wantLost(t, first, ctx, baton.Detached)
		if _, err := b.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("a detached lock was free: %v", err)
		}
		if info, err := b.Inspect(t.Context(), "k"); err != nil || len(info.Holders) != 1 || info.Holders[0].Token != first.Token() {
			t.Errorf("Inspect shows %+v, error %v; the lease's token is %d", info, err, first.Token())
		}
		time.Sleep(9 * time.Second)
		lease, err := b.Attach(t.Context(), handle)
		if err != nil {
			t.Fatal(err)
		}
		if lease.Token() != first.Token() {
			t.Errorf("token %d became %d", first.Token(), lease.Token())
		}
		time.Sleep(time.Minute)
		if err := lease.Err(); err != nil {
			t.Errorf("attached, after a minute: %v", err)
		}
		mustUnlock(t, lease)
		if _, err := b.Attach(t.Context(), handle); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Attach after Unlock: %v", err)
		}
		for _, bad := range []string{"", "x", "baton1.", "baton1.!!", "baton1.e30", handle[:len(handle)-4]} {
			if _, err := b.Attach(t.Context(), bad); !errors.Is(err, baton.ErrHandle) {
				t.Errorf("Attach(%q): %v", bad, err)
			}
		}
	})
}

// A lock that nested locks count on cannot change its kind, not even by an outer
// lease that was unlocked before.
func TestNestedLocksKeepTheKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{})
		outer := mustLock(t, l, "k")
		inner, err := l.Lock(outer.Context(t.Context()), "k", baton.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		if outer.Downgrade(t.Context()) == nil || inner.Downgrade(t.Context()) == nil {
			t.Error("downgraded under a nested writer")
		}
		mustUnlock(t, outer)
		if err := outer.Err(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("the outer lease was unlocked: %v", err)
		}
		if _, err := outer.Detach(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("an unlocked lease was detached: %v", err)
		}
		if err := outer.Downgrade(t.Context()); !errors.Is(err, baton.ErrLost) {
			t.Errorf("an unlocked lease was downgraded: %v", err)
		}
		if err := inner.Err(); err != nil {
			t.Errorf("inner: %v", err)
		}
		mustUnlock(t, inner)
	})
}

// Every Unlock looks at the clock, including a nested one.
func TestNestedUnlockAfterASuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{TTL: 5 * time.Second})
		outer := mustLock(t, l, "k")
		inner, err := l.Lock(outer.Context(t.Context()), "k", baton.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		bootclock.Suspend(50 * time.Second)
		time.Sleep(200 * time.Millisecond) // before the renewer looks
		if err := inner.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("inner: %v", err)
		}
		if err := outer.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("outer: %v", err)
		}
	})
}

// A long lease, such as a leader's, does not keep every context that was made of
// it.
func TestContextsThatNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type name struct{}
		store := memstore.New()
		l := newLocker(t, store, baton.Config{})
		lease := mustLock(t, l, "k")
		outer := mustLock(t, l, "outer")
		var all, below []context.Context
		for i := range 1000 {
			parent := context.WithValue(outer.Context(context.WithValue(context.Background(), name{}, i)), name{}, i)
			if i%2 == 0 {
				parent = context.WithValue(context.Background(), name{}, i)
			}
			c := lease.Context(parent)
			child, cancel := context.WithCancel(c)
			defer cancel()
			if c.Value(name{}) != i || c.Err() != nil {
				t.Fatalf("context %d has the value %v and is %v", i, c.Value(name{}), c.Err())
			}
			if i%2 == 0 {
				all, below = append(all, c), append(below, child)
			}
		}
		if n := baton.Contexts(lease); n != 501 { // including those of outer, which ends
			t.Errorf("the lease keeps %d contexts of 1000", n)
		}
		if _, err := l.Lock(all[7], "k"); !errors.Is(err, baton.ErrNested) {
			t.Errorf("a nested lock: %v", err)
		}
		mustUnlock(t, outer)
		synctest.Wait()
		if n := baton.Contexts(lease); n != 1 {
			t.Errorf("the lease keeps %d contexts of 500", n)
		}
		if _, err := l.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		<-lease.Done()
		for i := range all {
			<-all[i].Done()
			<-below[i].Done()
			if !errors.Is(context.Cause(all[i]), baton.ErrLost) || !errors.Is(context.Cause(below[i]), baton.ErrLost) {
				t.Fatalf("causes %v and %v", context.Cause(all[i]), context.Cause(below[i]))
			}
		}
		if late := lease.Context(context.Background()); late.Err() == nil || !errors.Is(context.Cause(late), baton.ErrLost) {
			t.Errorf("a context of a lease that has ended: %v", late.Err())
		}
		_ = lease.Unlock()

		lease = mustLock(t, l, "k")
		c := lease.Context(context.Background())
		mustUnlock(t, lease)
		if c.Err() == nil || context.Cause(c) != context.Canceled {
			t.Errorf("after Unlock: %v, %v", c.Err(), context.Cause(c))
		}
	})
}

// A lease and its contexts agree about its end, even if the goroutine that
// noticed it is stopped before it has ended the contexts.
func TestContextsKnowOfAnEndThatWasNotTold(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	defer store.Close()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	outer, err := locks.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx := outer.Context(t.Context())
	inner, err := locks.Lock(ctx, "k", baton.Reentrant())
	if err != nil {
		t.Fatal(err)
	}
	within := inner.Context(ctx)
	if err := outer.Unlock(); err != nil {
		t.Fatal(err)
	}
	if within.Err() != nil || ctx.Err() != nil {
		t.Errorf("%v, %v: the nested lease has not ended", within.Err(), ctx.Err())
	}
	tell := baton.LoseUntold(inner)
	for _, c := range []context.Context{ctx, within} {
		if inner.Err() == nil || c.Err() == nil || !errors.Is(context.Cause(c), baton.ErrLost) {
			t.Errorf("%v, %v, %v", inner.Err(), c.Err(), context.Cause(c))
		}
	}
	tell()
}
