// Package once runs operations that are to succeed once, and remembers what
// came of them.
//
//	ops, err := once.New(store, once.Config{})
//	receipt, err := ops.Do(ctx, "redeem/"+order, func(ctx context.Context, a once.Attempt) ([]byte, error) {
//		return redeem(ctx, order, a.Token) // runs for the first caller; the others get its receipt
//	})
//
// An operation is a key: the number of an order, a date, the name of a
// migration. Whoever calls Do with it runs the function or is given what it
// returned before. Callers that come meanwhile, from any process, wait for the
// one that runs.
//
// # What is promised
//
// Exactly one result is recorded for a key: the first success, or final error
// (Final), of an attempt that no other had followed. Every later caller gets
// it, for Config.Keep. An attempt whose lock was lost, and which another has
// followed, cannot record anything any more, however late it comes back: its
// caller gets an *UnrecordedError.
//
// The function itself runs at least once: if it fails, or its process ends
// before its result was recorded, or its lock is lost, the next caller runs it
// again, with a higher token. Two that have lost sight of the store may even
// run at the same time. So what the function does elsewhere happens at least
// once. If that place refuses a lower token after a higher one, nothing of an
// attempt arrives after its successor was there; if moreover effects for one
// key replace each other, exactly the last attempt's stands. If it refuses the
// same key twice, the effect happens exactly once.
//
// All of it holds as long as the store remembers. What each does not remember,
// and when, is in GUARANTEES.md. An operation that is called again after Keep
// runs again.
//
// # Which token do I pass?
//
// Attempt.Token: that of this very attempt. It is higher than the tokens of all
// attempts before it. A token that was saved by an earlier attempt is worth
// nothing. The key of the operation, not the token, is what the effect is known
// by: it is the same for all attempts.
//
// # Where is it checked?
//
// Where the effect takes place, in the same step: in the transaction, the
// script, or the request that brings it about. It refuses a token that is lower
// than one that it has seen for the same operation; package guard has that for
// databases, Redis, files and HTTP, with guard.Of(attempt.Lease). A check in front of the effect leaves a gap
// in which the process can be stopped. Where a unique column has the operation's key,
// no guard is needed beside it: it would keep a row for every operation for ever.
//
// # What if I cannot change the resource?
//
// In this order: give it the operation's key, if it can refuse the same one
// twice (a unique column, the Idempotency-Key of an HTTP interface). If it is
// the database that Baton keeps its locks in, do the work in a transaction with
// InTx of the store and Attempt.Lease, which commits only while the lease
// stands, and write the key in the same transaction.
// If it can be asked, ask it when Attempt.Attempts is more than 1: an earlier
// attempt began and was not finished, and its effect may be there. Failing that
// only time is left: Config.Lock.LockDelay keeps the next attempt from
// beginning while a lost one may still be at work, which makes it rarer that
// both act and rules nothing out.
//
// # What if the process stops here?
//
// Before the function: nothing has happened; the next caller runs it, no later
// than the TTL of the lock from then. In the function, or after it and before
// its result is recorded: the same, and the next one sees Attempts above 1.
// After that: everybody gets the result. If it was not dead, but only stopped,
// and goes on: the function's context has ended, and the result is recorded if
// no other attempt has begun, else refused.
//
// # What if the same key comes with another request?
//
// Without Fingerprint its caller gets the result that is recorded for the key.
// With it, an *OtherRequestError.
//
// # Who sees what is recorded?
//
// Whoever may read the store: results are kept in clear. Forget, and the end of Keep,
// remove them from what the store answers, not from its disk: a SQLite file, a
// server's log or a backup may hold them for longer.
//
// # What it costs
//
// An operation that is done costs one request. The first run costs five: that
// one, the lock, the note that an attempt begins, the result, and the release;
// with a Fingerprint six.
package once
