// Package etcdstore keeps locks, rate limits and records in etcd 3.4 or newer, one
// member or a cluster.
//
// # What is on the server
//
// Each holder and each waiter of a lock has a name below the lock's,
//
//	<prefix>/<key>/<process>     and <process>-1, -2 … for further ones of the same process
//
// with a value that says who it is,
//
//	{"baton":1,"owner":"host:4711","id":"…"}     "weight" and "capacity" too, unless it is exclusive
//
// on a lease of etcd. The order in which the names were created is the queue, and the
// create revision is the fencing token. A user who knows the ID can release the lock,
// so grant the right to read the names with care.
//
// "etcdctl lock <prefix>/<key>", and whatever else uses etcd's own concurrency package,
// excludes Baton and is excluded by it, in one queue. To Baton such a name is an
// exclusive contender; to such a client every name of Baton's is one, readers and
// permits too. A name without a lease is not a lock: Baton leaves it alone, and refuses
// the key.
//
// A key may contain slashes: "a" and "a/b" are different locks. But "etcdctl lock a"
// waits for the contenders for "a/b", too. And the server reads the names of all keys
// below "a" together with those of "a": acquiring it beside 20 000 locks "a/…" takes
// about 100 ms. Baton has to read those names before it can tell them from contenders
// for "a", as another client may contend by any name.
//
// # Time
//
// A process has one lease for each TTL in whole seconds, and one of two seconds for its
// waiters. Only calls of Acquire and Renew keep it alive: a process that hangs or dies
// loses everything when its lease ends. The name of a claim that a living process no
// longer renews is removed by that process.
//
// Another process can renew, release and ask again for the same claim, by its ID: it puts
// the claim's name on a lease of its own, and the process before leaves the name alone from
// then on. A request with driver.Request.Retry reads the queue and looks for the ID before it
// puts a name; one that comes first does not, and so takes no further round trip.
//
// A server grants no lease shorter than one and a half election time-outs: two seconds
// by default. On a server with a longer election time-out a process that died blocks
// other processes for that long.
//
// # Speed
//
// Acquiring and releasing a free lock is one transaction each. While transactions are
// under way, further requests of the same process gather, and go together in the next
// one. A waiter follows the queue by a watch that the whole process shares, and learns
// of its grant from the event that caused it. Joining a queue behind waiters of the
// same process waits up to 4 ms for a transaction to share. Renewing takes one message
// for each lease and one read for a hundred locks, and writes nothing. The messages go
// by one stream that stays open, so that a user logs in once.
//
// # A member that hangs
//
// A member whose disk or process hangs keeps its connections. When it has not answered
// within a twelfth of the TTL, the store also asks the next endpoint, by a separate
// connection. So locks are acquired, renewed and released as long as most members work
// and the endpoints name one of those. For limits and records the store asks only one
// member: a request that went to one that hangs fails after 5 s at the latest, and the
// next request goes to another.
//
// When such a member goes on, perhaps after hours, it may still do what it was asked. A
// name that it puts within the first ten seconds is removed. The process also replaces
// the lease by another one, so that after about four thirds of the TTL the lease that
// the name would be put on has ended.
//
// What a member says of a lease counts only once an answer of the majority confirms it,
// as a deposed leader may not know that it is one. Releases before 3.4.31, and of 3.5
// before 3.5.13, end all leases when a leader's disk goes on after it hung (etcd's
// issue 15247): no client can prevent that, and "baton doctor" calls them unsafe.
//
// # Several locks
//
// AcquireAll is one transaction for all locks, and so is LockAll as long as all are
// free. They then have the same token. If readers already hold one of them, or keys
// below one have names, it takes two. A refused call has read the queues of all.
//
// # Limits
//
// The store keeps what was taken from a limit, and what is remembered for the ID of a
// request, as numbers under
//
//	<prefix>/<tab>limits/<key>
//	<prefix>/<tab>ids/<id>/<key>
//
// where a tab, which no key of a lock has, keeps them apart from locks. ("etcdctl lock
// <prefix>" itself waits for them, as for all that is below it.) The process that asks
// makes the decision, and writes it on the condition that what it was made of is
// unchanged. That is one round trip, one more for each time that another process was
// faster, and one for many calls of one process that want the same key at the same
// time. Processes that compete for one key do not wait for each other, and none is sure
// to be next.
//
// Each write is a revision of etcd; decisions of one process that are under way at the
// same time share one. A look and a refusal write nothing. A server keeps all revisions
// until they are compacted: one with limits needs --auto-compaction-retention, or
// millions of decisions use up its quota.
//
// State that is no longer used ends with its lease. A process has one lease for all
// state that is to be kept for about equally long, of at least twice that time, and
// never of less than 8 s. The process lets it run out, and asks for another when it has
// become too short: a key stays for up to four times as long as it is of effect, or 8
// s. A state has about 20 bytes for each number: a full log of 10 000 has 200 kB, which
// every decision sends. A request of more than the server's --max-request-bytes fails
// with driver.ErrUnavailable.
//
// # The clock of limits
//
// etcd tells no time, so the clock of each caller decides, and what a limit promises is
// exact only as far as clocks agree. Each state holds the newest time that it has seen,
// and no process decides by an earlier one:
//
//   - A clock that is behind, or goes back, gives nothing twice. The process goes
//     on from the time in the state at half the speed until its own clock has
//     caught up. What it waits for takes up to twice as long meanwhile.
//   - A clock that is ahead by d gives back what other processes took up to d early,
//     once: from then on its time is that of the limit. In a time t never more is
//     allowed than the limit would allow in t+d, where d is how far the fastest clock
//     is ahead of the slowest. If the key was idle for long enough to be forgotten,
//     that can happen once more.
//   - What is remembered for an ID is forgotten d early by a clock that is ahead
//     by d.
//
// No difference is refused or reported: of two clocks it is unknown which is wrong.
// Have them set by NTP; half a second matters to a limit per second and not to one per
// hour. Taken.At shows by which time a decision was made.
//
// # Records
//
// The record of an operation is one line of JSON,
//
//	<prefix>/<tab>records/<key>
//
// on a lease of its own that lasts for as long as the record is to be kept, and a
// second or two more. It is read and written through the majority, as a lock is.
package etcdstore
