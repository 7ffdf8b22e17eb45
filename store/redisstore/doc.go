// Package redisstore keeps locks, rate limits and records of operations in Redis 6.2 or
// newer: a single server, one behind Sentinel, or Cluster. Valkey and other servers
// that speak the same protocol and run Lua scripts work, too. Open connects by itself,
// New takes a client of go-redis v9, package redisstore/rueidisstore one of rueidis.
//
// # What is on the server
//
// An exclusive lock is the plain key <prefix><key> with an expiry, set by SET
// NX PX. Every classic Redis lock (redsync, redislock, node-redlock, SETNX
// written by hand) that uses the same name excludes it and is excluded by it.
//
//	<prefix><key>             b1:<id>:<token>:<owner>, or while readers or
//	                          permits are out b1:~readers:<n>, b1:~permits/<N>:<n>
//	<prefix>baton:q:{…}       list: the waiters, and since when they wait
//	<prefix>baton:w:{…}       hash: waiters that renewed, and when they expire
//	<prefix>baton:s:{…}       sorted set: shared holders and their deadlines
//	<prefix>baton:i:{…}       hash: kind, token and owner of shared holders
//	<prefix>baton:T, …:H      the counter of tokens and its high-water mark
//	<prefix>baton:r:{…}       the state of a rate limit: numbers
//	<prefix>baton:d:<id>:{…}  when a request to a limit was allowed, and for
//	                          which turn
//	<prefix>baton:V           hash: the overrides of limits, by their keys: until when, in
//	                          µs since 1970, and a line of JSON
//	<prefix>baton:o:{…}       what is known of an operation that is to happen once: a
//	                          line of JSON and, behind it, the result
//
// A limit's state is the list of numbers that package internal/rate makes of it.
// It is gone as soon as it has no effect any more.
//
// The token is the server's time of the grant in microseconds, or a little more. A lock
// that was released leaves only T, for 140 ms, and H, which all locks (in Cluster: all of a
// slot) share.
//
// # A server whose memory is full
//
// It refuses new locks, and keeps what it has: holders and waiters are renewed, and locks
// are released and handed over, without memory that the server does not have. The scripts
// for that begin with a write that needs none, after which Redis lets them write on. In
// Cluster, while a slot is moved to another node, the scripts that renew and release
// holders name only keys that exist then; others are refused until the move is over.
//
// A program with an access list needs the keys ~<prefix>*, the channels
// &<prefix>baton:*, and the scripting, string, list, hash, sorted set and
// publish commands that the files in scripts/ call.
//
// # Waiting
//
// The script that releases a lock grants it to the head of the queue and publishes the
// grant on the channel of that waiter's process. Each process has one connection that
// reads its channel, opened when it is first needed. The scripts use PUBLISH in
// Cluster, too: SPUBLISH exists only since Redis 7, and a script may use it only for
// channels on its own slot, so that a process would have to read thousands of them. A
// message may be lost; a waiter that renews its position finds its grant. A user
// without the rights to publish or to subscribe waits all the same: it asks every 10 to
// 50 ms, and Examine reports it.
//
// No process of Baton overtakes the queue. Classic clients do not know the queue: while
// processes of Baton wait for a key, they find it free only when the queue is empty.
//
// # Speed
//
// Acquiring and releasing a free exclusive lock is one script each, and so is a
// decision about limits. They run on the caller's goroutine. When several goroutines
// wait for the server, the store merges their scripts into few calls, and
// makes equal decisions of several goroutines in one step; not in Cluster, where a call
// has one slot. There most slots have had no grant lately, too, so that most grants
// seed their slot's counter, which costs four calls more on the server and no round
// trip.
//
// # Several locks
//
// AcquireAll is one script for all locks, and so is LockAll as long as all are
// free. In Cluster they have to lie on one slot: give their keys a common tag in
// braces, as in {user1}.cart and {user1}.purse, or the store a prefix with one.
// Locks of several slots are locked one after the other.
//
// # What Redis does not promise
//
// Replication is asynchronous. Unless Config.Replicas says to wait for replicas, a
// fail-over may forget a lock that is held, and two processes may consider themselves its
// holder; tokens still rise, as the new primary seeds its counter from its clock. They may repeat if a replica is promoted while the old primary still
// grants, within 140 ms of its last grant. Likewise a limit may allow again what the
// new primary has not heard of, and an operation whose outcome it has not heard of can
// happen again. A server that has become a replica still answers Inspect, and refuses
// requests, with what it last heard.
package redisstore
