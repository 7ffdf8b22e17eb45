// Package driver is what the author of a store writes: the contract between
// the portable lock of package baton and one kind of server.
//
// A lock here is one place in a weighted, first-come-first-served semaphore.
// Every request has a weight and the capacity that it assumes. An exclusive
// request asks for all of any capacity, a reader for one of an unbounded
// one, a permit for n of N. The head of the queue is granted as soon as it
// fits, and nobody overtakes it. One state machine therefore serves mutex,
// read-write lock and semaphore.
//
// # Who does what
//
// The portable layer does everything that is the same on every store: the
// line of goroutines inside a process, waiting, retrying, renewing, deciding
// how long a lease may be trusted, telling the holder that it was lost.
//
// A store does what only the store can do: one atomic attempt, the order of
// waiters across processes, the fencing token, the expiry by its own clock.
// A method of a store is one attempt. It does not wait for other holders, it
// does not retry, log, or wrap its errors in stories; it obeys its context.
//
// # Rules that people get wrong
//
//   - Acquire is idempotent in Claim.ID: a repeated request finds what the
//     first one left and never takes a second place.
//   - Release, Renew and Downgrade compare the ID: nobody can end or prolong
//     what belongs to another.
//   - Expiry is decided by the store's clock. No time of a client's clock is
//     ever sent, except to be shown to people.
//   - Tokens rise with every grant of a key: through release, expiry, the
//     deletion of all that the store keeps of the key, reconnects, restarts.
//   - An error after which the act may have happened is ErrUnknown; an error
//     after which it certainly did not is ErrUnavailable.
//
// Package drivertest holds this contract as tests.
package driver
