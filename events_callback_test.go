package baton_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/memstore"
)

// Functions of Events may use the Locker that calls them, also about the same key: no
// mutex is locked. A bubble would see those that wait for each other.
func TestEventsMayUseTheLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *baton.Locker
		var mu sync.Mutex
		used := map[string]int{}
		use := func(what string, again func(ctx context.Context, e baton.LockEvent)) func(context.Context, baton.LockEvent) {
			return func(ctx context.Context, e baton.LockEvent) {
				if e.Key != "k" { // a function that always asks again never ends
					return
				}
				mu.Lock()
				used[what]++
				mu.Unlock()
				if _, err := l.Inspect(t.Context(), e.Key); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				mustUnlock(t, mustLock(t, l, "other than k"))
				again(ctx, e)
			}
		}
		held := func(ctx context.Context, e baton.LockEvent) {
			if _, err := l.TryLock(ctx, e.Key); !errors.Is(err, baton.ErrHeld) {
				t.Errorf("the lock is taken: %v", err)
			}
		}
		free := func(ctx context.Context, e baton.LockEvent) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			if lease, err := l.Lock(ctx, e.Key+" again"); err != nil {
				t.Error(err)
			} else {
				mustUnlock(t, lease)
			}
		}
		store := memstore.New()
		defer store.Close()
		l = newLocker(t, store, baton.Config{TTL: 3 * time.Second, Events: &baton.Events{
			Waiting:  use("waiting", held),
			Acquired: use("acquired", held),
			Failed:   use("failed", free),
			Lost:     use("lost", free),
			Released: use("released", free),
			Renewed: func(context.Context, baton.RenewalEvent) {
				mu.Lock()
				used["renewed"]++
				mu.Unlock()
				mustUnlock(t, mustLock(t, l, "renewed"))
			},
		}})
		first := mustLock(t, l, "k")
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { mustUnlock(t, mustLock(t, l, "k")) })
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := l.Lock(ctx, "k"); err == nil {
				t.Error("a lock that is held")
			}
		})
		time.Sleep(5 * time.Second)
		mustUnlock(t, first)
		all.Wait()
		lease := mustLock(t, l, "k")
		if _, err := l.Break(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		<-lease.Done()
		_ = lease.Unlock() // it was lost
		synctest.Wait()
		time.Sleep(time.Minute)
		for what, n := range map[string]int{"waiting": 4, "acquired": 5, "lost": 1, "released": 4, "failed": 1 + 4 + 5} {
			if used[what] != n {
				t.Errorf("%s: %d times, want %d", what, used[what], n)
			}
		}
		if used["renewed"] == 0 {
			t.Error("nothing was renewed")
		}
	})
}

// A program that recovers from a panic of its Events, as net/http does, does not hold a
// lock that nobody can unlock, and its local queue goes on.
func TestPanicOfEventsLeavesNoLock(t *testing.T) {
	for what, c := range map[string]struct {
		held  bool // by this process
		away  bool // by another
		panic func(*baton.Events, func(context.Context, baton.LockEvent))
		lock  func(*baton.Locker, context.Context) error
	}{
		"acquired":           {lock: lockOne, panic: onAcquired},
		"waiting here":       {held: true, lock: lockOne, panic: onWaiting},
		"waiting there":      {away: true, lock: lockOne, panic: onWaiting},
		"handed over":        {held: true, lock: lockOne, panic: onAcquired},
		"all at once":        {lock: lockBoth, panic: onAcquired},
		"one after another":  {held: true, lock: lockBoth, panic: onAcquired},
		"one after another!": {away: true, lock: lockBoth, panic: onWaiting},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				defer store.Close()
				armed := false
				var events baton.Events
				c.panic(&events, func(_ context.Context, e baton.LockEvent) {
					if armed && e.Key == "k" {
						panic("planted")
					}
				})
				l, other := newLocker(t, store, baton.Config{Events: &events}), newLocker(t, store, baton.Config{})
				var before *baton.Lease
				switch {
				case c.held:
					before = mustLock(t, l, "k")
				case c.away:
					before = mustLock(t, other, "k")
				}
				armed = true
				over := make(chan any)
				go func() {
					defer func() { over <- recover() }()
					t.Errorf("Lock returned %v", c.lock(l, t.Context()))
				}()
				synctest.Wait()
				behind := make(chan struct{})
				if before != nil {
					go func() { // it waits behind, if the call still waits
						defer close(behind)
						if lease, err := other.Lock(t.Context(), "k"); err == nil {
							_ = lease.Unlock()
						}
					}()
					synctest.Wait()
					mustUnlock(t, before)
					<-behind
				}
				if got := <-over; got != "planted" {
					t.Errorf("recovered %v", got)
				}
				armed = false
				time.Sleep(time.Minute)
				for _, key := range []string{"a", "k"} {
					for _, locker := range []*baton.Locker{l, other} {
						lease, err := locker.TryLock(t.Context(), key)
						if err != nil {
							t.Fatal(err)
						}
						mustUnlock(t, lease)
					}
				}
			})
		})
	}
}

func onAcquired(e *baton.Events, f func(context.Context, baton.LockEvent)) { e.Acquired = f }
func onWaiting(e *baton.Events, f func(context.Context, baton.LockEvent))  { e.Waiting = f }

func lockOne(l *baton.Locker, ctx context.Context) error {
	_, err := l.Lock(ctx, "k")
	return err
}

func lockBoth(l *baton.Locker, ctx context.Context) error {
	_, err := l.LockAll(ctx, []string{"a", "k"})
	return err
}
