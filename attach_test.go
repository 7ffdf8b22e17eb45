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
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/store/memstore"
)

func mustDetach(t testing.TB, lease *baton.Lease) (handle string) {
	t.Helper()
	handle, err := lease.Detach()
	if err != nil {
		t.Fatalf("Detach(%q): %v", lease.Key(), err)
	}
	return handle
}

func mustAttach(t testing.TB, l *baton.Locker, handle string) *baton.Lease {
	t.Helper()
	lease, err := l.Attach(t.Context(), handle)
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	return lease
}

// Many processes attach the same handle at once: one of them gets the lease.
func TestHandleHasOneTaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		lease := mustLock(t, newLocker(t, store, baton.Config{Owner: "first"}), "k")
		handle := mustDetach(t, lease)
		var taken atomic.Pointer[baton.Lease]
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				l, err := baton.New(store, baton.Config{Owner: "second"})
				if err != nil {
					t.Error(err)
					return
				}
				mine, err := l.Attach(t.Context(), handle)
				switch {
				case err == nil && !taken.CompareAndSwap(nil, mine):
					t.Error("two have taken it")
				case err != nil && !errors.Is(err, baton.ErrLost):
					t.Errorf("Attach: %v", err)
				}
			})
		}
		wg.Wait()
		mine := taken.Load()
		if mine == nil {
			t.Fatal("nobody has taken it")
		}
		if info, err := store.Inspect(t.Context(), "k"); err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != "second" {
			t.Errorf("Inspect: %+v, %v", info, err)
		}
		time.Sleep(time.Minute)
		if mine.Err() != nil || mine.Token() != lease.Token() {
			t.Errorf("%v, token %d became %d", mine.Err(), lease.Token(), mine.Token())
		}
		mustUnlock(t, mine)
	})
}

// plain hides the optional abilities of a store.
type plain struct{ driver.Locks }

// A renewal of the earlier process, with its short TTL, arrives after a process
// with a long TTL has attached the lease. The store must not grant the lock to
// another while the new process believes in it.
func TestRenewalThatComesAfterAttach(t *testing.T) {
	for _, moves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := newHooked()
			var before, after driver.Locks = store, store.Store
			if !moves {
				before, after = plain{store}, plain{store.Store}
			}
			first := mustLock(t, newLocker(t, before, baton.Config{TTL: 3 * time.Second}), "k")
			late := make(chan struct{})
			arrived := make(chan struct{})
			store.set(func() {
				store.onRenew = func(_ context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
					go func() {
						<-late
						store.Store.Renew(context.Background(), c, ttl)
						close(arrived)
					}()
					return unavailable(len(c))
				}
			})
			time.Sleep(1100 * time.Millisecond) // a renewal is under way
			handle := mustDetach(t, first)
			lease := mustAttach(t, newLocker(t, after, baton.Config{TTL: time.Minute}), handle)
			close(late)
			<-arrived
			info, err := store.Inspect(t.Context(), "k")
			if err != nil || len(info.Holders) != 1 {
				t.Fatalf("Inspect: %+v, %v", info, err)
			}
			if left, in := time.Until(lease.Deadline()), info.Holders[0].Remaining; left > in {
				t.Errorf("moves %v: believed in for %v, the store gives the lock away in %v", moves, left, in)
			}
			if moves && info.Holders[0].Remaining < 50*time.Second {
				t.Errorf("the late renewal took effect: %v left", info.Holders[0].Remaining)
			}
			time.Sleep(10 * time.Minute)
			if err := lease.Err(); err != nil {
				t.Errorf("moves %v: %v", moves, err)
			}
			mustUnlock(t, lease)
		})
	}
}

// The same with an Extend.
func TestExtendThatComesAfterAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, plain{store}, baton.Config{TTL: time.Minute})
		handle := mustDetach(t, mustLock(t, l, "k"))
		var late func()
		store.onRenew = func(_ context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
			late = func() { store.Store.Renew(context.Background(), c, ttl) }
			return unavailable(len(c))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := newLocker(t, plain{store}, baton.Config{TTL: time.Second}).Extend(ctx, handle); err == nil {
			t.Error("Extend said that it was renewed")
		}
		store.onRenew = nil
		lease := mustAttach(t, l, handle)
		late()
		info, err := store.Inspect(t.Context(), "k")
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("Inspect: %+v, %v", info, err)
		}
		if left, in := time.Until(lease.Deadline()), info.Holders[0].Remaining; left > in {
			t.Errorf("believed in for %v, the store gives the lock away in %v", left, in)
		}
		mustUnlock(t, lease)
	})
}

// The first attempt to lock is carried out after the lease that the second one got was
// detached and has expired, and another lease was given. The handle does not bring the
// token of the first lease back, and what the late attempt has left is released.
func TestHandleAfterALateAttempt(t *testing.T) {
	for _, moves := range []bool{true, false} {
		for name, use := range map[string]func(*baton.Locker, string) error{
			"Attach": func(l *baton.Locker, handle string) error {
				_, err := l.Attach(context.Background(), handle)
				return err
			},
			"Extend": func(l *baton.Locker, handle string) error {
				_, err := l.Extend(context.Background(), handle)
				return err
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				store := newHooked()
				var late driver.Request
				store.onAcquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
					if late.Key == "" {
						late = r
						return driver.Grant{}, driver.ErrUnknown
					}
					return store.Store.Acquire(ctx, r)
				}
				var locks driver.Locks = store
				if !moves {
					locks = plain{store}
				}
				l, other := newLocker(t, locks, baton.Config{TTL: 5 * time.Second}), newLocker(t, store.Store, baton.Config{})
				handle := mustDetach(t, mustLock(t, l, "k"))
				time.Sleep(10 * time.Second)
				mustUnlock(t, mustLock(t, other, "k"))
				if _, err := store.Store.Acquire(t.Context(), late); err != nil {
					t.Fatal(err)
				}
				if err := use(l, handle); !errors.Is(err, baton.ErrLost) {
					t.Errorf("%s, moves %v: %v", name, moves, err)
				}
				lease, err := other.TryLock(t.Context(), "k")
				if err != nil {
					t.Fatalf("%s, moves %v: %v", name, moves, err)
				}
				mustUnlock(t, lease)
			})
		}
	}
}

// The kind of a lock stays.
func TestAttachKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		for _, opt := range []baton.Option{baton.Shared(), baton.Permits(2, 4)} {
			first, beside := mustLock(t, a, "k", opt), mustLock(t, a, "k", opt)
			lease := mustAttach(t, b, mustDetach(t, first))
			time.Sleep(time.Minute)
			if lease.Err() != nil || beside.Err() != nil || lease.Token() != first.Token() {
				t.Errorf("%v, %v; token %d became %d", lease.Err(), beside.Err(), first.Token(), lease.Token())
			}
			mustUnlock(t, lease)
			mustUnlock(t, beside)
		}
		lease := mustAttach(t, b, mustDetach(t, mustLock(t, a, "k")))
		if err := lease.Downgrade(t.Context()); err != nil {
			t.Error(err)
		}
		again := mustAttach(t, a, mustDetach(t, lease))
		reader := mustLock(t, b, "k", baton.Shared())
		if _, err := b.TryLock(t.Context(), "k"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("a writer beside readers: %v", err)
		}
		mustUnlock(t, again)
		mustUnlock(t, reader)
		wantFree(t, store, []string{"k"}, a, b)
	})
}

// The token stays, also that of a lease that was handed over inside the process,
// and the next grant has a higher one.
func TestAttachKeepsTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		lease := mustLock(t, a, "k")
		for range 5 {
			next := lockSoon(t, a)
			mustUnlock(t, lease)
			lease = within(t, time.Second, next)
		}
		if lease.Token()%64 != 5 {
			t.Fatalf("token %d is not that of a fifth hand-over", lease.Token())
		}
		waiting := lockSoon(t, a) // the lock is not handed over to this caller
		there := mustAttach(t, b, mustDetach(t, lease))
		back := mustAttach(t, a, mustDetach(t, there))
		if there.Token() != lease.Token() || back.Token() != lease.Token() {
			t.Errorf("token %d became %d, then %d", lease.Token(), there.Token(), back.Token())
		}
		mustUnlock(t, back)
		next := within(t, 10*time.Second, waiting)
		if next.Token() <= lease.Token() {
			t.Errorf("token %d after %d", next.Token(), lease.Token())
		}
		mustUnlock(t, next)
		wantFree(t, store, []string{"k"}, a, b)
	})
}

// A lease with nested leases cannot be detached, by any of them.
func TestDetachOfNestedLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
		outer := mustLock(t, a, "k")
		inner, err := a.Lock(outer.Context(t.Context()), "k", baton.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		for _, lease := range []*baton.Lease{outer, inner} {
			if _, err := lease.Detach(); !errors.Is(err, baton.ErrCountedOn) {
				t.Errorf("Detach: %v, want ErrCountedOn", err)
			}
			if err := lease.Downgrade(t.Context()); !errors.Is(err, baton.ErrCountedOn) {
				t.Errorf("Downgrade: %v, want ErrCountedOn", err)
			}
		}
		mustUnlock(t, inner)
		lease := mustAttach(t, b, mustDetach(t, outer))
		inner, err = b.Lock(lease.Context(t.Context()), "k", baton.Reentrant())
		if err != nil || inner.Token() != outer.Token() {
			t.Fatalf("nested in an attached lease: %v", err)
		}
		mustUnlock(t, inner)
		mustUnlock(t, lease)
	})
}

// The process that detached crashes, or is late, and no process attaches: the lock
// is free within the TTL, and the handle cannot be used any more.
func TestDetachedAndForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := newLocker(t, store, baton.Config{TTL: 5 * time.Second}), newLocker(t, store, baton.Config{})
		lease := mustLock(t, a, "k")
		until := lease.Deadline()
		handle := mustDetach(t, lease)
		began := time.Now()
		next := mustLock(t, b, "k")
		if time.Now().Before(until) || time.Since(began) > 6*time.Second {
			t.Errorf("free after %v, with a deadline after %v", time.Since(began), until.Sub(began))
		}
		if _, err := a.Attach(t.Context(), handle); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Attach: %v", err)
		}
		if _, err := a.Extend(t.Context(), handle); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Extend: %v", err)
		}
		if next.Err() != nil || next.Token() <= lease.Token() {
			t.Errorf("the next holder: %v, token %d after %d", next.Err(), next.Token(), lease.Token())
		}
		mustUnlock(t, next)
		// The machine is suspended between the two.
		lease = mustLock(t, a, "k")
		handle = mustDetach(t, lease)
		time.Sleep(time.Minute)
		bootclock.Suspend(time.Hour)
		if _, err := b.Attach(t.Context(), handle); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Attach after an hour: %v", err)
		}
		wantFree(t, store, []string{"k"}, a, b)
	})
}

// Answers to Attach are lost, or its requests.
func TestAttachLostAnswers(t *testing.T) {
	for _, effect := range []bool{true, false} {
		for _, times := range []int64{1, 3, 1000} {
			synctest.Test(t, func(t *testing.T) {
				store := newHooked()
				a, b := newLocker(t, store, baton.Config{}), newLocker(t, store, baton.Config{})
				lease := mustLock(t, a, "k")
				handle := mustDetach(t, lease)
				var asked atomic.Int64
				store.onMove = func(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
					if asked.Add(1) > times {
						return store.Store.Move(ctx, c, id, owner, ttl)
					}
					if effect {
						store.Store.Move(ctx, c, id, owner, ttl)
					}
					return driver.Grant{}, driver.ErrUnknown
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				got, err := b.Attach(ctx, handle)
				if times < 1000 {
					if err != nil || got.Token() != lease.Token() {
						t.Fatalf("effect %v, %d lost: %v", effect, times, err)
					}
					mustUnlock(t, got)
					return
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("effect %v: Attach: %v", effect, err)
				}
				synctest.Wait()
				store.set(func() { store.onMove = nil })
				if n := holders(t, store, "k"); effect && n != 0 {
					t.Errorf("what was taken up and not told is left: %d holders", n)
				}
				got, err = b.Attach(t.Context(), handle)
				switch {
				case effect && !errors.Is(err, baton.ErrLost):
					t.Errorf("a handle that was used up: %v", err)
				case !effect && err != nil:
					t.Errorf("a handle that was not used up: %v", err)
				case !effect:
					mustUnlock(t, got)
				}
				wantFree(t, store, []string{"k"}, a, b)
			})
		}
	}
}

func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := newLocker(t, store, baton.Config{TTL: 5 * time.Second}), newLocker(t, store, baton.Config{TTL: time.Minute})
		handle := mustDetach(t, mustLock(t, a, "k"))
		for range 3 {
			began := time.Now()
			until, err := b.Extend(t.Context(), handle)
			if d := until.Sub(began); err != nil || d < 50*time.Second || d > time.Minute {
				t.Fatalf("Extend: %v, %v", d, err)
			}
			time.Sleep(40 * time.Second)
		}
		if queues, acquisitions := b.Leftovers(); queues+acquisitions > 0 {
			t.Errorf("%d local queues and %d acquisitions are left of what is not held", queues, acquisitions)
		}
		lease := mustAttach(t, a, handle)
		if _, err := b.Extend(t.Context(), handle); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Extend of a lease that was taken up: %v", err)
		}
		mustUnlock(t, lease)
	})
}

// A handle is a secret: no error shows it or its parts.
func TestHandleIsNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{})
		lease := mustLock(t, l, "k")
		claim, err := lease.Claim()
		if err != nil {
			t.Fatal(err)
		}
		handle := mustDetach(t, lease)
		if key, token, err := baton.ReadHandle(handle); err != nil || key != "k" || token != lease.Token() {
			t.Errorf("ReadHandle: %q, %d, %v", key, token, err)
		}
		if _, err := l.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{handle, handle[1:], handle + "A", handle[:len(handle)-3], strings.ToUpper(handle), "baton2" + handle[6:]} {
			for verb, f := range map[string]func() error{
				"Attach":     func() error { _, err := l.Attach(t.Context(), bad); return err },
				"Extend":     func() error { _, err := l.Extend(t.Context(), bad); return err },
				"ReadHandle": func() error { _, _, err := baton.ReadHandle(bad); return err },
			} {
				err := f()
				if err == nil && (verb != "ReadHandle" || bad != handle) {
					t.Errorf("%s of a handle that is worth nothing: no error", verb)
				}
				if err != nil && (strings.Contains(err.Error(), claim.ID) || strings.Contains(err.Error(), bad)) {
					t.Errorf("%s shows it: %v", verb, err)
				}
			}
		}
	})
}

// A program that took a lock from the store by itself makes it a lease, on stores that move
// claims and on those that do not.
func TestClaimHandle(t *testing.T) {
	for _, moves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var store driver.Locks = memstore.New()
			if !moves {
				store = plain{store}
			}
			l := newLocker(t, store, baton.Config{Owner: "locker", TTL: time.Minute})
			before := mustLock(t, l, "k")
			mustUnlock(t, before)
			const ttl = 10 * time.Second
			claim := driver.Claim{Key: "k", ID: driver.NewID(), Owner: "program", Weight: driver.Whole, Capacity: driver.Whole}
			grant, err := store.Acquire(t.Context(), driver.Request{Claim: claim, TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			handle := baton.ClaimHandle(claim, grant, ttl)
			key, token, err := baton.ReadHandle(handle)
			if err != nil || key != "k" || token <= before.Token() {
				t.Errorf("ReadHandle: %q, %d after %d, %v", key, token, before.Token(), err)
			}
			lease := mustAttach(t, l, handle)
			if lease.Key() != "k" || lease.Token() != token {
				t.Errorf("the lease of %q has token %d, the handle has %d", lease.Key(), lease.Token(), token)
			}
			// A late renewal of the program must not end the lock while the lease believes in it.
			claim.Ticket = grant.Ticket
			state := store.Renew(t.Context(), []driver.Claim{claim}, ttl)[0].State
			if want := map[bool]driver.State{true: driver.Lost, false: driver.Held}[moves]; state != want {
				t.Errorf("moves %v: the claim of the program is %v", moves, state)
			}
			if left := time.Until(lease.Deadline()); !moves && left > ttl {
				t.Errorf("the lease believes in %v, a request of the program may leave it %v", left, ttl)
			}
			time.Sleep(10 * time.Minute)
			if err := lease.Err(); err != nil {
				t.Errorf("moves %v: %v", moves, err)
			}
			mustUnlock(t, lease)
			after := mustLock(t, l, "k")
			if after.Token() <= token {
				t.Errorf("the next lease has token %d after %d", after.Token(), token)
			}
			if _, err := l.Attach(t.Context(), handle); !errors.Is(err, baton.ErrLost) {
				t.Errorf("Attach of a lock that has ended: %v", err)
			}
			// What is not held has no handle.
			claim.ID, claim.Ticket = driver.NewID(), 0
			waiting, err := store.Acquire(t.Context(), driver.Request{Claim: claim, TTL: ttl, Queue: true})
			if err != nil || !waiting.Waiting {
				t.Fatalf("Acquire: %+v, %v", waiting, err)
			}
			handle = baton.ClaimHandle(claim, waiting, ttl)
			if _, _, err := baton.ReadHandle(handle); !errors.Is(err, baton.ErrHandle) {
				t.Errorf("ReadHandle of a position: %v", err)
			}
			if _, err := l.Attach(t.Context(), handle); !errors.Is(err, baton.ErrHandle) {
				t.Errorf("Attach of a position: %v", err)
			}
			mustUnlock(t, after)
		})
	}
}
