package metrics

import (
	"sync"
	"time"
)

// oldest keeps the times of waiting calls, to report the age of the oldest wait. The two
// ends of a wait have the same time; waits of the same place and time are
// indistinguishable.
type oldest struct {
	mu  sync.Mutex
	all map[place]map[time.Time]int // how many calls of a place have waited since then
}

func newOldest() *oldest { return &oldest{all: make(map[place]map[time.Time]int)} }

func (o *oldest) begin(p place, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	waits := o.all[p]
	if waits == nil {
		waits = make(map[time.Time]int)
		o.all[p] = waits
	}
	waits[since]++
}

func (o *oldest) end(p place, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	waits := o.all[p]
	if waits[since] > 1 {
		waits[since]--
		return
	}
	delete(waits, since)
}

// look reports the age of the oldest wait of each place.
func (o *oldest) look(series func(age float64, labels ...string)) {
	now := time.Now()
	o.mu.Lock()
	ages := make(map[place]time.Duration, len(o.all))
	for p, waits := range o.all {
		ages[p] = 0
		for since := range waits {
			ages[p] = max(ages[p], now.Sub(since))
		}
	}
	o.mu.Unlock()
	for p, age := range ages {
		series(age.Seconds(), p.store, p.class)
	}
}
