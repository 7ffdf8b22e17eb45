// Package etcdstore keeps locks, rate limits and records in etcd 3.4 or newer, one
// member or a cluster.
//
// # What is on the server
//
// Whoever holds a lock or waits for it has a name below the lock's,
//
//	<prefix>/<key>/<process>     and <process>-1, -2 … for further ones of the same process
//
// with a value that says who that is,
//
//	{"baton":1,"owner":"host:4711","id":"…"}     "weight" and "capacity" too, unless it is exclusive
//
// on a lease of etcd. The order of the names' creation is the queue, and the
// create revision is the fencing token. The ID lets its reader release the
// lock, so reading is a right to be given with care.
//
// "etcdctl lock <prefix>/<key>", and whatever else uses etcd's own concurrency
// package, excludes Baton and is excluded by it, in one queue. To Baton such a
// name is an exclusive contender; to them every name of Baton's is one, readers
// and permits too. A name without a lease is not a lock: it is left alone, and
// the key refused.
//
// A key may contain slashes: "a" and "a/b" are different locks. But "etcdctl
// lock a" takes those who want "a/b" for its own. And the server reads the names of
// all keys below "a" together with those of "a": acquiring it beside 20 000 locks
// "a/…" takes about 100 ms. Their names cannot be told from those of contenders for
// "a" before they are read, as others may contend by any name.
//
// # Time
//
// A process has one lease for each TTL in whole seconds, and one of two seconds
// for what waits. It is kept alive only by calls of Acquire and Renew: a
// process that hangs or dies loses everything when its lease ends. What a
// living process no longer renews it removes itself, claim by claim.
//
// A server grants no lease shorter than one and a half election time-outs:
// two seconds by default. On one with a longer election time-out a process
// that died blocks others for that long.
//
// # Speed
//
// Acquiring and releasing a free lock is one transaction each. While
// transactions are under way, further ones of the same process gather and go
// together. Whoever waits follows the queue by a watch that all of the process
// share, and knows of its grant by the event that made it. Going in line behind
// others of the process waits up to 4 ms for a transaction to go with. Renewing
// takes one message for each lease and one read for a hundred locks, and writes
// nothing. The messages go by one stream that stays open, for which a user logs in
// once.
//
// # A member that hangs
//
// A member whose disk or process hangs keeps its connections. When it has not
// answered within a twelfth of the TTL, the next endpoint is asked, too, by a
// connection of its own. So locks are acquired, renewed and released as long as most
// members work and the endpoints name one of those. Limits and records are not asked
// for twice: a request that went to such a member fails after 5 s at the latest, and
// the one after it goes to another.
//
// What such a member was asked for it may do when it goes on, after hours perhaps.
// A name that it then puts is removed within the first ten seconds. The process also
// gives up the lease for another one, so that after about four thirds of the TTL there
// is none left that the name could be put on.
//
// What a member says of a lease counts only if an answer of the majority bears it
// out, as one that leads no longer may not know that. Releases before 3.4.31, and
// of 3.5 before 3.5.13, end all leases when a leader's disk goes on that had hung
// (etcd's issue 15247): no client can help that, and "baton doctor" calls them
// unsafe.
//
// # Several locks
//
// AcquireAll is one transaction for all locks, and so is LockAll as long as all
// are free. They then have the same token. Beside readers who hold already, or
// names of keys below one of them, it is two. Refused, it has read the queues of
// all.
//
// # Limits
//
// What has been taken from a limit, and what is remembered for the ID of a
// request, are numbers under
//
//	<prefix>/<tab>limits/<key>
//	<prefix>/<tab>ids/<id>/<key>
//
// where a tab, which no key of a lock has, keeps them apart from locks. (Who
// wants "etcdctl lock <prefix>" itself waits for them, as for all that is below
// it.) A decision is made by the process that asks, and written on the condition
// that nobody has changed what it was made of. That is one round trip, one more
// for each time that another process was faster, and one for many calls of one
// process that want the same key at the same time. Processes that fight for one
// key do not wait for each other, and none is sure to be next.
//
// Each write is a revision of etcd, of which decisions that are under way at the
// same time share one; who looks or is refused writes nothing. A server keeps
// all revisions until they are compacted: one with limits needs
// --auto-compaction-retention, or its quota is used up by millions of
// decisions.
//
// What is idle goes with its lease. A process has one lease for all that is to be
// kept for about equally long, of twice that at least, and never of less than
// 8 s. It is let run out, and another is granted when it has become too short: a
// key stays for up to four times as long as it is of effect, or 8 s. A state has
// about 20 bytes for each number: a full log of 10 000 has 200 kB, which every
// decision sends, and a request that comes to more than the server's
// --max-request-bytes fails with driver.ErrUnavailable.
//
// # The clock of limits
//
// etcd tells no time, so the clock of each caller decides, and what a limit
// promises is exact only as far as clocks agree. Each state holds the newest time
// that it has seen, and nobody decides by an earlier one:
//
//   - A clock that is behind, or goes back, gives nothing twice. The process goes
//     on from the time in the state at half the speed until its own clock has
//     caught up. What it waits for takes up to twice as long meanwhile.
//   - A clock that is ahead by d gives back what others took up to d early, once:
//     from then on its time is that of the limit. In a time t never more is
//     allowed than the limit would allow in t+d, where d is how far the fastest
//     clock is ahead of the slowest; and anew when the key was idle for so long
//     that it was forgotten.
//   - What is remembered for an ID is forgotten d early by a clock that is ahead
//     by d.
//
// No difference is refused or told of: of two clocks none knows which is wrong.
// Have them set by NTP; half a second matters to a limit per second and not to
// one per hour. Taken.At shows by which time a decision was made.
//
// # Records
//
// The record of an operation is one line of JSON,
//
//	<prefix>/<tab>records/<key>
//
// on a lease of its own that lasts for as long as it is to be kept, and a second
// or two more. Like that of a lock it is read and written through the majority.
package etcdstore
