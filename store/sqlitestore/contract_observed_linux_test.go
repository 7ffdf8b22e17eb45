package sqlitestore

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

// A store whose requests are told keeps the whole contract.
func TestContractObserved(t *testing.T) {
	testserver.Long(t)
	var told atomic.Int64
	wrap := func(l driver.Locks) driver.Locks {
		return observe.Locks(l, observe.Events{Request: func(context.Context, observe.RequestEvent) { told.Add(1) }})
	}
	t.Cleanup(func() {
		if told.Load() < 1000 {
			t.Errorf("%d requests were told", told.Load())
		}
	})
	t.Run("locks", func(t *testing.T) { drivertest.Locks(t, lockHarness(wrap)) })
	t.Run("limits", func(t *testing.T) {
		drivertest.Limits(t, drivertest.LimitHarness{Open: func(t drivertest.T, n int) []limits.Store {
			return abilities[limits.Store](t, handles(t, n), wrap)
		}})
	})
	t.Run("records", func(t *testing.T) {
		drivertest.Records(t, drivertest.RecordHarness{Open: func(t drivertest.T, n int) []driver.Records {
			return abilities[driver.Records](t, handles(t, n), wrap)
		}})
	})
}

func abilities[T any](t drivertest.T, stores []driver.Locks, wrap func(driver.Locks) driver.Locks) []T {
	all := make([]T, len(stores))
	for i, l := range stores {
		a, ok := driver.As[T](wrap(l))
		if !ok {
			t.Fatalf("the wrapper hides an ability")
		}
		all[i] = a
	}
	return all
}
