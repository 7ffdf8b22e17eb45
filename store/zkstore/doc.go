// Package zkstore keeps locks in ZooKeeper.
//
// A key is one node below the root, and its children are the line: ephemeral
// sequential nodes, of which the first holds the lock and each other one waits
// for the one before it. The nodes have the names that Apache Curator's
// InterProcessMutex and InterProcessReadWriteLock expect, so that Baton and
// Curator exclude each other on one path, and so do Baton and kazoo's Lock if
// that is given extra_lock_patterns=["-lock-"]. Shared locks are known to
// Curator's read-write lock only.
//
// An acquisition that finds nobody in line is one transaction, and so is its
// release; those of many keys at the same time share one. The fencing token is
// the czxid: the number of that transaction, which rises for as long as the
// ensemble lives.
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
//     release it, so a handle of a detached lease is good in the same store
//     only.
//
// A server that says nothing while it is asked something is left, for another one if
// there are several, long before the client would: after an eighth of the session's
// time-out, or a quarter of the TTL that leases are renewed with, but not before
// half a second. The session goes on there.
//
// Nothing is ever trusted for longer than the session is known to live by what
// was committed: a server that was cut off from the others goes on answering
// reads. How long that is rests on sessions that last two ticks at least, as
// servers grant them unless minSessionTimeout was set lower: a follower tells the
// leader only at each half tick of whom it has heard.
//
// # Data of others
//
// The node of a key has no data. Data that are there when this process first needs
// the node are left alone, and the key is refused. Then it is known to be a lock's,
// like the latest few thousand, and an acquisition empties it without reading it: it
// writes to the node to hear how many stand in line.
//
// # Records
//
// The record of an operation is one line of JSON in a persistent node,
//
//	<root>/%records/<3 digits>/<key>
//
// in one of 4096 folders, because no server lists a folder of very many nodes. It
// says until when it is kept, by the server's clock, which whoever writes is
// told; a leader whose clock is ahead of the last one's forgets that much
// earlier. What has expired is deleted by those who write records later. Every
// call reads after a sync, so that no server answers what was.
package zkstore
