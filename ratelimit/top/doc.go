// Package top tells which keys a process asks its limits about most: those with the most
// decisions, with the most refusals, and those to which the most was allowed.
//
//	hot := top.New(top.Config{})
//	limiter, err := ratelimit.New(store, limit, ratelimit.Observe(hot.Events()))
//	internal.Handle("GET /limits/top", hot) // not where strangers can read it
//
// # What is promised
//
// The memory is bounded, however many keys there are. Each count says how far off it can
// be: it is never below the truth, and above it by Count.Over at most, which is no more
// than what all keys together have, divided by Config.Size. A key with more than that
// share is always found. That is what the space-saving sketch promises (Metwally, Agrawal
// and El Abbadi, 2005); here the smallest counters are given up many at a time (Anderson
// and others, 2017), so that a decision has no order to keep.
//
// All methods are safe for concurrent use.
//
// # What is not
//
// It knows what this process has asked since the last period began, and nothing of other
// processes: what is taken from a limit by all of them the store tells, as in "baton limit
// top". It counts what ratelimit.Events.Decided tells, so no call that failed, and not
// what Commit and Cancel give back. What a Shadow would refuse is no refusal.
//
// Keys are names of your callers: show them only to those who may know them.
package top
