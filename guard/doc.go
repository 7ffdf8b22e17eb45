// Package guard is the resource's half of fencing: it refuses the write of a
// holder whose lease has ended without his knowing.
//
//	lease, err := locks.Lock(ctx, "account/7")
//	defer lease.Unlock()
//	tx, err := db.BeginTx(ctx, nil)
//	err = guard.Postgres.Raise(ctx, tx, "account/7", guard.Of(lease))   // *StaleError: roll back
//	tx.Exec("UPDATE account …")
//	err = tx.Commit()
//
// A lock alone protects nothing that outlives a pause: a program looks at its
// lease, is stopped for a minute, and writes, while the next holder is at work.
// Every lease has a token that is higher than all earlier ones of its key. The
// resource remembers the highest that it has seen and refuses lower ones: a
// token is admitted if it is higher than the last, or equal and from the same
// holder. A refusal is a *StaleError, and nothing was changed.
//
// # Which token do I pass?
//
// Lease.Token of the lease that protects this very write, by Of: not one that
// was saved earlier, not that of an enclosing lock on another key. Tokens of
// different keys have nothing to do with each other, so a resource is guarded
// by one key, the same in all programs. A hand-over within the process gives a
// new lease with a new token; Detach, Attach and nested locks keep theirs. After
// LockAll each key has its own: Of(all.Lease(key)). Scripts find it in BATON_TOKEN.
//
// # Where is it checked?
//
// Where the write takes effect, in the same step: in the transaction (SQL,
// RaisePgx), in the script (Redis.Do), while the file is locked (WriteFile), by
// the condition of the request (object stores: docs/fencing.md). A check that comes
// before the write is the same gap again. HTTP and Gate check in front of a
// resource that cannot, and close the gap for the writes of one process.
//
// # What if I cannot change the resource?
//
// In this order: put the guard into whatever all writers go through (a
// service with HTTP, one process with a Gate). Use what the resource has:
// conditional writes, versions, unique keys. If it is a database that Baton can
// keep its locks in, use InTx of the SQL stores, with no token at all. Failing
// that only time is left: Config.LockDelay and a shorter critical section make
// the harm rarer, and nothing rules it out.
//
// # What if the process stops here?
//
// Before the check: the check is late, and refuses if anybody was admitted
// meanwhile. If nobody was, the write is admitted although the lease has
// ended; it comes before those of the next holder, as if it had been in time.
// Between the check and the write: nobody else is admitted until the write has
// ended; in a database the server ends it when the connection breaks. After the
// write: nothing depends on it.
//
// # Leases that are held together
//
// Readers and holders of permits hold at the same time, each with a token of its
// own, and any of them may write last. A guard would refuse all but the highest, although
// their leases stand. So what they write is not guarded under one name: give
// each permit a resource of its own, or have writers take the exclusive lock. After
// Downgrade a lease keeps its token, and is a reader.
//
// # What it costs
//
// One mark for each resource, for ever: once it is forgotten, a writer that
// slept all the time would be admitted. If the resource has a row of its own,
// keep the token there and need no mark: UPDATE … SET …, fence = $1 WHERE id = $2
// AND fence <= $1, and look at how many rows were changed.
package guard
