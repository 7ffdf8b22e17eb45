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
