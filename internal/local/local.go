// Package local is the fast path of a limiter to a store that decides within the process.
package local

import (
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// Limits is implemented by stores that decide within this process, so fast that a
// prepared limit pays off.
type Limits interface {
	limits.Store

	// Prepare returns a faster way to take from one limit, or nil. Both ways may be used
	// on one limit.
	Prepare(l limits.Limit) Prepared
}

// Prepared is a prepared limit. All methods are safe for concurrent use.
type Prepared interface {
	// Take is limits.Store.Take with limits.TakeIfAllowed and one key. at is the time of
	// the decision, in microseconds since 1970.
	Take(key string, cost int64) (d Decision, at int64, err error)
}

// Decision is a limits.Decision without Wait, small enough to be returned in registers.
type Decision struct {
	Remaining int64
	Retry     time.Duration // 0 if it is allowed
	Next      time.Duration
	Reset     time.Duration
}
