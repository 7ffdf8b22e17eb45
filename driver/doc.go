// Package driver is the contract between the portable lock of package baton and one
// kind of server. The author of a store implements it.
//
// A lock here is a weighted, first-come-first-served semaphore. Every request has a
// weight and the capacity that it assumes. An exclusive request asks for all of any
// capacity, a reader for one of an unbounded one, a permit request for n of N. The
// store grants the head of the queue as soon as it fits, and no request overtakes
// the head. One state machine therefore serves mutex, read-write lock and
// semaphore.
//
// # Who does what
//
// The portable layer does everything that is the same on every store: it queues the
// goroutines of a process, waits, retries, renews, decides how long a lease may be
// trusted, and tells the holder of a loss.
//
// A store does what only the store can do: one atomic attempt, the order of waiters
// across processes, the fencing token, the expiry by its own clock. A method of a
// store is one attempt. It does not wait for other holders, does not repeat a request
// that may have had an effect, does not log, and adds no explanations to its errors;
// it obeys its context.
//
// # Rules that people get wrong
//
//   - Acquire is idempotent in Claim.ID: a repeated request finds what the
//     first one left and never takes a second position. With Retry it finds that
//     also if another process made it.
//   - Release, Renew and Downgrade compare the ID: no process can end or prolong
//     the claim of another.
//   - The store's clock decides about expiry. No time of a client's clock is
//     ever sent, except to be shown to people.
//   - Tokens rise with every grant of a key: through release, expiry, the
//     deletion of all that the store keeps of the key, reconnects, restarts.
//   - An error after which the act may have happened is ErrUnknown; an error
//     after which it certainly did not is ErrUnavailable, or ErrDenied if only another
//     configuration helps.
//
// Package drivertest holds this contract as tests.
package driver
