package memstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/store/memstore"
)

func TestContract(t *testing.T) {
	drivertest.Locks(t, drivertest.Harness{
		FakeTime: true,
		Open: func(t drivertest.T, n int) []driver.Locks {
			s := memstore.New() // one process, so all handles are one
			t.Cleanup(func() { s.Close() })
			return handles(s, n)
		},
		Restart: func(t drivertest.T, locks []driver.Locks) {
			time.Sleep(time.Second) // as the next process takes some time to start
			s := memstore.New()
			t.Cleanup(func() { s.Close() })
			copy(locks, handles(s, len(locks)))
		},
		Delete: func(_ drivertest.T, key string, l driver.Locks) { l.(*memstore.Store).Forget(key) },
	})
}

func handles(s *memstore.Store, n int) []driver.Locks {
	locks := make([]driver.Locks, n)
	for i := range locks {
		locks[i] = s
	}
	return locks
}

// A store whose requests are told keeps the whole contract.
func TestContractObserved(t *testing.T) {
	var told atomic.Int64
	events := observe.Events{Request: func(context.Context, observe.RequestEvent) { told.Add(1) }}
	open := func(t drivertest.T, n int) []driver.Locks {
		s := memstore.New()
		t.Cleanup(func() { s.Close() })
		return repeated(n, observe.Locks(s, events))
	}
	inner := func(l driver.Locks) *memstore.Store {
		return l.(interface{ Unwrap() driver.Locks }).Unwrap().(*memstore.Store)
	}
	t.Run("locks", func(t *testing.T) {
		drivertest.Locks(t, drivertest.Harness{
			FakeTime: true,
			Open:     open,
			Restart: func(t drivertest.T, locks []driver.Locks) {
				time.Sleep(time.Second) // as the next process takes some time to start
				copy(locks, open(t, len(locks)))
			},
			Delete: func(_ drivertest.T, key string, l driver.Locks) { inner(l).Forget(key) },
		})
	})
	t.Run("limits", func(t *testing.T) {
		h := limitHarness(true, 300)
		h.Open = func(_ drivertest.T, n int) []limits.Store {
			return repeated(n, observe.Limits(memstore.New(), events))
		}
		h.Kept = func(_ drivertest.T, l limits.Store) int { return inner(l.(driver.Locks)).Limits() }
		drivertest.Limits(t, h)
	})
	t.Run("records", func(t *testing.T) {
		h := recordHarness(true)
		var wrapped sync.Map // driver.Records: the store beneath
		h.Open = func(t drivertest.T, n int) []driver.Records {
			store := open(t, 1)[0]
			r, ok := driver.As[driver.Records](store)
			if !ok {
				t.Fatalf("the wrapper hides the records")
			}
			wrapped.Store(r, inner(store))
			return repeated(n, r)
		}
		h.Kept = func(_ drivertest.T, r driver.Records) int {
			store, _ := wrapped.Load(r)
			return store.(*memstore.Store).Records()
		}
		drivertest.Records(t, h)
	})
	if told.Load() < 1000 {
		t.Errorf("%d requests were told", told.Load())
	}
}

// repeated is n handles on one store.
func repeated[T any](n int, handle T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = handle
	}
	return all
}
