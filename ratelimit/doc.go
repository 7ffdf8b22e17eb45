// Package ratelimit gives programs rate limits over the stores that they already run.
//
//	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute))
//	r, err := limiter.Allow(ctx, "user/42")
//	if err != nil { … }            // the store could not be asked
//	if !r.OK { … r.RetryAfter … }  // too much
//
// # What is promised
//
// Exact: no limit gives more than its algorithm says, with any number of processes. The
// store decides, by its clock (etcd has none and uses the caller's), in integers;
// RetryAfter is neither early nor late. The documentation of each algorithm says how much
// it allows at most within any stretch of time.
//
// All or nothing: a Limiter with several limits takes from all of them or from
// none. A refused request consumes nothing.
//
// Idle keys cost nothing: the store deletes a key's state when it has no effect any more.
//
// # What is not
//
// A store that loses data, because it crashed without a disk or lost a primary, allows
// the lost takes a second time. A request whose answer was lost may have been counted. A
// Reservation and Wait are not counted twice, because they have an ID.
//
// Wait keeps the order of calls within one process, not between processes.
//
// # Observing it
//
// Limit.Shadow tries a limit without refusing anything. Limit.Warn reports when a limit
// is nearly used up. Observe and Logger report every decision and a store that fails.
// Package top finds the keys with the most decisions, refusals and cost.
//
// # Which algorithm
//
// SlidingWindow by default: never more than n in any stretch of the period. TokenBucket
// if bursts are welcome and the long-term rate counts. LeakyBucket if work must flow
// evenly, and may queue for a while. FixedWindow for days and months. SlidingLog if each
// microsecond counts and n is small. EstimatedWindow if a key must cost next to nothing
// and the limit need not be exact at all times.
package ratelimit
