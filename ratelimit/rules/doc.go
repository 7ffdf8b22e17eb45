// Package rules decides by rules as data: they come from a file, or from code, and can
// change while a program runs.
//
//	all, err := rules.Load("rules.yaml")
//	limiter, err := rules.New(store, all)
//	d, err := limiter.Allow(ctx, rules.Request{Rule: "api", Key: "user/42", Tier: "pro"})
//	if err != nil { … }            // an unknown rule, or the store could not be asked
//	if !d.OK { … d.RetryAfter … }  // too much
//
// # What is promised
//
// A decision takes from all limits that match a request, or from none: a refused request
// consumes nothing. A rule also says what happens when the store fails.
//
// Reload changes rules at once, and loses no count: what was taken stays taken as long as
// the name of the rule, and of the limit within it, stays the same.
//
// A file with a mistake is not loaded: the error lists each mistake with its line and
// column.
//
// # The file
//
// docs/rules.md describes it. A configuration of envoyproxy/ratelimit is such a file: its
// domain and descriptors are matched as that project documents.
//
// # What is not
//
// A decision about a shadow limit or a quota that is used up costs one more request to
// the store. On a Redis Cluster the counters of a domain share a slot, because one
// decision can be about several of them; a limit that counts all keys together cannot be
// in one rule with others.
package rules
