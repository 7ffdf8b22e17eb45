// Package leasemath has the two numbers that all who hand out leases must agree on: how
// much of a TTL is not trusted, and how the token of a lease follows from that of the
// store's grant.
package leasemath

import "time"

// TokensPerGrant is by what the token of a store's grant is multiplied. The room is for
// the leases that a process makes of one grant, by hand-overs: the first has the
// product as its token, each later one a token that is higher by one.
const TokensPerGrant = 64

// Margin is the part of a TTL in which a holder does not believe in its lease any more,
// unless its program wants another. It leaves room for clocks that run at different
// speeds and for the time between a look at the clock and the act that follows it.
func Margin(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 10*time.Millisecond), ttl/2)
}
