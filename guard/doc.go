// Package guard is the resource's part of fencing: it refuses the write of a holder whose
// lease has ended unnoticed.
//
//	lease, err := locks.Lock(ctx, "account/7")
//	defer lease.Unlock()
//	tx, err := db.BeginTx(ctx, nil)
//	err = guard.Postgres.Raise(ctx, tx, "account/7", guard.Of(lease))   // *StaleError: roll back
//	tx.Exec("UPDATE account …")
//	err = tx.Commit()
//
// A lock alone does not protect from a pause: a program looks at its lease, is paused for
// a minute, and writes, while the next holder is at work. Every lease has a token that is
// higher than all earlier ones of its key. The resource remembers the highest token that
// it has seen and refuses lower ones: it admits a token that is higher than the last, or
// equal and from the same holder. A refusal is a *StaleError, and nothing was changed.
//
// # Which token do I pass?
//
// The Lease.Token of the lease that protects this write, by Of: not a token that was
// saved earlier, not that of an enclosing lock on another key. Tokens of different keys
// cannot be compared, so a resource is guarded by one key, the same in all programs. A
// hand-over within the process makes a new lease with a new token; Detach, Attach and
// nested locks keep theirs. After LockAll each key has its own: Of(all.Lease(key)).
// Scripts find it in BATON_TOKEN.
//
// # Where is it checked?
//
// Where the write takes effect, in the same step: in the transaction (SQL, RaisePgx), in
// the script (Redis.Do), while the file is locked (WriteFile), by the condition of the
// request (object stores: docs/fencing.md). A check before the write leaves the same gap.
// HTTP and Gate check in front of a resource that cannot check by itself, and close the
// gap for the writes of one process.
//
// # What if I cannot change the resource?
//
// In this order: put the guard into what all writers use (a service with HTTP, one
// process with a Gate). Use what the resource has: conditional writes, versions, unique
// keys. If it is a database that Baton can keep its locks in, use InTx of the SQL stores,
// without any token. Otherwise only time is left: Config.LockDelay and a shorter critical
// section make the harm rarer, but do not rule it out.
//
// # What if the process stops here?
//
// Before the check: the check is late, and refuses if another holder was admitted
// meanwhile. If not, the write is admitted although the lease has ended; it comes before
// those of the next holder. Between the check and the write: no other holder is admitted
// until the write has ended; a database server ends it when the connection breaks. After
// the write: the process does not matter any more.
//
// # Leases that are held together
//
// Readers and holders of permits hold at the same time, each with a token of its own, and
// any of them may write last. A guard would refuse all but the one with the highest
// token, although all their leases are valid. So do not guard what they write under one
// name: give each permit a resource of its own, or let writers take the exclusive lock.
// After Downgrade a lease keeps its token, and is a reader.
//
// # How do I learn of a refusal?
//
// The writer gets the error. The Events given to Observe in the refusing process are
// called: a refusal says that a holder acted after its lease had ended, which an operator
// should know.
//
// # What it costs
//
// One mark for each resource, for ever: without it the guard would admit a writer that
// was paused since. If the resource has a row of its own, keep the token there instead:
// UPDATE … SET …, fence = $1 WHERE id = $2 AND fence <= $1, and check the number of
// changed rows.
package guard
