package baton_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// shown is the owner that the store shows for the one holder of a key.
func shown(t *testing.T, store driver.Inspector, key string) string {
	t.Helper()
	info, err := store.Inspect(t.Context(), key)
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("%d holders, %v", len(info.Holders), err)
	}
	return info.Holders[0].Owner
}

func TestRenameALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{Owner: "config", TTL: 10 * time.Second})
		for _, opts := range [][]baton.Option{{baton.Owner("call")}, {baton.Owner("call"), baton.Shared()}, {baton.Owner("call"), baton.Permits(2, 3)}} {
			lease := mustLock(t, l, "k", opts...)
			for _, c := range []struct{ owner, want string }{{"first", "first"}, {"second", "second"}, {"second", "second"}, {"", "config"}, {"last", "last"}} {
				before := lease.Deadline()
				if err := lease.Rename(t.Context(), c.owner); err != nil {
					t.Fatalf("Rename(%q): %v", c.owner, err)
				}
				if got := shown(t, store, "k"); got != c.want {
					t.Errorf("Rename(%q): shown as %q, want %q", c.owner, got, c.want)
				}
				if claim, err := lease.Claim(); err != nil || claim.Owner != c.want {
					t.Errorf("Rename(%q): the claim says %q, %v", c.owner, claim.Owner, err)
				}
				if got := lease.Deadline(); !got.Equal(before) {
					t.Errorf("Rename(%q) moved the deadline from %v to %v", c.owner, before, got)
				}
			}
			token, renewed := lease.Token(), make(chan string, 1)
			store.set(func() {
				store.onRenew = func(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
					select {
					case renewed <- c[0].Owner:
					default:
					}
					return store.Store.Renew(ctx, c, ttl)
				}
			})
			time.Sleep(time.Minute)
			store.set(func() { store.onRenew = nil })
			if got := <-renewed; got != "last" {
				t.Errorf("a later renewal says %q", got)
			}
			if got := shown(t, store, "k"); got != "last" || lease.Err() != nil || lease.Token() != token {
				t.Errorf("a minute later: shown as %q, %v, token %d, was %d", got, lease.Err(), lease.Token(), token)
			}
			mustUnlock(t, lease)
		}
	})
}

func TestRenameThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{Owner: "config"})
		lease := mustLock(t, l, "k")
		for _, owner := range []string{strings.Repeat("x", 129), "a\nb", "\x1b[2J", "\xff"} {
			err := lease.Rename(t.Context(), owner)
			if bad, ok := errors.AsType[*driver.RequestError](err); !ok || bad.Field != "owner" {
				t.Errorf("owner %q: %v", owner, err)
			}
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if err := lease.Rename(over, "late"); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		if got := shown(t, store, "k"); got != "config" || lease.Err() != nil {
			t.Errorf("shown as %q, %v", got, lease.Err())
		}
		mustUnlock(t, lease)
		if err := lease.Rename(t.Context(), "late"); !errors.Is(err, baton.ErrLost) {
			t.Errorf("unlocked: %v, want a *LostError", err)
		}
		unable := mustLock(t, newLocker(t, plain{store}, baton.Config{}), "k")
		if err := unable.Rename(t.Context(), "new"); !errors.Is(err, baton.ErrUnsupported) || !strings.Contains(err.Error(), "memory") {
			t.Errorf("a store that cannot: %v", err)
		}
		mustUnlock(t, unable)
	})
}

// A caller that renames a broken lease learns that at once, and so do the lease's
// contexts. What holds the lock now keeps its owner.
func TestRenameWhatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		lease := mustLock(t, newLocker(t, store, baton.Config{}), "k")
		work := lease.Context(t.Context())
		other := newLocker(t, store, baton.Config{Owner: "other"})
		if _, err := other.Break(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		next := mustLock(t, other, "k")
		if err := lease.Rename(t.Context(), "new"); !errors.Is(err, baton.ErrLost) {
			t.Errorf("broken: %v, want a *LostError", err)
		}
		if work.Err() == nil {
			t.Error("the lease's context goes on")
		}
		if got := shown(t, store, "k"); got != "other" {
			t.Errorf("shown as %q", got)
		}
		if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		mustUnlock(t, next)
	})
}

// A nested lease renames the lock of the outer one, until it is unlocked.
func TestRenameNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{})
		outer := mustLock(t, l, "k")
		inner, err := l.Lock(outer.Context(t.Context()), "k", baton.Reentrant())
		if err != nil {
			t.Fatal(err)
		}
		if err := inner.Rename(t.Context(), "inner"); err != nil {
			t.Fatal(err)
		}
		if got := shown(t, store, "k"); got != "inner" {
			t.Errorf("shown as %q", got)
		}
		mustUnlock(t, inner)
		if err := inner.Rename(t.Context(), "late"); !errors.Is(err, baton.ErrLost) {
			t.Errorf("unlocked: %v", err)
		}
		if err := outer.Rename(t.Context(), "outer"); err != nil {
			t.Fatal(err)
		}
		if got := shown(t, store, "k"); got != "outer" {
			t.Errorf("shown as %q", got)
		}
		mustUnlock(t, outer)
	})
}

// A lease that was renamed goes to no other goroutine of the process, whatever owner
// that wants: its owner would be shown for the next lease, or a request that is still
// under way would rename that one.
func TestRenamedLeaseIsNotHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store, baton.Config{Owner: "config"})
		for _, want := range []string{"config", "new"} {
			lease := mustLock(t, l, "k")
			claim, err := lease.Claim()
			if err != nil {
				t.Fatal(err)
			}
			next := lockSoon(t, l, baton.Owner(want))
			if err := lease.Rename(t.Context(), "new"); err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, lease)
			second := within(t, 10*time.Second, next)
			if own, err := second.Claim(); err != nil || own.ID == claim.ID {
				t.Errorf("%s: the lease was handed over, %v", want, err)
			}
			if got := shown(t, store, "k"); got != want {
				t.Errorf("shown as %q, want %q", got, want)
			}
			mustUnlock(t, second)
		}
	})
}

// The store executes a request after the lease was unlocked, and its answer comes even
// later.
func TestRenameMeetsAnUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		l := newLocker(t, store, baton.Config{Owner: "config"})
		lease := mustLock(t, l, "k")
		sent, goOn := make(chan bool), make(chan bool)
		store.onRename = func(ctx context.Context, c driver.Claim, owner string) error {
			close(sent)
			<-goOn
			return store.Store.Rename(ctx, c, owner)
		}
		renamed := make(chan error)
		go func() { renamed <- lease.Rename(context.Background(), "new") }()
		<-sent
		next := lockSoon(t, l)
		mustUnlock(t, lease)
		second := within(t, 10*time.Second, next)
		close(goOn)
		if err := <-renamed; !errors.Is(err, baton.ErrLost) {
			t.Errorf("Rename: %v, want a *LostError", err)
		}
		if got := shown(t, store, "k"); got != "config" || second.Err() != nil {
			t.Errorf("the next lease: shown as %q, %v", got, second.Err())
		}
		mustUnlock(t, second)
	})
}

// TryLock in the same process names the owner as it is now.
func TestRenameIsSeenInTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), baton.Config{})
		lease := mustLock(t, l, "k")
		if err := lease.Rename(t.Context(), "new"); err != nil {
			t.Fatal(err)
		}
		_, err := l.TryLock(t.Context(), "k")
		if held, ok := errors.AsType[*baton.HeldError](err); !ok || held.Owner != "new" {
			t.Errorf("TryLock: %v", err)
		}
		mustUnlock(t, lease)
	})
}

// A detached lease keeps the name that it was given, the process that attaches it gives
// it its own, and a request of the first process that is still under way changes
// nothing.
func TestRenameADetachedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		lease := mustLock(t, newLocker(t, store, baton.Config{Owner: "one"}), "k")
		if err := lease.Rename(t.Context(), "renamed"); err != nil {
			t.Fatal(err)
		}
		sent, goOn := make(chan bool), make(chan bool)
		store.set(func() {
			store.onRename = func(ctx context.Context, c driver.Claim, owner string) error {
				close(sent)
				<-goOn
				return store.Store.Rename(ctx, c, owner)
			}
		})
		renamed := make(chan error)
		go func() { renamed <- lease.Rename(context.Background(), "late") }()
		<-sent
		store.set(func() { store.onRename = nil })
		handle := mustDetach(t, lease)
		if got := shown(t, store, "k"); got != "renamed" {
			t.Errorf("detached: shown as %q", got)
		}
		second := mustAttach(t, newLocker(t, store, baton.Config{Owner: "two"}), handle)
		close(goOn)
		if lost, ok := errors.AsType[*baton.LostError](<-renamed); !ok || lost.Cause != baton.Detached {
			t.Errorf("Rename of a detached lease: %v", lost)
		}
		if got := shown(t, store, "k"); got != "two" {
			t.Errorf("attached: shown as %q", got)
		}
		if err := second.Rename(t.Context(), "three"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := shown(t, store, "k"); got != "three" || second.Err() != nil {
			t.Errorf("shown as %q, %v", got, second.Err())
		}
		mustUnlock(t, second)
	})
}

// On a store that moves no lock, too, a lease that is attached has the name that it was
// given before.
func TestRenamedHandleWithoutMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		able := struct {
			driver.Locks
			driver.Renamer
		}{store, store}
		lease := mustLock(t, newLocker(t, able, baton.Config{Owner: "one"}), "k")
		if err := lease.Rename(t.Context(), "renamed"); err != nil {
			t.Fatal(err)
		}
		second := mustAttach(t, newLocker(t, able, baton.Config{Owner: "two"}), mustDetach(t, lease))
		if claim, err := second.Claim(); err != nil || claim.Owner != "renamed" || shown(t, store, "k") != "renamed" {
			t.Errorf("the claim says %q, %v; shown as %q", claim.Owner, err, shown(t, store, "k"))
		}
		mustUnlock(t, second)
	})
}

// A store that does not answer does not keep the caller beyond its context, and the
// error does not end the lease. A store that answers later is asked again.
func TestRenameWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		lease := mustLock(t, newLocker(t, store, baton.Config{Owner: "config", TTL: 30 * time.Second}), "k")
		store.onRename = func(ctx context.Context, c driver.Claim, owner string) error {
			<-ctx.Done()
			return errors.Join(driver.ErrUnknown, ctx.Err())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := lease.Rename(ctx, "new"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, baton.ErrLost) || time.Since(began) > time.Second {
			t.Errorf("%v after %v, want the context's error after 1s", err, time.Since(began))
		}
		if claim, err := lease.Claim(); err != nil || claim.Owner != "config" {
			t.Errorf("the claim says %q, %v", claim.Owner, err)
		}
		tries := 0
		store.set(func() {
			store.onRename = func(ctx context.Context, c driver.Claim, owner string) error {
				switch tries++; tries {
				case 1:
					return driver.ErrUnavailable
				case 2: // with effect
					return errors.Join(driver.ErrUnknown, store.Store.Rename(ctx, c, owner))
				}
				return store.Store.Rename(ctx, c, owner)
			}
		})
		if err := lease.Rename(t.Context(), "new"); err != nil || tries != 3 {
			t.Errorf("%v after %d tries", err, tries)
		}
		if got := shown(t, store, "k"); got != "new" || lease.Err() != nil {
			t.Errorf("shown as %q, %v", got, lease.Err())
		}
		mustUnlock(t, lease)
	})
}

// A lease is renamed while it becomes a read lock.
func TestRenameMeetsADowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHooked()
		lease := mustLock(t, newLocker(t, store, baton.Config{TTL: 10 * time.Second}), "k")
		store.onDowngrade = func(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
			if err := lease.Rename(ctx, "before"); err != nil {
				t.Errorf("before: %v", err)
			}
			g, err := store.Store.Downgrade(ctx, c, ttl)
			if err := lease.Rename(ctx, "after"); err != nil {
				t.Errorf("after: %v", err)
			}
			return g, err
		}
		if err := lease.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := shown(t, store, "k"); got != "after" || lease.Err() != nil {
			t.Errorf("shown as %q, %v", got, lease.Err())
		}
		mustUnlock(t, lease)
	})
}
