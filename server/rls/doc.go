// Package rls is Envoy's rate limit service, version 3, over the rules of package rules.
// It replaces envoyproxy/ratelimit, on every store of Baton.
//
//	file, err := rules.OpenOr(rules.Failure{By: ratelimit.ByLocal, After: time.Second / 2, Instances: 2}, "rules.yaml")
//	limiter, err := rules.New(store, file.Rules())
//	mux.Handle(rls.New(rls.Config{Limiter: limiter}))
//
// # What is promised
//
// A request takes from the limits of all its descriptors, or from none.
//
// If the store is silent or slow, the answer by the OnFailure of the domain comes within
// Config.Within, 25 ms by default, or three quarters of the time that the caller waits, if
// that is shorter. The request to the store continues for as long as OnFailure gives it,
// so that a slow store counts. A domain without an OnFailure answers Unavailable then, and
// Envoy does what its failure_mode_deny says.
//
// A reload of the Limiter loses no count and no request.
//
// # What is not
//
// Envoy does not delay requests: one that a leaky-bucket allows passes at once. So only
// the number is bounded, not the spacing; use a token-bucket to say that.
//
// With is_negative_hits the hits taken first are given back; if they have expired already,
// they come back twice. The request does not say which hits it means.
//
// A request to a domain without rules is allowed, as by envoyproxy/ratelimit, and the
// Logger gets a warning.
package rls
