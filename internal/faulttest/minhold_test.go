package faulttest

import (
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton"
)

// A lock with a MinHold stays taken for that time, though its holder has unlocked it and
// its store is closed, and though the process renews other leases; and no longer than that.
func TestMinHoldOutlivesItsProcess(t *testing.T) {
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
		began := time.Now()
		lease, err := l.Lock(t.Context(), "kept", baton.MinHold(hold))
		if store.Traits().Sessions {
			if !errors.Is(err, baton.ErrUnsupported) {
				t.Errorf("a store that ties locks to processes: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(); err != nil {
			t.Fatal(err)
		}
		if _, err := waiter.TryLock(t.Context(), "kept"); !errors.Is(err, baton.ErrHeld) {
			t.Errorf("right after the unlock: %v", err)
		}
		time.AfterFunc(hold/2, func() { store.Close() })
		next, err := waiter.Lock(t.Context(), "kept")
		if err != nil {
			t.Fatal(err)
		}
		// Clocks of whole milliseconds may round either end.
		if d := time.Since(began); d < hold-5*time.Millisecond || d > hold+ttl+5*time.Second {
			t.Errorf("kept for %v", d)
		}
		if err := next.Unlock(); err != nil {
			t.Error(err)
		}
	})
}
