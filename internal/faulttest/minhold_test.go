//go:build linux

package faulttest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
)

// A lock with a MinHold stays taken for that time, though its holder has unlocked it and
// its store is closed, though the process renews other leases, and though it had asked
// for something else when it unlocked; and no longer than that.
func TestMinHoldOutlivesItsProcess(t *testing.T) {
	testserver.Long(t)
	const ttl, hold = 3 * time.Second, 6 * time.Second
	onEveryStore(t, ttl, func(t *testing.T, url string) {
		store, other := openStore(t, url), openStore(t, url)
		l, err := baton.New(store, baton.Config{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		waiter, err := baton.New(other, baton.Config{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Lock(t.Context(), "beside"); err != nil {
			t.Fatal(err)
		}
		if store.Traits().Sessions {
			if _, err := l.Lock(t.Context(), "kept", baton.MinHold(hold)); !errors.Is(err, baton.ErrUnsupported) {
				t.Errorf("a store that ties locks to processes: %v", err)
			}
			return
		}
		var all, asking sync.WaitGroup
		for key, asks := range map[string]func(*baton.Lease) error{
			"kept":      nil,
			"extended":  func(lease *baton.Lease) error { _, err := lease.Extend(context.Background()); return err },
			"read only": func(lease *baton.Lease) error { return lease.Downgrade(context.Background()) },
		} {
			began := time.Now()
			lease, err := l.Lock(t.Context(), key, baton.MinHold(hold))
			if err != nil {
				t.Fatal(err)
			}
			if asks != nil {
				sent := make(chan struct{})
				asking.Go(func() {
					close(sent)
					if err := asks(lease); err != nil && !errors.Is(err, baton.ErrLost) { // it may come after the unlock
						t.Errorf("%s: %v", key, err)
					}
				})
				<-sent
			}
			if err := lease.Unlock(); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			if _, err := waiter.TryLock(t.Context(), key); !errors.Is(err, baton.ErrHeld) {
				t.Errorf("%s, right after the unlock: %v", key, err)
			}
			all.Go(func() {
				next, err := waiter.Lock(t.Context(), key)
				if err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				// Clocks of whole milliseconds may round either end.
				if d := time.Since(began); d < hold-5*time.Millisecond || d > hold+ttl+5*time.Second {
					t.Errorf("%s: kept for %v", key, d)
				}
				if err := next.Unlock(); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			})
		}
		asking.Wait()
		time.AfterFunc(hold/2, func() { store.Close() })
		all.Wait()
	})
}
