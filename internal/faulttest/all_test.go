//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// onEveryStore is onStores, and ZooKeeper with the shortest sessions that allow
// such a ttl.
func onEveryStore(t *testing.T, ttl time.Duration, f func(t *testing.T, url string)) {
	onStores(t, f)
	t.Run("zookeeper", func(t *testing.T) {
		testserver.Long(t)
		t.Parallel()
		server := testserver.ZooKeeper(t, fmt.Sprintf("tickTime=%d", (ttl/10).Milliseconds())) // ten to twenty make a session
		f(t, fmt.Sprintf("zk://%s/all?session=%v", server.Addr, 2*ttl))
	})
}

// A thousand sets of keys, of which most overlap, wanted by many goroutines of
// several processes in any order: all are served, and no two believe that they
// hold a key.
func TestLockAllCrowd(t *testing.T) {
	testserver.Long(t)
	const ttl = 10 * time.Second
	sets := 1000
	if testing.Short() {
		sets = 100
	}
	onEveryStore(t, ttl, func(t *testing.T, url string) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var keys [16]string
		var inside [16]atomic.Pointer[baton.Leases]
		var last [16]atomic.Int64
		for i := range keys {
			keys[i] = fmt.Sprint(t.Name(), "/", i)
		}
		lockers := make([]*baton.Locker, 4)
		for i := range lockers {
			lockers[i] = newLocker(t, url, baton.Config{TTL: ttl})
		}
		section := func(l *baton.Locker, set []int) error {
			var names []string
			for _, i := range set {
				names = append(names, keys[i])
			}
			all, err := l.LockAll(ctx, names)
			if err != nil {
				return err
			}
			began := time.Now()
			for _, i := range set {
				if other := inside[i].Swap(all); other != nil && other.Err() == nil && all.Err() == nil {
					t.Errorf("%s has two holders", keys[i])
				}
				if token := all.Token(keys[i]); last[i].Swap(token) >= token {
					t.Errorf("%s: the tokens do not rise", keys[i])
				}
			}
			for _, i := range set {
				inside[i].CompareAndSwap(all, nil)
			}
			// Nothing is lost within a small part of the TTL, but where a store has granted
			// on its own it is one of driver.ClaimTTL, until the first renewal.
			err = all.Unlock()
			if took := time.Since(began); errors.Is(err, baton.ErrLost) && took > driver.ClaimTTL/6 {
				t.Logf("lost, on a machine that took %v to unlock: %v", took, err)
				return nil
			}
			return err
		}
		var next atomic.Int64
		var wg sync.WaitGroup
		for g := range 32 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 5))
				for next.Add(1) <= int64(sets) {
					if err := section(lockers[g%len(lockers)], rng.Perm(len(keys))[:1+rng.IntN(4)]); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

// A process dies while it holds one key and waits for another: both are free
// within its TTL.
func TestKilledHalfWayThroughLockAll(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	onEveryStore(t, ttl, func(t *testing.T, url string) {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		locks := newLocker(t, url, baton.Config{TTL: ttl})
		a, b := t.Name()+"/a", t.Name()+"/b"
		held, err := locks.Lock(ctx, b)
		if err != nil {
			t.Fatal(err)
		}
		child := startChild(t, url, b+","+a, ttl)
		awaitWaiters(t, locks, b, 1)
		if _, err := locks.TryLock(ctx, a); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("half-way through, the first key: %v", err)
		}
		killed := time.Now()
		child.signal(t, syscall.SIGKILL)
		if err := held.Unlock(); err != nil {
			t.Error(err)
		}
		all, err := locks.LockAll(ctx, []string{a, b})
		if err != nil {
			t.Fatal(err)
		}
		// On ZooKeeper a session; the rest is for a busy machine.
		if d := time.Since(killed); d > 2*ttl+10*time.Second {
			t.Errorf("free %v after the kill", d)
		}
		if err := all.Unlock(); err != nil {
			t.Error(err)
		}
	})
}
