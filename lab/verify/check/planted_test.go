package check

import (
	"sync"
	"testing"
	"time"
)

// Broken stores and clients are found, by the check for what they break. How many of the seeds
// find one depends only on the seeds, so the figure is always the same.
func TestPlanted(t *testing.T) {
	t.Parallel()
	const n = 20
	for _, p := range []struct {
		name   string
		bad    defects
		checks []string // each is to find it
		least  int      // in how many seeds
	}{
		{"a store that grants 1 ms too early", defects{earlyGrant: true}, []string{"overlap"}, n / 4},
		{"a counter of tokens that is lost", defects{tokenReset: true}, []string{"tokens", "linear"}, n},
		{"two writers", defects{twoWriters: true}, []string{"overlap", "linear"}, n},
		{"a writer that does not see readers", defects{readersIgnored: true}, []string{"overlap", "linear"}, n},
		{"one permit too many", defects{extraPermit: true}, []string{"overlap", "permits"}, n},
		{"a release of whoever has it", defects{blindRelease: true}, []string{"overlap"}, n * 3 / 4},
		{"a release that does nothing", defects{deafRelease: true}, []string{"refused"}, n / 5},
		{"a position that is forgotten", defects{lostPlace: true}, []string{"waiting"}, n},
		{"a renewal that counts from its answer", defects{renewalFromEnd: true}, []string{"overlap"}, 1},
		{"permits of the dead", defects{leak: true}, []string{"permits"}, n / 4},
		{"a lock of the dead", defects{noExpiry: true}, []string{"waiting"}, n},
		{"a limiter that admits one more", defects{extraAdmit: true}, []string{"windows"}, n * 3 / 4},
		{"a resource that takes every write", defects{openRegister: true}, []string{"writes"}, n},
		{"a client that does not look at the clock", defects{noClock: true}, []string{"overlap"}, n / 2},
	} {
		found := make(map[string]int)
		var mu sync.Mutex
		seeds(n, func(seed uint64) {
			clients := 14
			if p.bad.deafRelease {
				clients = 3 // where there are many, there is always a waiter, and then a refusal says nothing
			}
			f := Run(simulate(seed, p.bad, clients, 4*int64(time.Second)), rules(seed))
			mu.Lock()
			defer mu.Unlock()
			for _, c := range checks(f) {
				found[c]++
			}
		})
		t.Logf("%-42s %v", p.name, found)
		for _, c := range p.checks {
			if found[c] < p.least {
				t.Errorf("%s: %q found it in only %d of %d seeds", p.name, c, found[c], n)
			}
		}
	}
}
