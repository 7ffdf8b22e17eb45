package memstore_test

import (
	"testing"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/store/memstore"
)

func limitHarness(fake bool, steps int) drivertest.LimitHarness {
	return drivertest.LimitHarness{
		FakeTime: fake,
		Steps:    steps,
		Open: func(_ drivertest.T, n int) []limits.Store {
			s := memstore.New()
			all := make([]limits.Store, n)
			for i := range all {
				all[i] = s
			}
			return all
		},
		Kept: func(_ drivertest.T, l limits.Store) int { return l.(*memstore.Store).Limits() },
	}
}

func TestLimits(t *testing.T)           { drivertest.Limits(t, limitHarness(true, 3000)) }
func TestLimitsInRealTime(t *testing.T) { drivertest.Limits(t, limitHarness(false, 100)) }
