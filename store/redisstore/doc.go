// Package redisstore keeps locks, rate limits and records of operations in Redis 6.2 or
// newer: a single server, one behind Sentinel, or Cluster. Valkey and other servers
// that speak the same protocol and run Lua scripts work, too. Open connects by itself,
// New takes a client of go-redis v9, package redisstore/rueidisstore one of rueidis.
//
// # What is on the server
//
// An exclusive lock is the plain key <prefix><key> with an expiry, set by SET NX PX.
// Locks of other programs in this form (redsync, redislock, node-redlock, SETNX written
// by hand) exclude it and are excluded by it if they use the same name.
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
// A limit's state is the list of numbers of package internal/rate. It expires when it has
// no effect any more.
//
// The token is the server's time of the grant in microseconds, or a little more. A
// released lock leaves only T, for 140 ms, and H, which all locks (in Cluster: all of a
// slot) share.
//
// # A server whose memory is full
//
// The server refuses new locks. It still renews holders and waiters, and releases and
// hands over locks: the scripts for that begin with a write that needs no memory, after
// which Redis lets them write on. While a slot of Cluster is moved to another node, the
// scripts that renew and release holders name only keys that exist then; other scripts
// are refused until the move is over.
//
// A program with an access list needs the keys ~<prefix>*, the channels &<prefix>baton:*,
// and the scripting, string, list, hash, sorted set and publish commands in the files of
// scripts/.
//
// # Waiting
//
// The script that releases a lock grants it to the head of the queue and publishes the
// grant on the channel of that waiter's process. Each process has one connection that
// reads its channel, opened when it is first needed. The scripts use PUBLISH in Cluster,
// too: SPUBLISH needs Redis 7, and a script may use it only for channels on its own slot,
// so a process would have to read thousands of channels. A message may be lost; a waiter
// finds its grant when it renews its position. A user without the rights to publish or to
// subscribe polls every 10 to 50 ms, and Examine reports it.
//
// No process of Baton overtakes the queue. Other programs' clients do not know the queue:
// while processes of Baton wait for a key, such a client finds it free only when the
// queue is empty.
//
// # Speed
//
// Acquiring and releasing a free exclusive lock is one script each, and so is a decision
// about limits. They run on the caller's goroutine. When several goroutines wait for the
// server, the store merges their scripts into few calls, and makes equal decisions in one
// step. It cannot in Cluster, where a call has one slot. There, too, most slots have had
// no recent grant, so most grants seed their slot's counter: four more calls within the
// server, and no round trip.
//
// # Several locks
//
// AcquireAll is one script for all locks, and so is LockAll while all are free. In
// Cluster they must share a slot: give their keys a common tag in braces, as in
// {user1}.cart and {user1}.purse, or the store a prefix with one. Locks of several slots
// are locked one after the other.
//
// # What Redis does not promise
//
// Replication is asynchronous. Without Config.Replicas a failover may lose a held lock,
// and two processes may consider themselves its holder. Tokens still rise, because the
// new primary seeds its counter from its clock; they may repeat if a replica is promoted
// while the old primary still grants, within 140 ms of its last grant. Likewise a limit
// may allow again what the new primary does not know, and an operation may run again
// whose outcome it does not know. A server that has become a replica still answers
// Inspect, with what it knew last, and refuses requests.
package redisstore
