// Package once runs operations that are to succeed once, and remembers their
// outcome.
//
//	ops, err := once.New(store, once.Config{})
//	receipt, err := ops.Do(ctx, "redeem/"+order, func(ctx context.Context, a once.Attempt) ([]byte, error) {
//		return redeem(ctx, order, a.Token) // runs for the first caller; the others get its receipt
//	})
//
// An operation is a key: the number of an order, a date, the name of a migration. A
// caller of Do runs the function or gets what it returned before. Callers that come
// meanwhile, from any process, wait for the one that runs it.
//
// # What is promised
//
// Exactly one result is recorded for a key: the first success, or final error
// (Final), of an attempt that no other had followed. Every later caller gets it,
// for Config.Keep. An attempt that lost its lock and was followed by another cannot
// record anything any more, however late it comes back: its caller gets an
// *UnrecordedError.
//
// The function itself runs at least once: if it fails, or its process ends before
// its result was recorded, or its lock is lost, the next caller runs it again, with
// a higher token. Two processes that cannot reach the store may even run it at the
// same time. So what the function does elsewhere happens at least once. If that
// place refuses a lower token after a higher one, no effect of an attempt arrives
// after one of its successor; if moreover effects for one key replace each other,
// exactly the last attempt's effect remains. If it refuses the same key twice, the
// effect happens exactly once.
//
// All of this holds as long as the store remembers. GUARANTEES.md says what each
// store may forget, and when. An operation that is called again after Keep runs
// again.
//
// # What is recorded, and what is not?
//
// Recorded are the result of a function that returned no error, and the text of an
// error that Final has marked. Not recorded are all other errors, a panic, a result of
// more than check.MaxResult bytes, and whatever an attempt returns after another one has
// begun. After what was not recorded the next caller runs the function again, at once:
// there is no pause and no limit to the number of attempts but what the function makes
// of Attempt.Attempts.
//
// An error is not recorded by itself because most errors are of the moment, such as a
// connection that broke, and because who records too much has no second try for as long
// as Config.Keep. The function decides. To record more, it marks an error with Final, or
// returns a result that says what failed: the answer "402 Payment Required" with its
// body is a result. To record less, it returns an error in place of a result. A policy
// for all operations is a function around theirs, as in the example of Final.
//
// Published interfaces that take idempotency keys disagree, so one that is built on this
// package has to choose, and say so. Stripe's first interface records every answer of a
// request that began to execute, 500 too; its second one runs failed requests again.
// Others record answers of 4xx and none of 500 and above, or not 429. Nearly all record
// no answer to a request that they refused before it began: an invalid one, or one whose
// key is in use, for which TryDo has an error. The IETF's draft of the Idempotency-Key
// header leaves it to the server.
//
// # What if another attempt is under way?
//
// Do waits for it, and TryDo fails at once with a *baton.HeldError, of which a server
// makes a "409 Conflict" and a Retry-After.
//
// # Which token do I pass?
//
// Attempt.Token: that of this very attempt. It is higher than the tokens of all
// attempts before it. A token that an earlier attempt saved is worth nothing. The
// effect is identified by the key of the operation, not by the token: the key is
// the same for all attempts.
//
// # Where is it checked?
//
// Where the effect takes place, in the same step: in the transaction, the script,
// or the request that causes it. That step refuses a token that is lower than one
// that it has seen for the same operation; package guard does so for databases,
// Redis, files and HTTP, with guard.Of(attempt.Lease). A check in front of the
// effect leaves a gap in which the process can be stopped. If a unique column has
// the operation's key, no guard is needed beside it, which would keep a row for
// every operation for ever.
//
// # What if I cannot change the resource?
//
// In this order: give it the operation's key, if it can refuse the same one twice
// (a unique column, the Idempotency-Key of an HTTP interface). If it is the
// database that Baton keeps its locks in, do the work in a transaction with InTx of
// the store and Attempt.Lease, which commits only while the lease stands, and write
// the key in the same transaction. If it can be asked, ask it when Attempt.Attempts
// is more than 1: an earlier attempt began and was not finished, and its effect may
// be there. Otherwise only time is left: Config.Lock.LockDelay keeps the next
// attempt from beginning while a lost one may still be at work. That makes it rarer
// that both act, and rules nothing out.
//
// # What if the process stops here?
//
// Before the function: nothing has happened; the next caller runs it, no later than
// the TTL of the lock from then. In the function, or after it and before its result
// is recorded: the same, and the next attempt has Attempts above 1. After that:
// every caller gets the result. If the process was only stopped, and continues: the
// function's context has ended, and the result is recorded if no other attempt has
// begun, else refused.
//
// # What if the same key comes with another request?
//
// Without Fingerprint its caller gets the result that is recorded for the key. With
// Fingerprint it gets an *OtherRequestError.
//
// # Who sees what is recorded?
//
// Everyone who may read the store: results, and how the last attempt failed, are kept in
// clear text. If errors may have a secret in their text, Config.Failure says what is kept
// of them instead. Forget, and the
// end of Keep, remove them from what the store answers, not from its disk: a SQLite
// file, a server's log or a backup may hold them for longer.
//
// # What happens to my operations?
//
// Config.Events tells when attempts begin and end and when callers get what is recorded,
// for metrics and traces; the Logger in Config.Lock gets the same. Find and List show to
// people what is recorded, as "baton once show" and "baton once ls" do.
//
// # What it costs
//
// An operation that is done costs one request. The first run costs five: that
// one, the lock, the note that an attempt begins, the result, and the release;
// with a Fingerprint six. A run that fails costs as much as one that succeeds. A TryDo that is refused costs two, or one if the attempt
// under way is of the same Runner.
package once
