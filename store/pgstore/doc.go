// Package pgstore keeps locks, rate limits and records of operations in
// PostgreSQL, 12 or newer, in tables that a person can read (the view baton_locks
// shows the locks).
//
// # What it promises
//
// Everything that package driver asks for, between all processes that use the same
// database, first come, first served. What was granted or renewed is on the disk before
// it is answered, and survives a crash of the server. An uncontended lock costs one
// round trip and one commit that waits for the disk. Its release costs one round trip,
// and does not wait for the disk: a release that is lost in a crash costs a waiter no
// more than a crash of the holder. A release grants the next waiters in the same commit.
// Waiters hold no connection. Tokens rise through release, expiry, cleanup, restart and
// crash.
//
// Several locks that are free are granted by one statement in one transaction
// (AcquireAll, which baton.LockAll tries first): all or none, also when the process or
// the server crashes in the middle, in one round trip and one commit however many there
// are. The statement locks the rows in the order of the keys, so that requests for the
// same keys do not deadlock.
//
// InTx makes a transaction of the program depend on a lease: it is committed only while
// no other process can have the lock.
//
// # How the data lies
//
// The table baton_lock has a row for each key: the counter that tokens come from, and the
// holder, if it was granted without queueing. The table baton_claim has the waiters, the
// holders that were granted out of the queue, and shared holders. The view baton_locks
// shows both. Functions on the server change them; processes that make requests remove
// rows of keys that were not used for ten minutes.
//
// # Rate limits
//
// A transaction locks the rows of up to sixteen limits and reads the server's clock, the
// program decides, and the transaction writes, in two round trips. It does
// not wait for the disk: see Store.Take. The table baton_limit has a row for each key
// of which something was taken and still counts (the view baton_limits shows them);
// processes that decide remove some that have expired.
//
// # Records of operations and overrides of limits
//
// The table baton_kept has a row for each operation that was begun, and for each limit that
// is overridden (the view baton_texts shows them). A step of an operation is one function
// on the server, in one round trip and, unless nothing changes, one commit that waits for
// the disk. Each change removes a few expired rows.
//
// # What it relies on
//
//   - The server's clock decides expiry. One that is set forward by more than
//     the margin of a lease gives locks away early; the fencing token, which
//     also starts from the clock but never falls for a key that is in use,
//     protects what checks it.
//   - fsync and full_page_writes are on. Examine says if not.
//   - Old versions of rows can be cleaned up. While a transaction with an old
//     snapshot is open in the same database (pg_dump, a long report, one that is
//     idle), each use of a lock or limit leaves a version that later ones have to skip.
//     A lock that is taken and released all the time is several times as slow after
//     half a minute of a dump, and recovers afterwards. Where dumps take long, keep the
//     locks in a database of their own. Examine names a transaction that has been open
//     for 20 seconds.
//   - After a fail-over to a standby that was not synchronous, the last rows that were
//     written are missing, and with them locks whose holders go on.
//
// # Connections
//
// A pool that the program brings may have any settings: an isolation level other than
// READ COMMITTED is overridden for the store's own statements, as is synchronous_commit
// = off. One more connection, taken out of the pool, listens for hints, so that a
// waiter hears of its grant without asking.
//
// When more requests come than there are connections, the store sends those for
// uncontended exclusive locks together, in one statement and commit, and so those for
// decisions about single limits. Of a contended key it sends together what the process
// wants at the same moment, such as the release of one goroutine and the new position
// of another.
//
// When the context of a request that was sent ends, the request has a quarter of a
// second more for its answer. Without an answer the store closes its connection.
//
// Behind a pooler such as PgBouncer in transaction mode the store can neither prepare
// statements nor listen. It notices that, prepares nothing and polls.
package pgstore
