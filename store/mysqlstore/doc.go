// Package mysqlstore keeps locks, rate limits and records of operations in five tables
// of a MySQL or MariaDB database. It is tested on MariaDB 10.11 and MySQL 9.7.
//
// # What it promises
//
// Everything that package driver asks for, between machines, first come, first
// served. What was granted is durable before it is answered, and survives
// a crash and a restart of the server, if the server makes its commits
// durable (innodb_flush_log_at_trx_commit = 1). Expiry follows the server's
// clock. Tokens rise through release, expiry, deletion and restart, as long as
// that clock is not set back by more than the ten minutes for which the rows
// of idle keys are kept.
//
// An exclusive lock without waiters costs one statement that changes one row, and so
// does its release. Waiters hold no connection: one statement of the process asks for
// all of them.
//
// baton.LockAll takes the locks one after the other.
//
// # How the data lies
//
// The table baton_lock has a row for each key: the counter that tokens come from, and the
// holder, if it was granted without queueing. The table baton_claim has the waiters, the
// holders that were granted out of the queue, and shared holders. baton_limit and
// baton_limit_id have what was taken of limits and the requests that may be repeated,
// baton_kept the operations that were begun and the limits that are overridden.
// schema.sql says how to read them.
//
// # What it does not
//
//   - A fail-over to a replica that lags loses what it has not received: locks
//     that were granted, and the counters that tokens come from.
//   - With Galera, all users must use the same node: row locks are its own.
//   - A process that is stopped (SIGSTOP) in the middle of a transaction holds
//     up other requests for that key for at most two seconds.
package mysqlstore
