// Package sqlitestore keeps locks, rate limits and records of operations in a SQLite file
// that the processes of one machine share. It needs no server.
//
// The file may be an application's own database: the tables are named baton_*, and the
// file is switched to write-ahead logging. Beside it are the two files of that log and a
// directory FILE-wake with the sockets by which processes wake each other. Remove them
// together, when no process uses them.
//
// # What it promises
//
// Everything in the contract of package driver, between the processes of one machine and
// one kernel, first come, first served. A grant is on the disk before it is answered; a
// release survives the crash of any process, too. Expiry follows a clock that counts
// suspension and cannot be set; a reboot ends every lock. Tokens rise through release,
// expiry, cleanup, reboot, and a wall clock that is set back.
//
// Several free locks are granted by one transaction (AcquireAll, which baton.LockAll
// tries first): all or none, even if the process is killed in the middle.
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
//   - Network and FUSE file systems are refused: their file locks do not exclude
//     processes reliably. Virtual machines or containers under another kernel cannot
//     share a file either.
//   - A process that is stopped (SIGSTOP) in the fraction of a millisecond of a write
//     blocks all other processes until it continues.
//   - If the program itself opens the file and closes it, for example to copy it,
//     SQLite's file locks of this process are dropped, and the log may be removed under
//     it. The store asks the SQLite library for locks that survive this, which works only
//     if the process has not used the library before. Copy the file with VACUUM INTO or
//     in another process.
//   - Root opens no file of another user, and none whose path leads through another
//     user's directories or links (ErrForeign): their owner could lead root to other
//     files. Run the program as that user (sudo -u USER, in a container --user). This
//     includes user 0 of a container. In a directory for temporary files, such as /tmp,
//     root opens only the files that it has made. A directory of root's that all users
//     may write is a finding of "baton doctor".
package sqlitestore
