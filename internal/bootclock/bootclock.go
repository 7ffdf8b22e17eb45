// Package bootclock is the clock of leases. Go's monotonic clock stops while a machine is
// suspended, a server's does not: after a suspension a holder would rely on a lease that
// ended long ago. This clock is time.Now plus all the time spent suspended since the
// process began. Under testing/synctest it follows the bubble's fake time.
//
// To ask the system for the suspended time takes two system calls; time.Now takes none.
// time.Now reads two clocks whose difference is constant: both are slewed alike, and a
// suspension moves only the wall clock, by just the time suspended. So the system is
// asked when the difference has changed, and every staleAfter. A reading of time.Now that
// was interrupted between its two clocks is no worse than one interrupted right after the
// first.
//
// A suspension goes unnoticed only if the wall clock is set back by the same time, within
// tolerance, before any goroutine calls Now, and then for staleAfter at most.
// tolerance, before any goroutine looks, and then for staleAfter at most.
package bootclock

import (
	"sync/atomic"
	"time"
)

const (
	// staleAfter is less than the least margin of a lease, 10 ms.
	staleAfter = 5 * time.Millisecond

	// tolerance is the permitted change of the difference of the two clocks: they are
	// read one after the other.
	tolerance = 100 * time.Microsecond
)

var (
	started  = time.Now()
	system   = newClock(suspended)
	injected atomic.Int64 // by Suspend
)

// Now is the present instant. Only differences between its results have a meaning.
func Now() time.Time {
	t := time.Now()
	asleep := system.asleep(time.Duration(t.UnixNano()), t.Sub(started))
	return t.Add(asleep + time.Duration(injected.Load()))
}

// Suspend makes the clock jump for good as if the machine had been suspended for d. It is
// for tests.
func Suspend(d time.Duration) { injected.Add(int64(d)) }

// A clock returns how long the machine was suspended since the clock was made.
type clock struct {
	suspended func() time.Duration // since the machine was booted
	base      time.Duration
	last      atomic.Pointer[reading]
}

// A reading is the system's answer, and the two clocks shortly before.
type reading struct{ wall, mono, asleep time.Duration }

func newClock(suspended func() time.Duration) *clock {
	c := &clock{suspended: suspended, base: suspended()}
	c.last.Store(&reading{mono: -2 * staleAfter})
	return c
}

// asleep is how long the machine was suspended, by the two clocks of an instant. It never
// decreases.
func (c *clock) asleep(wall, mono time.Duration) time.Duration {
	last := c.last.Load()
	age := mono - last.mono
	if age.Abs() <= staleAfter && (wall-last.wall-age).Abs() <= tolerance {
		return last.asleep
	}
	r := &reading{wall, mono, c.suspended() - c.base}
	for {
		r.asleep = max(r.asleep, last.asleep)
		if c.last.CompareAndSwap(last, r) {
			return r.asleep
		}
		last = c.last.Load()
	}
}
