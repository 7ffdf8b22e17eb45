// Package top finds the keys about which a process asks its limits most: those with the
// most decisions, with the most refusals, and with the highest allowed cost.
//
//	hot := top.New(top.Config{})
//	limiter, err := ratelimit.New(store, limit, ratelimit.Observe(hot.Events()))
//	internal.Handle("GET /limits/top", hot) // not where strangers can read it
//
// # What is promised
//
// The memory is bounded for any number of keys. A count is never below the truth, and
// above it by Count.Over at most, which is no more than the sum over all keys, divided by
// Config.Size. A key with more than that share is always found. That is the promise of
// the space-saving sketch (Metwally, Agrawal and El Abbadi, 2005); here the smallest
// counters are given up many at a time (Anderson and others, 2017), so that a decision
// has no order to keep.
//
// All methods are safe for concurrent use.
//
// # What is not
//
// It counts what this process has asked since the last period began. "baton limit top"
// shows what all processes have taken, from the store. It counts the events
// ratelimit.Events.Decided: no call that failed, and not what Commit and Cancel give
// back. A refusal by a Shadow is none.
//
// Keys are names of your callers: show them only to people who may know them.
package top
