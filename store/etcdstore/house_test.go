package etcdstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// With very many claims a run of the housekeeping takes longer than the pause between two
// runs. It leaves most of the time to calls all the same, however often it is due.
func TestHousekeepingLeavesTime(t *testing.T) {
	s := &Store{keys: make(map[string]*lock)}
	for i := range 20_000 {
		key := fmt.Sprint(i)
		k := &lock{key: key}
		k.all = map[*claim]bool{{Claim: driver.Claim{Key: key}, lock: k, held: true, deadline: bootclock.Now().Add(time.Hour)}: true}
		s.keys[key] = k
	}
	for range 10 { // this test may stand still in the middle
		began := bootclock.Now()
		s.keepHouse()
		s.mu.Lock()
		ended := bootclock.Now()
		s.dueLocked(ended) // as after every removal of a name
		pause := s.house.at.Sub(ended)
		s.house.timer.Stop()
		s.mu.Unlock()
		if pause > 5*ended.Sub(began) {
			return
		}
	}
	t.Error("the next run begins before calls had five times as long as the last one took")
}
