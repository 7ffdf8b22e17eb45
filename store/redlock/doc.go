// Package redlock keeps locks on a majority of independent servers, by the
// algorithm that Redis's documentation calls Redlock, with what its critics
// missed: a fencing token, and servers that restarted do not vote.
//
// It is a quorum over any stores that implement quorum.Member. The usual ones
// are five Redis servers without replicas; the URL redlock://h1,h2,h3,h4,h5
// makes those. As each server holds the plain lock of package redisstore, Baton
// and other Redlock clients (redsync, node-redlock, redlock-php) exclude each
// other on the same servers, in both directions.
//
// # What it promises
//
// The process that holds a lock on more than half of the servers has the lock. So a
// lock survives the loss of fewer than half of them: they may crash, hang, or be cut
// off. A process trusts a claim from when it sent the request, for the TTL less 1 % of
// it and 2 ms, as clocks may run at different speeds.
//
// The store asks a majority of the servers first, the first in the list that answer,
// and a millisecond later the others if the lock is still held. So locks that are held
// for less cost three fifths of the work. Until then a lock also survives a minority
// that crashes, because a server that crashes does not vote. But a single server of the
// majority whose clock jumps, or on which a person deletes the lock, is then one too
// many.
//
// The token of a grant is the highest that its majority gave, and is written back to
// that majority before the caller gets the lock. Any two majorities share a server,
// which makes the next grant after that, so the next token is higher. When the counters
// of a majority agree, as they do while one program locks and unlocks, that takes no
// round trip of its own. A process that repeats another one's request asks the counters,
// so the token does not fall. Two readers that were granted at the same time may have the
// same token, from different servers.
//
// A server that restarts may have forgotten a lock that is held. So its grants do not
// count until the longest TTL that claims may have (LongestTTL) has passed since its
// start. That includes the first start: a fresh set of servers grants nothing for that
// long, unless Durable says that nothing is ever forgotten.
//
// # What it does not promise
//
// The servers' clocks must advance at about the same speed. If clocks jump on so many
// servers that fewer than a majority of the others still has the lock, two processes may
// consider themselves the holder. The same goes for a lock that an operator deletes on
// that many servers.
//
// There are no permits. Each server by itself bounds how many hold there, but holders
// need not meet on one server: five servers that admit C holders each admit 5C grants,
// every holder takes three, so 5C/3 could hold at the same time. Readers and the
// exclusive lock do not have this problem, as a writer's majority meets every reader's.
//
// # Waiting
//
// All waiters of a key queue on one of the servers, which the key and the order of the
// servers decide. The waiter that this server grants then asks for the majority. So
// waiters do not split the votes among themselves, a release wakes one of them, and a
// position costs one server one command now and then. While all processes see the same
// servers and list them in the same order, grants are first come, first served. When
// that server does not answer the next one replaces it, and for a time there may be two
// queues: their heads meet on the other servers, and a head that gets no majority soon
// steps back for a random time. So the order is no promise, and nor is a bound on the
// queue (Request.MaxWaiting): it is that of the one server.
//
// Other Redlock clients do not know the queue. While one of them holds, every waiter
// also tries for a majority itself, every 10 to 50 ms.
package redlock
