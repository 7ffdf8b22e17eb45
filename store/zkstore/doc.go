// Package zkstore keeps locks and records in ZooKeeper.
//
// # How the data lie
//
// A key is one node below the root, and its children are the queue: ephemeral
// sequential nodes, of which the first holds the lock and each other one waits for the
// one before it. The nodes have the names that Apache Curator's InterProcessMutex and
// InterProcessReadWriteLock expect, so that Baton and Curator exclude each other on one
// path. So do Baton and kazoo's Lock if that is given extra_lock_patterns=["-lock-"].
// Only Curator's read-write lock knows shared locks.
//
// An acquisition that finds an empty queue is one transaction, and so is its release;
// those of many keys at the same time share one. The fencing token is the czxid: the
// number of that transaction, which rises for as long as the ensemble lives.
//
// # Sessions
//
// ZooKeeper ties the nodes to the session of their process. That has three
// consequences, and no setting avoids them:
//
//   - The longest TTL is half of the session's time-out, because what an
//     answer proves about the session is not more (see Session). The default
//     is a session of 30 s and a TTL of 15 s.
//   - Within a process that lives, a claim ends with its TTL. The claims of a
//     process that died, of holders and waiters alike, stay until its session
//     ends: for the session's time-out and a tick.
//   - A claim belongs to the process that made it. Another one cannot renew or
//     release it, so only the same store can attach a detached lease.
//
// If a server is silent while a request is under way, the store moves to another one if
// there are several, long before the client would: after an eighth of the session's
// time-out, or a quarter of the TTL that leases are renewed with, but not before half a
// second. The session goes on there.
//
// Nothing is trusted for longer than a commit proves the session to live: a server that
// was cut off from the others goes on answering reads. The proof needs sessions that
// last two ticks at least, as servers grant them unless minSessionTimeout was set
// lower: a follower tells the leader only at each half tick which sessions it has heard
// from.
//
// # Data of other programs
//
// The node of a key has no data. If it has data when this process first needs it, the
// store leaves them alone and refuses the key. After that the store knows the node as a
// lock's, and remembers the latest few thousand of those. An acquisition empties such a
// node without reading it: it writes to the node to learn how long the queue is.
//
// # Records
//
// The record of an operation is a line of JSON, and the result behind it, in a persistent
// node,
//
//	<root>/%records/<3 digits>/<key>
//
// in one of 4096 folders, because no server lists a folder of very many nodes. Before
// it are when it was written and until when it is kept, by the server's clock, which the server tells to a process
// that writes; a leader whose clock is ahead of its predecessor's forgets the record
// that much earlier. Processes that write records later delete those that have expired.
// Every call reads after a sync, so that no server answers with an old state.
package zkstore
