// Package leasemath has the two rules that all programs with leases must share: the
// margin of a TTL, and the token of a lease.
package leasemath

import "time"

// TokensPerGrant is the factor between the token of a store's grant and those of its
// leases: the first lease has the product as its token, each later one, made by a
// hand-over, one more.
const TokensPerGrant = 64

// Margin is the default margin: the part of a TTL in which a holder no longer relies on
// its lease. It makes up for clocks that run at different speeds, and for the time
// between a look at the clock and the next act.
func Margin(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 10*time.Millisecond), ttl/2)
}
