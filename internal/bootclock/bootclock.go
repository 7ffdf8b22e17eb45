// Package bootclock is the clock that leases are trusted by. Go's monotonic clock
// stands still while a machine is suspended, a server's does not: a holder that wakes
// up would believe in a lease that ended long ago. This clock is time.Now moved forward
// by all the time spent suspended since the process began. Under testing/synctest it
// follows the bubble's fake time.
package bootclock

import (
	"sync/atomic"
	"time"
)

// staleAfter bounds how old Coarse's knowledge of suspensions may be.
const staleAfter = 100 * time.Millisecond

var (
	base     = suspended()
	injected atomic.Int64 // by tests

	coarse     atomic.Int64 // the greatest result of offset
	coarseRead atomic.Int64 // when offset was last read, in time.Now's nanoseconds
)

// Now is the present instant. Only differences between its results have a meaning.
func Now() time.Time {
	t := time.Now()
	return t.Add(offset(t))
}

// Coarse is Now, but asks the system about suspensions no more than ten times a second.
// It is never later than Now, so a lease may begin with it but not end with it.
func Coarse() time.Time {
	t := time.Now()
	if age := t.UnixNano() - coarseRead.Load(); age < 0 || age > int64(staleAfter) {
		return t.Add(offset(t))
	}
	return t.Add(time.Duration(coarse.Load()))
}

// Suspend makes the clock jump as if the machine had been suspended for d. The jump is
// not undone. It is for tests.
func Suspend(d time.Duration) { injected.Add(int64(d)) }

// offset never falls, so that a torn reading cannot make Coarse later than Now.
func offset(t time.Time) time.Duration {
	d := int64(suspended()-base) + injected.Load()
	coarseRead.Store(t.UnixNano())
	for {
		known := coarse.Load()
		if d <= known {
			return time.Duration(known)
		}
		if coarse.CompareAndSwap(known, d) {
			return time.Duration(d)
		}
	}
}
