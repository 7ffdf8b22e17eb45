package memstore_test

import (
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/store/memstore"
)

func recordHarness(fake bool) drivertest.RecordHarness {
	return drivertest.RecordHarness{
		FakeTime: fake,
		Open: func(_ drivertest.T, n int) []driver.Records {
			s := memstore.New()
			all := make([]driver.Records, n)
			for i := range all {
				all[i] = s
			}
			return all
		},
		Kept: func(_ drivertest.T, r driver.Records) int { return r.(*memstore.Store).Records() },
	}
}

func TestRecords(t *testing.T)           { drivertest.Records(t, recordHarness(true)) }
func TestRecordsInRealTime(t *testing.T) { drivertest.Records(t, recordHarness(false)) }
