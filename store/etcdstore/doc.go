// Package etcdstore keeps locks, rate limits and records in etcd 3.4 or newer, one
// member or a cluster.
//
// # How the data lie
//
// Each holder and each waiter of a lock has a name below the lock's, on a lease of etcd:
//
//	<prefix>/<key>/<process>                     and <process>-1, -2 … for further claims
//	{"baton":1,"owner":"host:4711","id":"…"}     the value; also "weight" and "capacity", unless exclusive
//
// The order in which the names were created is the queue, and the create revision is the
// fencing token. A user who knows the ID can release the lock, so grant the right to read
// the names with care. Limits, the memory of their requests' IDs, overrides and records
// are below <prefix>/<tab>limits/, ids/, overrides/ and records/: a lock's key has no
// tab.
//
// "etcdctl lock <prefix>/<key>", and other programs with etcd's own concurrency package,
// share the queue with Baton. To Baton their names are exclusive contenders; to them
// every name of Baton's is one, even of readers and permits. A name without a lease is
// not a lock: Baton does not change it, and refuses the key.
//
// "a" and "a/b" are different locks. But "etcdctl lock a" waits for the contenders of
// "a/b", too. The server reads the names of all keys below "a" together with those of
// "a": acquiring "a" beside 20 000 locks "a/…" takes about 100 ms.
//
// # What it promises for locks
//
// A process has one lease for each TTL in whole seconds, and one of two seconds for its
// waiters. Only calls of Acquire and Renew keep them alive: a process that hangs or dies
// loses everything when they end. A live process removes the names of claims that it no
// longer renews. A server grants no lease shorter than one and a half election timeouts,
// two seconds by default: a process that died blocks others for that long.
//
// Another process can renew, release and repeat a claim by its ID: it puts the name on a
// lease of its own, and the earlier process no longer changes the name. A request with
// driver.Request.Retry looks for the ID before it puts a name.
//
// Acquiring and releasing a free lock is one transaction each; requests that come while
// transactions are under way share the next one. A waiter learns of its grant by a watch.
// Renewing takes one message for each lease and one read for a hundred locks, and writes
// nothing. baton.LockAll takes the locks one after the other.
//
// # A member that hangs
//
// A member whose disk or process hangs keeps its connections. When it has not answered
// within a twelfth of the TTL, the store also asks the next endpoint. So locks work as
// long as most members work and the endpoints name one of those. For limits and records
// the store asks only one member: a request to one that hangs fails after 5 s at the
// latest. A late effect of such a member, perhaps after hours, is undone, or fails
// because its lease has ended: about four thirds of the TTL after the request.
//
// An answer about a lease counts only when an answer of the majority confirms it, because
// a deposed leader may not know that it is one. Releases before 3.4.31, and of 3.5 before
// 3.5.13, end all leases when a leader's disk resumes after it hung
// (https://github.com/etcd-io/etcd/issues/15247): no client can prevent that, and "baton
// doctor" calls them unsafe.
//
// Store.Take says what limits promise. A record is one line of JSON on a lease of its
// own, which lasts a second or two longer than required; it is read and written through
// the majority.
package etcdstore
