// Package bootclock is the clock that leases are trusted by. Go's monotonic clock
// stands still while a machine is suspended, a server's does not: a holder that wakes
// up would believe in a lease that ended long ago. This clock is time.Now moved forward
// by all the time spent suspended since the process began. Under testing/synctest it
// follows the bubble's fake time.
//
// To ask the system how long it was suspended takes two system calls. time.Now takes
// none, and knows two clocks that differ by a constant: both are slewed alike, and a
// suspension moves the wall clock alone, by just the time suspended. So the system is
// asked when the difference has moved, and every staleAfter. A reading of time.Now that
// was interrupted between its two clocks is no worse than one that was interrupted right
// after the first.
//
// A suspension stays unseen only if the wall clock is set back by the same time, within
// tolerance, before any goroutine looks, and then for staleAfter at most.
package bootclock

import (
	"sync/atomic"
	"time"
)

const (
	// staleAfter is less than the margin, at least 10 ms, by which the trust in a lease
	// ends before the lease does.
	staleAfter = 5 * time.Millisecond

	// tolerance is by how much the difference of the two clocks may move. They are read
	// one after the other.
	tolerance = 100 * time.Microsecond
)

var (
	started  = time.Now()
	system   = newClock(suspended)
	injected atomic.Int64 // by tests
)

// Now is the present instant. Only differences between its results have a meaning.
func Now() time.Time {
	t := time.Now()
	asleep := system.asleep(time.Duration(t.UnixNano()), t.Sub(started))
	return t.Add(asleep + time.Duration(injected.Load()))
}

// Suspend makes the clock jump as if the machine had been suspended for d. The jump is
// not undone. It is for tests.
func Suspend(d time.Duration) { injected.Add(int64(d)) }

// A clock knows for how long the machine was suspended since the clock was made.
type clock struct {
	suspended func() time.Duration // since the machine was booted
	base      time.Duration
	last      atomic.Pointer[reading]
}

// A reading is what the system said, and the two clocks shortly before.
type reading struct{ wall, mono, asleep time.Duration }

func newClock(suspended func() time.Duration) *clock {
	c := &clock{suspended: suspended, base: suspended()}
	c.last.Store(&reading{mono: -2 * staleAfter})
	return c
}

// asleep returns for how long the machine was suspended, by the two clocks of an
// instant. It never falls.
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
