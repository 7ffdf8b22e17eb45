// Package driver is the contract between the portable lock of package baton and one
// kind of server. The author of a store implements it.
//
// Every lock is a weighted, first-come-first-served semaphore. A request has a weight and
// the capacity that it assumes: an exclusive request asks for all of any capacity, a
// reader for one of an unbounded one, a permit request for n of N. The store grants the
// head of the queue as soon as it fits. No request overtakes the head. One state machine
// therefore serves mutex, read-write lock and semaphore.
//
// # Who does what
//
// The portable layer does what is the same on every store: it queues the goroutines of a
// process, waits, retries, renews, decides how long a lease may be trusted, and tells the
// holder of a loss.
//
// A store does what only the store can do: one atomic attempt, the order of waiters
// across processes, the fencing token, the expiry by its own clock. A method of a store
// is one attempt, and obeys its context. It does not wait for other holders, does not
// repeat a request that may have had an effect, does not log, and adds no explanations to
// its errors.
//
// # Rules that people get wrong
//
//   - Acquire is idempotent in Claim.ID: a repeated request finds what the first one left
//     and never takes a second position. With Retry this holds even if another process
//     made the first request.
//   - Release, Renew and Downgrade compare the ID: no process can end or prolong the
//     claim of another.
//   - The store's clock decides about expiry. A client's time is only ever sent to be
//     shown to people.
//   - Tokens rise with every grant of a key: through release, expiry, reconnects,
//     restarts, and the deletion of all data about the key.
//   - After ErrUnknown the request may have taken effect. After ErrUnavailable it
//     certainly has not; nor after ErrDenied, which only another configuration cures.
//
// Package drivertest holds this contract as tests.
package driver
