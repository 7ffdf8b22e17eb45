// Package pgstore keeps locks, rate limits and records of operations in
// PostgreSQL, 12 or newer, in tables that a person can read (the view baton_locks
// shows the locks).
//
// # What it promises
//
// Everything that package driver asks for, between all who use the same
// database, first come, first served. What was granted or renewed has been
// committed durably before it is answered, and stands through the crash of
// the server. An uncontended lock costs one round trip and one commit that
// waits for the disk; its release costs one round trip, and does not wait for
// the disk, because a release that is lost in a crash costs others no more
// than a crash of the holder would. Whoever releases grants the next in line
// in the same commit. Waiters hold no connection. Tokens rise through release,
// expiry, sweeping, restart and crash.
//
// Several locks that are free are granted by one statement in one transaction
// (AcquireAll, which baton.LockAll tries first): all or none, also when the process
// or the server crashes in the middle, in one round trip and one commit however
// many there are. The rows are locked in the order of the keys, so that those who
// want the same ones wait for each other in no circle.
//
// InTx makes a transaction of the program depend on a lease: it is committed
// only while nobody else can have the lock.
//
// # Rate limits
//
// One function on the server makes a decision in one round trip, about up to
// sixteen limits, by the server's clock, which it reads when it has locked
// their rows. It does not wait for the disk: see Store.Take. The table baton_limit
// has a row for each key of which something was taken and has not come back (the
// view baton_limits shows them); whoever decides removes some that have expired.
//
// # Records of operations
//
// The table baton_record has a row for each operation that was begun (the view
// baton_records shows them). Each call is one function on the server, in one round
// trip and, unless nothing changes, one commit that waits for the disk. Attempts
// that begin remove rows whose time is over.
//
// # What it leans on
//
//   - The server's clock decides expiry. One that is set forward by more than
//     the margin of a lease gives locks away early; the fencing token, which
//     also starts from the clock but never falls for a key that is in use,
//     protects what checks it.
//   - fsync and full_page_writes are on. Examine says if not.
//   - Old versions of rows can be cleaned up. While a transaction with an old
//     snapshot is open in the same database (pg_dump, a long report, one that is
//     idle), each use of a lock or limit leaves a version that all later ones read
//     past: one lock that is taken and released all the time is several times as slow
//     after half a minute of a dump. It recovers afterwards. Where dumps last, keep
//     the locks in a database of their own. Examine names a transaction that has been
//     open for 20 seconds.
//   - After a fail-over to a standby that was not synchronous the locks of the
//     last moments are gone while their holders believe in them, as with every
//     other row.
//
// # Connections
//
// A pool that the program brings may have any settings: an isolation level
// other than READ COMMITTED is overridden for the store's own statements, as
// is synchronous_commit = off. One more connection, taken out of the pool,
// listens for hints, so that a waiter hears of its turn without asking.
//
// While more requests come than there are connections, those for exclusive
// locks that nobody else wants are sent together, in one statement and commit,
// and so are those for decisions about single limits.
// So is what a process wants of one key at the same moment, such as the release
// of one goroutine and the new place in line of another, while the key is in
// demand.
//
// A request that has been sent is given a quarter of a second for its answer
// when its context ends. Without one its connection is closed.
//
// Behind a pooler such as PgBouncer in transaction mode nothing can be
// prepared and nobody can listen. The store notices that, prepares nothing and
// polls.
package pgstore
