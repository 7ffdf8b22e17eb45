package drivertest_test

import (
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/store/memstore"
)

// The test of a store: all that Baton expects of one. Handles of one keyspace stand for the
// processes of a fleet.
func ExampleLocks() {
	_ = func(t *testing.T) { // TestContract of the store's package
		drivertest.Locks(t, drivertest.Harness{
			Open: func(t drivertest.T, n int) []driver.Locks {
				store := memstore.New()
				t.Cleanup(func() { store.Close() })
				handles := make([]driver.Locks, n)
				for i := range handles {
					handles[i] = store
				}
				return handles
			},
			FakeTime: true,
		})
	}
}
