// Package etcdstore keeps locks in etcd 3.4 or newer, one member or a cluster.
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
// lock a" takes those who want "a/b" for its own.
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
// nothing.
package etcdstore
