// Package local is how a limiter asks a store that decides within its process, without
// the price of a request.
package local

import (
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// Limits is implemented by stores that decide within this process, so
// quickly that it is worth while to prepare a limit once.
type Limits interface {
	limits.Store

	// Prepare returns a quicker way to take from one limit, or nil if there is
	// none. Both ways can be mixed.
	Prepare(l limits.Limit) Prepared
}

// Prepared is a limit of a Limits. All methods are safe for concurrent
// use.
type Prepared interface {
	// Take is limits.Store.Take with limits.TakeIfAllowed, one key, and nothing else. It
	// returns when the decision was made, in microseconds since 1970.
	Take(key string, cost int64) (d Decision, at int64, err error)
}

// Decision is a limits.Decision without a wait. It
// is small enough to be returned in registers.
type Decision struct {
	Remaining int64
	Retry     time.Duration // 0 if it is allowed
	Next      time.Duration
	Reset     time.Duration
}
