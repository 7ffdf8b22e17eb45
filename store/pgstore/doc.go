// Package pgstore keeps locks, rate limits and records of operations in PostgreSQL, 12 or
// newer, in tables that a person can read (the view baton_locks shows the locks).
//
// # What it promises
//
// Everything in the contract of package driver, between all processes that use the same
// database, first come, first served. A grant or renewal is on the disk before it is
// answered, and survives a crash of the server. An uncontended lock costs one round trip
// and one commit that waits for the disk. Its release costs one round trip, and does not
// wait for the disk: a release that is lost in a crash costs a waiter no more than a
// crash of the holder. A release grants the next waiters in the same commit. Waiters hold
// no connection. Tokens rise through release, expiry, cleanup, restart and crash.
//
// Several free locks are granted by one statement in one transaction (AcquireAll, which
// baton.LockAll tries first): all or none, even if the process or the server crashes in
// the middle, in one round trip and one commit for any number. The statement locks the
// rows in the order of the keys, so requests for the same keys do not deadlock.
//
// InTx makes a transaction of the program depend on a lease: it commits only while no
// other process can have the lock.
//
// # How the data lies
//
// The table baton_lock has a row for each key: the counter that tokens come from, and the
// holder, if it was granted without queueing. The table baton_claim has the waiters, the
// holders that were granted out of the queue, and shared holders. The view baton_locks
// shows both. Functions on the server change them; processes with requests remove the
// rows of keys that were not used for ten minutes.
//
// # Rate limits
//
// A transaction locks the rows of up to sixteen limits and reads the server's clock, the
// program decides, and the transaction writes, in two round trips. It does not wait for
// the disk: see Store.Take. The table baton_limit has a row for each key with takes that
// still count (the view baton_limits shows them); processes that decide remove expired
// rows.
//
// # Records of operations and overrides of limits
//
// The table baton_kept has a row for each operation that was begun, and for each override
// (the view baton_texts shows them). A step of an operation is one function on the
// server, in one round trip and, unless nothing changes, one commit that waits for the
// disk. Each change removes a few expired rows.
//
// # What it relies on
//
//   - The server's clock decides expiry. If it is set forward by more than the margin of
//     a lease, locks are granted again too early. The fencing token then protects what
//     checks it: it also starts from the clock but never falls for a key in use.
//   - fsync and full_page_writes are on. Examine reports if they are not.
//   - Old versions of rows can be cleaned up. While a transaction with an old snapshot is
//     open in the same database (pg_dump, a long report, an idle one), each use of a lock
//     or limit leaves a version that later ones have to skip. A lock in constant use is
//     several times as slow after half a minute of a dump, and recovers afterwards. With
//     long dumps keep the locks in a database of their own. Examine names a transaction
//     that has been open for 20 seconds.
//   - A failover to a standby that was not synchronous loses the last written rows, and
//     with them locks whose holders continue.
//
// # Connections
//
// A pool of the program may have any settings: an isolation level other than READ
// COMMITTED is overridden for the store's own statements, as is synchronous_commit = off.
// One more connection, taken out of the pool, listens for hints, so that a waiter learns
// of its grant without asking.
//
// When there are more requests than connections, the store merges requests for
// uncontended exclusive locks into one statement and commit, and likewise decisions about
// single limits. For a contended key it merges the concurrent operations of the process,
// such as the release of one goroutine and the new position of another.
//
// When the context of a sent request ends, the request has a quarter of a second more for
// its answer. Without an answer the store closes its connection.
//
// With a pooler such as PgBouncer in transaction mode the store can neither prepare
// statements nor listen. It notices the pooler, prepares nothing and polls.
package pgstore
