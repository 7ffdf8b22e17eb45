// Package rls is Envoy's rate limit service, version 3, over the rules of package
// rules: what envoyproxy/ratelimit is, on every store of Baton.
//
//	file, err := rules.OpenOr(rules.Failure{By: ratelimit.ByLocal, After: time.Second / 2, Instances: 2}, "rules.yaml")
//	limiter, err := rules.New(store, file.Rules())
//	mux.Handle(rls.New(rls.Config{Limiter: limiter}))
//
// # What is promised
//
// A request takes from the limits of all its descriptors, or from none.
//
// If the store is silent, or slow, the answer comes within 25 ms, or three quarters of
// the time that the caller waits, by the OnFailure of the domain. The request to the
// store goes on for as long as OnFailure gives it, so that a slow store counts. A
// domain without an OnFailure answers Unavailable then, and Envoy does what its
// failure_mode_deny says.
//
// A reload of the Limiter loses no count and no request.
//
// # What is not
//
// Envoy does not wait for a turn: a request that a leaky-bucket allows passes at once,
// so that only how many pass is bounded, not how evenly. A token-bucket says what is meant.
//
// Hits that are given back (is_negative_hits) are those that were taken first, and what
// has come back by itself comes back twice. Envoy does not say which it means.
//
// A request to a domain that the rules do not have is allowed, as by
// envoyproxy/ratelimit. A Logger is told.
package rls
