package etcdstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// With very many claims the housekeeping takes longer than the pause between two runs.
// It leaves most of the time to calls all the same, however often it is due.
func TestHousekeepingLeavesTime(t *testing.T) {
	s := &Store{keys: make(map[string]*lock)}
	for i := range 200_000 {
		key := fmt.Sprint(i)
		k := &lock{key: key}
		k.all = map[*claim]bool{{Claim: driver.Claim{Key: key}, lock: k, held: true, deadline: bootclock.Now().Add(time.Hour)}: true}
		s.keys[key] = k
	}
	waited, began := time.Duration(0), time.Now()
	for time.Since(began) < 2*time.Second {
		asked := time.Now()
		s.mu.Lock()
		waited += time.Since(asked)
		s.dueLocked(bootclock.Now()) // as after every removal of a name
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	s.mu.Lock()
	s.house.stopLocked()
	s.mu.Unlock()
	if part := waited.Seconds() / time.Since(began).Seconds(); part > 0.5 {
		t.Errorf("calls waited for the housekeeping for %.0f %% of the time", 100*part)
	}
}
