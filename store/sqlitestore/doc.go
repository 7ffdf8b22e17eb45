// Package sqlitestore keeps locks, rate limits and records of operations in a SQLite
// file that the processes of one machine share. Nothing has to be installed or run.
//
// The file may be an application's own database: the tables are called baton_*, and the
// file is switched to write-ahead logging. Beside it are the two files of that log
// and a directory FILE-wake with the sockets by which processes wake each other. Remove
// them together, when no process uses them.
//
// # What it promises
//
// Everything that package driver asks for, between processes of one machine and one
// kernel, first come, first served. What was granted is on the disk before it is
// answered; what was released survives the crash of any process, too. Expiry follows a
// clock that counts suspension and cannot be set; a reboot ends every lock. Tokens rise
// through release, expiry, cleanup, reboot, and a wall clock that is set back.
//
// Several locks that are free are granted by one transaction (AcquireAll, which
// baton.LockAll tries first): all or none, also when the process is killed in the
// middle.
//
// # How the data lies
//
// The table baton_lock has a row for each key: the counter that tokens come from, and the
// holder, if it was granted without queueing. The table baton_claim has the waiters, the
// holders that were granted out of the queue, and shared holders; package sqlstore grants
// from them. The view baton_show shows both. Times are microseconds since the machine was
// booted. baton_limit has rate limits, baton_kept records and overrides.
//
// # What it does not
//
//   - Network and FUSE file systems are refused: their file locks do not keep
//     processes apart. Neither can virtual machines or containers under
//     another kernel share a file.
//   - A process that is stopped (SIGSTOP) within the fraction of a
//     millisecond that it writes holds up all other processes until it goes on.
//   - Closing any descriptor of the file that the program opened by itself,
//     to read or to copy it, drops the locks of this process that keep the
//     log from being removed under it. The store asks the SQLite library for
//     locks that survive this; that works only if nothing in the process used
//     the library before. Copy the file with VACUUM INTO or another process.
//   - Root opens no file that belongs to another user, or that a path of another user's
//     directories or links leads to (ErrForeign): their owner could lead root to other
//     files. Run the program as that user (sudo -u USER, in a container --user). In a
//     container whose user 0 owns the directory nothing is different. In a directory for
//     temporary files, such as /tmp, root opens the files that it has made. A directory of
//     root's that all users may write is a finding of "baton doctor".
package sqlitestore
