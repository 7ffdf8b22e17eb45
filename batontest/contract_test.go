package batontest_test

import (
	"reflect"
	"testing"

	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/store/memstore"
)

// quiet is a test that nothing fails: the cases of the contract leave locks behind.
type quiet struct {
	testing.TB
	t drivertest.T
}

func (quiet) Helper()            {}
func (quiet) Failed() bool       { return true }
func (quiet) Skipped() bool      { return false }
func (quiet) Log(...any)         {}
func (q quiet) Cleanup(f func()) { q.t.Cleanup(f) }

// A method of memstore that the Store lacks is an ability that programs do not find in
// their tests.
func TestAbilities(t *testing.T) {
	t.Parallel()
	mine, whole := reflect.TypeFor[*batontest.Store](), reflect.TypeFor[*memstore.Store]()
	for m := range whole.Methods() {
		switch m.Name {
		case "Raise", "Life": // of a member of a quorum
		case "Prepare": // goes past Take
			if _, ok := mine.MethodByName(m.Name); ok {
				t.Error("a limiter would go past the faults")
			}
		default:
			if has, ok := mine.MethodByName(m.Name); !ok || has.Type.NumIn() != m.Type.NumIn() || has.Type.NumOut() != m.Type.NumOut() {
				t.Errorf("the Store has no %s%v", m.Name, m.Type)
			}
		}
	}
	if _, ok := mine.MethodByName("Unwrap"); ok {
		t.Error("what it wraps could be asked past the faults")
	}
}

// Without a fault the Store is as good as any other.
func TestContract(t *testing.T) {
	drivertest.Locks(t, drivertest.Harness{
		FakeTime: true,
		Open: func(t drivertest.T, n int) []driver.Locks {
			s := batontest.New(quiet{t: t})
			locks := make([]driver.Locks, n)
			for i := range locks {
				locks[i] = s
			}
			return locks
		},
	})
}

func TestRecords(t *testing.T) {
	drivertest.Records(t, drivertest.RecordHarness{
		FakeTime: true,
		Open: func(t drivertest.T, n int) []driver.Records {
			s := batontest.New(quiet{t: t})
			all := make([]driver.Records, n)
			for i := range all {
				all[i] = s
			}
			return all
		},
	})
}

func TestLimits(t *testing.T) {
	drivertest.Limits(t, drivertest.LimitHarness{
		FakeTime: true, Steps: 200,
		Open: func(t drivertest.T, n int) []limits.Store {
			s := batontest.New(quiet{t: t})
			all := make([]limits.Store, n)
			for i := range all {
				all[i] = s
			}
			return all
		},
	})
}
