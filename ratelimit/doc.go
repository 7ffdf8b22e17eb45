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
// Exact: no limit gives more than its algorithm says, however many processes ask at
// once. The store decides, by its clock (etcd has none and uses the caller's), in
// integers; RetryAfter is neither early nor late. Each algorithm's documentation
// says how much it allows at most within any stretch of time.
//
// All or nothing: a Limiter with several limits takes from all of them or from
// none. A refused request consumes nothing.
//
// Idle keys cost nothing: the store forgets a key when it is as good as fresh.
//
// # What is not
//
// A store that forgets, because it crashed without a disk or lost a primary, gives
// what it has forgotten a second time. A request whose answer was lost may have
// been counted; a Reservation and Wait are not counted twice, because they carry an
// ID.
//
// Wait keeps the order of calls within one process, not between processes.
//
// # To see what it does
//
// Limit.Shadow tries a limit without refusing anything, Limit.Warn tells when one is
// nearly used up, and Observe and Logger tell of every decision and of a store that
// fails. Package top tells the keys with the most decisions, refusals and cost.
//
// # Which algorithm
//
// SlidingWindow, unless there is a reason against it: never more than n in any
// stretch of the period. TokenBucket if bursts are welcome and the long-term rate
// counts. LeakyBucket if work must flow evenly, and may queue for a while.
// FixedWindow if people count in days and months. SlidingLog if each microsecond
// counts and n is small. EstimatedWindow if a key must cost next to nothing and the
// limit need not be exact at all times.
package ratelimit
