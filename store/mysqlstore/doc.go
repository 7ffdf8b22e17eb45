// Package mysqlstore keeps locks, rate limits and records of operations in five tables of
// a MySQL or MariaDB database. It is tested on MariaDB 10.11 and MySQL 9.7.
//
// # What it promises
//
// Everything in the contract of package driver, between machines, first come, first
// served. A grant is durable before it is answered, and survives a crash and a restart of
// the server, if the server makes its commits durable (innodb_flush_log_at_trx_commit =
// 1). Expiry follows the server's clock. Tokens rise through release, expiry, deletion
// and restart, unless that clock is set back by more than the ten minutes for which the
// rows of idle keys are kept.
//
// An exclusive lock without waiters costs one statement that changes one row, and so does
// its release. Waiters hold no connection: one statement of the process asks for all of
// them.
//
// baton.LockAll takes the locks one after the other.
//
// # How the data lies
//
// The table baton_lock has a row for each key: the counter that tokens come from, and the
// holder, if it was granted without queueing. The table baton_claim has the waiters, the
// holders that were granted out of the queue, and shared holders. baton_limit and
// baton_limit_id have the state of limits and the requests with an ID, baton_kept the
// records of operations and the overrides of limits. schema.sql says how to read them.
//
// # What it does not
//
//   - A failover to a replica that lags loses what that has not received: granted locks,
//     and the counters that tokens come from.
//   - With Galera, all users must use the same node: row locks are its own.
//   - A process that is stopped (SIGSTOP) in the middle of a transaction blocks other
//     requests for that key for at most two seconds.
package mysqlstore
