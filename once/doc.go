// Package once runs operations that are to succeed once, and remembers their outcome.
//
//	ops, err := once.New(store, once.Config{})
//	receipt, err := ops.Do(ctx, "redeem/"+order, func(ctx context.Context, a once.Attempt) ([]byte, error) {
//		return redeem(ctx, order, a.Token) // runs for the first caller; the others get its receipt
//	})
//
// An operation is a key: the number of an order, a date, the name of a migration. A
// caller of Do runs the function or gets its earlier result. Callers that come meanwhile,
// from any process, wait for the one that runs it.
//
// # What is promised
//
// Exactly one result is recorded for a key: the first success, or final error (Final), of
// an attempt that no other had followed. Every later caller gets it, for Config.Keep. An
// attempt that lost its lock and was followed by another cannot record anything any more:
// its caller gets an *UnrecordedError.
//
// The function itself runs at least once: if it fails, or its process ends before its
// result was recorded, or its lock is lost, the next caller runs it again, with a higher
// token. Two processes that cannot reach the store may even run it at the same time. So
// the function's effects elsewhere happen at least once. If their target refuses a lower
// token after a higher one, no effect of an attempt comes after one of its successor; if
// moreover effects for one key replace each other, exactly the last attempt's effect
// remains. If the target refuses the same key twice, the effect happens exactly once.
//
// All of this holds as long as the store remembers. GUARANTEES.md says what each store
// may forget, and when. An operation that is called again after Keep runs again.
//
// # What is recorded, and what is not?
//
// Recorded are the result of a function that returned no error, and the text of an error
// that Final has marked. Not recorded are all other errors, a panic, a result of more
// than check.MaxResult bytes, and the outcome of an attempt after another one has begun.
// In these cases the next caller runs the function again, at once: there is no pause, and
// no limit to the number of attempts unless the function looks at Attempt.Attempts.
//
// By default an error is not recorded, because most errors are of the moment, such as a
// broken connection, and a recorded one prevents a second try for Config.Keep. The
// function decides. To record more, it marks an error with Final, or returns a result
// that describes the failure: the answer "402 Payment Required" with its body is a
// result. To record less, it returns an error in place of a result. A policy for all
// operations is a function around theirs, as in the example of Final.
//
// Published interfaces with idempotency keys disagree, so an interface on this package
// must choose, and document its choice. Stripe's first interface records every answer of
// a request that began to execute, 500 too; its second one runs failed requests again.
// Others record answers of 4xx and none of 500 and above, or not 429. Nearly all record
// no answer to a request that they refused before it began: an invalid one, or one whose
// key is in use, for which TryDo has an error. The IETF's draft of the Idempotency-Key
// header leaves it to the server.
//
// # What if another attempt is under way?
//
// Do waits for it. TryDo fails at once with a *baton.HeldError, which a server can answer
// as "409 Conflict" with a Retry-After.
//
// # Which token do I pass?
//
// Attempt.Token, the token of this attempt. It is higher than the tokens of all attempts
// before it; a token that an earlier attempt saved is worthless. The effect is identified
// by the key of the operation, not by the token: the key is the same for all attempts.
//
// # Where is it checked?
//
// Where the effect takes place, in the same step: in the transaction, the script, or the
// request that causes it. That step refuses a token that is lower than one that it has
// seen for the same operation; package guard does so for databases, Redis, files and
// HTTP, with guard.Of(attempt.Lease). A check before the effect leaves a gap in which the
// process may pause. With a unique column for the operation's key no guard is needed,
// which would keep a row for every operation for ever.
//
// # What if I cannot change the resource?
//
// In this order: give it the operation's key, if it can refuse the same one twice (a
// unique column, the Idempotency-Key of an HTTP interface). If it is the database that
// Baton keeps its locks in, do the work in a transaction with InTx of the store and
// Attempt.Lease, which commits only while the lease is valid, and write the key in the
// same transaction. If it can be asked, ask it when Attempt.Attempts is more than 1: an
// earlier attempt began and was not finished, and its effect may be there. Otherwise only
// time is left: Config.Lock.LockDelay delays the next attempt while a lost one may still
// be at work. That makes it rarer that both act, but does not rule it out.
//
// # What if the process stops here?
//
// Before the function: nothing has happened; the next caller runs it, at most the TTL of
// the lock later. In the function, or after it and before its result is recorded: the
// same, and the next attempt has Attempts above 1. After that: every caller gets the
// result. If the process was only paused, and continues: the function's context has
// ended, and the result is recorded unless another attempt has begun.
//
// # What if the same key comes with another request?
//
// Without Fingerprint its caller gets the result that is recorded for the key. With
// Fingerprint it gets an *OtherRequestError.
//
// # Who sees what is recorded?
//
// Everyone who may read the store: results, and the failure of the last attempt, are kept
// in clear text. If errors may contain a secret, Config.Failure replaces their texts.
// Forget, and the end of Keep, remove them from the store's answers, not from its disk: a
// SQLite file, a server's log or a backup may have them for longer.
//
// # What happens to my operations?
//
// Config.Events is called when attempts begin and end and when callers get a recorded
// result, for metrics and traces; the Logger in Config.Lock gets the same. Find and List
// show records to people, as "baton once show" and "baton once ls" do.
//
// # What it costs
//
// An operation that is done costs one request. The first run costs five: that one, the
// lock, the note that an attempt begins, the result, and the release; with a Fingerprint
// six. A run that fails costs as much. A refused TryDo costs two, or one if the attempt
// under way is of the same Runner.
package once
