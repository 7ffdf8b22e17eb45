package scale

import "time"

// plan says how much is measured.
type plan struct {
	ttl       time.Duration // of leases: renewed every third of it
	patience  time.Duration // how long taking leases, or standing in the queue, may last
	most      time.Duration // how long callers go on as fast as they can
	open      time.Duration // one open-loop measurement
	loads     []float64     // of open-loop measurements, as parts of the most
	keys      int           // that pairs are drawn from
	limitKeys []int
	leases    []int
	memory    []int // leases, on memory
	waiters   []int
	local     int // waiters in one local queue, and clients of one agent
	waiting   time.Duration
	drain     time.Duration // the most that hand-overs are counted for
	processes []int
	each      int // leases of a process
	periods   int // renewals of a process that is alone
}

const (
	callers = 64  // that go on as fast as they can
	beside  = 0.2 // the load of pairs that are measured beside leases
)

var full = plan{
	ttl: 9 * time.Second, patience: 40 * time.Second, most: 1500 * time.Millisecond, open: 2 * time.Second, loads: []float64{0.1, 0.5, 0.8}, keys: 1_000_000, limitKeys: []int{1, 100_000},
	leases: []int{1, 100, 10_000, 100_000}, memory: []int{1, 100, 10_000, 100_000, 1_000_000},
	waiters: []int{10, 100, 1000, 10_000}, local: 1000, waiting: 2 * time.Second, drain: 2 * time.Second,
	processes: []int{1, 100}, each: 10, periods: 8,
}

// small proves in a few seconds that the program works.
var small = plan{
	ttl: 900 * time.Millisecond, patience: 10 * time.Second, most: 100 * time.Millisecond, open: 200 * time.Millisecond, loads: []float64{0.1, 0.5}, keys: 1000, limitKeys: []int{1, 100},
	leases: []int{1, 300}, memory: []int{1, 300},
	waiters: []int{5}, local: 20, waiting: 200 * time.Millisecond, drain: 200 * time.Millisecond,
	processes: []int{2}, each: 3, periods: 1,
}
