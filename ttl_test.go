package baton_test

import (
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// narrow is a store that accepts few TTLs.
type narrow struct {
	driver.Locks
	min, max time.Duration
}

func (n narrow) Traits() driver.Traits {
	t := n.Locks.Traits()
	t.MinTTL, t.MaxTTL = n.min, n.max
	return t
}

// The default TTL is fitted to the store; a configured one is not.
func TestDefaultTTL(t *testing.T) {
	for _, c := range []struct {
		min, max, delay, want time.Duration
	}{
		{0, 0, 0, 15 * time.Second},
		{time.Second, time.Minute, 0, 15 * time.Second},
		{2 * time.Second, 10 * time.Second, 0, 10 * time.Second},
		{20 * time.Second, 0, 0, 20 * time.Second},
		{2 * time.Second, 10 * time.Second, 3 * time.Second, 7 * time.Second},
	} {
		store := narrow{memstore.New(), c.min, c.max}
		l := newLocker(t, store, baton.Config{LockDelay: c.delay})
		lease := mustLock(t, l, "k")
		if left := time.Until(lease.Deadline()); left > c.want*9/10 || left < c.want*9/10-time.Second {
			t.Errorf("%v to %v, LockDelay %v: the lease lasts %v, want nine tenths of %v", c.min, c.max, c.delay, left, c.want)
		}
		mustUnlock(t, lease)
	}
	store := narrow{memstore.New(), 2 * time.Second, 10 * time.Second}
	for _, cfg := range []baton.Config{{TTL: baton.DefaultTTL}, {TTL: time.Second}, {LockDelay: 9 * time.Second}} {
		_, err := baton.New(store, cfg)
		if bad, ok := errors.AsType[*baton.ConfigError](err); !ok || bad.Field != "TTL" {
			t.Errorf("%v and a LockDelay of %v: %v", cfg.TTL, cfg.LockDelay, err)
		}
	}
}
