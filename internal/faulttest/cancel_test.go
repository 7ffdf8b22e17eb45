//go:build linux

package faulttest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
)

// Waiters of two processes give up just when they may be granted. No permit is lost
// with them: what was granted to a waiter that has left is released, not left to
// expire. BATON_RACES=100000 makes more of it.
func TestWaitersThatGiveUpLoseNoPermit(t *testing.T) {
	testserver.Long(t)
	const permits = 3
	races := int64(fromEnv("BATON_RACES", 400))
	onEveryStore(t, 2*time.Second, func(t *testing.T, url string) {
		store := openStore(t, url)
		if !store.Traits().Permits {
			return // it says so, and the contract looks whether it is true
		}
		ttl := min(time.Minute, store.Traits().MaxTTL) // long, so that what is lost is missed
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(races)*20*time.Millisecond)
		defer cancel()
		lockers := []*baton.Locker{newLocker(t, url, baton.Config{TTL: ttl}), newLocker(t, url, baton.Config{TTL: ttl})}
		key := t.Name() + "/permits"
		var left, granted, gaveUp atomic.Int64
		left.Store(races)
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 8))
				patience := 10 * time.Millisecond // comes to be about what a turn takes
				for left.Add(-1) >= 0 {
					impatient, cancel := context.WithTimeout(ctx, patience)
					lease, err := lockers[g%2].Lock(impatient, key, baton.Permits(1+rng.IntN(permits), permits))
					cancel()
					switch {
					case err == nil:
						granted.Add(1)
						patience -= patience / 3
						if err := lease.Unlock(); err != nil {
							t.Error(err)
						}
					case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
						gaveUp.Add(1)
						patience += patience / 8
					default:
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if granted.Load() == 0 || gaveUp.Load() == 0 {
			t.Fatalf("%d were granted, %d gave up: nothing raced", granted.Load(), gaveUp.Load())
		}
		soon, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		all, err := lockers[0].Lock(soon, key, baton.Permits(permits, permits))
		if err != nil {
			t.Fatalf("%d were granted, %d gave up, and then not all permits could be had: %v", granted.Load(), gaveUp.Load(), err)
		}
		if _, err := lockers[1].TryLock(soon, key, baton.Permits(1, permits)); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("one more than there are: %v", err)
		}
		if err := all.Unlock(); err != nil {
			t.Error(err)
		}
	})
}
