// Package zkstore keeps locks and records in ZooKeeper.
//
// # How the data lie
//
// A key is one node below the root, and its children are the queue: ephemeral sequential
// nodes, of which the first holds the lock and each other one waits for the one before it
// (https://zookeeper.apache.org/doc/current/recipes.html). The nodes have the names of
// Apache Curator's InterProcessMutex and InterProcessReadWriteLock, so that Baton and
// Curator exclude each other on one path. So do Baton and kazoo's Lock with
// extra_lock_patterns=["-lock-"]. Only Curator's read-write lock knows shared locks.
//
// An acquisition that finds an empty queue is one transaction, and so is its release;
// concurrent ones of many keys share one. The fencing token is the czxid: the number of
// that transaction, which rises for as long as the ensemble lives.
//
// # Sessions
//
// ZooKeeper ties the nodes to the session of their process. That has three consequences,
// and no setting avoids them:
//
//   - The longest TTL is half of the session's timeout, because an answer proves no more
//     about the session (see Session). The default is a session of 30 s and a TTL of 15
//     s.
//   - In a live process a claim ends with its TTL. The claims of a dead process, of
//     holders and waiters alike, stay until its session ends: for the session's timeout
//     and a tick.
//   - A claim belongs to the process that made it. Another one cannot renew or release
//     it, so only the same store can attach a detached lease.
//
// If a server is silent while a request is under way, the store moves to another server,
// if there is one, long before the client would: after an eighth of the session's
// timeout, or a quarter of the TTL of renewals, but at least half a second. The session
// continues there.
//
// The store relies on a session only for as long as a commit proves it to live: a server
// that was cut off from the others continues to answer reads. The proof needs sessions of
// at least two ticks, which servers grant unless minSessionTimeout was set lower: a
// follower tells the leader only at each half tick which sessions are active.
//
// # Data of other programs
//
// The node of a key has no data. If it has data when this process first needs it, the
// store does not change them and refuses the key. After that the store knows the node as
// a lock's; it remembers the latest few thousand. An acquisition empties such a node
// without reading it: it writes to the node to learn the length of the queue.
//
// # Records
//
// The record of an operation is a line of JSON, followed by the result, in a persistent
// node,
//
//	<root>/%records/<3 digits>/<key>
//
// in one of 4096 folders, because no server lists a folder of very many nodes. The data
// begin with the times of the write and of the end, by the server's clock, which a server
// tells in the answer to a write. A leader whose clock is ahead of its predecessor's
// forgets the record that much earlier. Processes that write records later delete expired
// ones. Every call reads after a sync, so that no server answers with an old state.
package zkstore
