// Package ratelimit gives programs rate limits over the stores that they
// already run.
//
//	limiter, err := ratelimit.New(store, ratelimit.SlidingWindow(100, time.Minute))
//	r, err := limiter.Allow(ctx, "user/42")
//	if err != nil { … }            // the store could not be asked
//	if !r.OK { … r.RetryAfter … }  // too much
//
// # What is promised
//
// Exact: whatever the processes and however many ask at once, no limit gives
// more than its algorithm says. Decisions are made in the store, by its clock (on
// etcd, which has none, by the caller's), in integers; RetryAfter is neither early nor late. What each algorithm allows at
// most within any stretch of time stands with it.
//
// All or nothing: a Limiter with several limits takes from all of them or from
// none. Whoever is refused consumes nothing.
//
// Idle keys cost nothing: the store forgets a key when it is as good as fresh.
//
// # What is not
//
// A store that forgets, because it crashed without a disk or lost a primary, gives
// what it has forgotten a second time. A request whose answer was lost may
// have been counted; a Reservation and Wait are not counted twice, because they
// carry an ID.
//
// Wait keeps the order of one process. Between processes there is none.
//
// # Which algorithm
//
// SlidingWindow, unless there is a reason: never more than n in any stretch of
// the period. TokenBucket where bursts are welcome and the long run counts.
// LeakyBucket where work has to flow evenly, and may queue for a while.
// FixedWindow where people count in days and months. SlidingLog where the last
// microsecond counts and n is small. EstimatedWindow where a key must cost
// next to nothing, and being off at times is fine.
package ratelimit
