package scale

import "time"

// plan is how much to measure.
type plan struct {
	ttl       time.Duration // of leases: renewed every third of it
	patience  time.Duration // for taking leases, or positions in the queue
	most      time.Duration // for callers that work as fast as they can
	open      time.Duration // one open-loop measurement
	loads     []float64     // of open-loop measurements, as fractions of the highest rate
	keys      int           // pairs are drawn from that many
	limitKeys []int
	leases    []int
	memory    []int // leases, on memory
	waiters   []int
	local     int // waiters in one local queue, and clients of one agent
	waiting   time.Duration
	drain     time.Duration // the longest time for counting hand-overs
	processes []int
	each      int // leases of a process
	periods   int // renewals of a single process
}

const (
	callers = 64  // that work as fast as they can
	beside  = 0.2 // the load of pairs beside leases
)

var full = plan{
	ttl: 9 * time.Second, patience: 40 * time.Second, most: 1500 * time.Millisecond, open: 2 * time.Second, loads: []float64{0.1, 0.5, 0.8}, keys: 1_000_000, limitKeys: []int{1, 100_000},
	leases: []int{1, 100, 10_000, 100_000}, memory: []int{1, 100, 10_000, 100_000, 1_000_000},
	waiters: []int{10, 100, 1000, 10_000}, local: 1000, waiting: 2 * time.Second, drain: 2 * time.Second,
	processes: []int{1, 100}, each: 10, periods: 8,
}

// small shows within seconds that the program works.
var small = plan{
	ttl: 900 * time.Millisecond, patience: 10 * time.Second, most: 100 * time.Millisecond, open: 200 * time.Millisecond, loads: []float64{0.1, 0.5}, keys: 1000, limitKeys: []int{1, 100},
	leases: []int{1, 300}, memory: []int{1, 300},
	waiters: []int{5}, local: 20, waiting: 200 * time.Millisecond, drain: 200 * time.Millisecond,
	processes: []int{2}, each: 3, periods: 1,
}
