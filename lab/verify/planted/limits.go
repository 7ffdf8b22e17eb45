package planted

import (
	"context"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/store/memstore"
)

func limiting(s driver.Store, take func(context.Context, limits.Request) (limits.Taken, error)) driver.Store {
	return self{Store: s, take: take}
}

func ownLimits(s driver.Store) driver.Store { return limiting(s, memstore.New().Take) }

func takesNothing(s driver.Store) driver.Store {
	return limiting(s, func(ctx context.Context, r limits.Request) (limits.Taken, error) {
		for i := range r.Takes {
			r.Takes[i].Cost = 0
		}
		return s.(limits.Store).Take(ctx, r)
	})
}

// remembersAllowed answers from memory for half a second.
func remembersAllowed(s driver.Store) driver.Store {
	type memory struct {
		taken limits.Taken
		until time.Time
	}
	var mu sync.Mutex
	known := map[string]memory{}
	return limiting(s, func(ctx context.Context, r limits.Request) (limits.Taken, error) {
		mu.Lock()
		m, ok := known[r.Takes[0].Key]
		mu.Unlock()
		if ok && time.Now().Before(m.until) {
			return m.taken, nil
		}
		d, err := s.(limits.Store).Take(ctx, r)
		if err == nil && d.OK {
			mu.Lock()
			known[r.Takes[0].Key] = memory{d, time.Now().Add(500 * time.Millisecond)}
			mu.Unlock()
		}
		return d, err
	})
}

// givesTurnsAnyway reserves a turn even for a request that it refuses because the turn is too late.
func givesTurnsAnyway(s driver.Store) driver.Store {
	return limiting(s, func(ctx context.Context, r limits.Request) (limits.Taken, error) {
		longest := r.TurnWithin
		r.TurnWithin = 0
		t, err := s.(limits.Store).Take(ctx, r)
		if err == nil && t.OK && longest > 0 && t.Wait > longest {
			t.OK, t.Retry, t.Wait = false, t.Wait-longest, 0
			for i := range t.Limits {
				t.Limits[i].OK = false
			}
		}
		return t, err
	})
}

// looksGiveBack lets a look return part of what was taken to the limit.
func looksGiveBack(s driver.Store) driver.Store {
	return limiting(s, func(ctx context.Context, r limits.Request) (limits.Taken, error) {
		store := s.(limits.Store)
		t, err := store.Take(ctx, r)
		if err == nil && r.Takes[0].Cost == 0 {
			back := limits.Request{Mode: limits.GiveBack, At: t.At, Takes: append([]limits.Take(nil), r.Takes...)}
			back.Takes[0].Cost = 3
			_, _ = store.Take(ctx, back) // an error means that nothing was taken
		}
		return t, err
	})
}
