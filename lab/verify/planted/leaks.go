package planted

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

func leavesGoroutine(s driver.Store) driver.Store {
	return self{Store: s, close: func() error {
		go func() { select {} }()
		return s.Close()
	}}
}

func leavesConnection(s driver.Store) driver.Store {
	return self{Store: s, close: func() error { return nil }}
}

func leavesDescriptor(s driver.Store) driver.Store {
	return self{Store: s, close: func() error {
		_, err := syscall.Open(os.DevNull, syscall.O_RDONLY, 0)
		return errors.Join(err, s.Close())
	}}
}

// leaves locks another key at the first release, and forgets it.
func leaves(name func(key string) string) func(driver.Store) driver.Store {
	return func(s driver.Store) driver.Store {
		var once sync.Once
		return self{Store: s, release: func(ctx context.Context, c driver.Claim) error {
			once.Do(func() {
				other := driver.Claim{Key: name(c.Key), ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole}
				_, _ = s.Acquire(context.Background(), driver.Request{Claim: other, TTL: time.Hour}) // another client may have been faster
			})
			return s.Release(ctx, c)
		}}
	}
}

func aside(key string) string { return key + ".aside" }

func elsewhere(string) string { return "elsewhere" }

// remembersKeys keeps memory for every key.
func remembersKeys(s driver.Store) driver.Store {
	var known sync.Map
	return self{Store: s, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		if _, old := known.Load(r.Key); !old {
			known.Store(r.Key, make([]byte, 500))
		}
		return s.Acquire(ctx, r)
	}}
}

// leavesRows makes a limit remember each request, for an hour.
func leavesRows(s driver.Store) driver.Store {
	return self{Store: s, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		seen := limits.Take{Key: driver.NewID(), Limit: limits.Limit{Algorithm: limits.FixedWindow, N: 1, Period: time.Hour}, Cost: 1}
		_, _ = s.(limits.Store).Take(ctx, limits.Request{Takes: []limits.Take{seen}}) // the caller may have canceled
		return s.Acquire(ctx, r)
	}}
}
