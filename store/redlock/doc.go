// Package redlock keeps locks on a majority of independent servers, by the algorithm
// Redlock (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/). It
// adds what critics of Redlock missed: a fencing token, and no votes of servers that may
// have forgotten a lock.
//
// It is a quorum over any stores that implement quorum.Member, usually five Redis servers
// without replicas: the URL redlock://h1,h2,h3,h4,h5 makes those. Each server holds the
// plain lock of package redisstore, so Baton and other Redlock clients (redsync,
// node-redlock, redlock-php) exclude each other on the same servers, in both directions.
//
// # What it promises
//
// The process that holds a lock on more than half of the servers has the lock. So a lock
// survives the loss of fewer than half of them: they may crash, hang, or be cut off. A
// process relies on a claim from when it sent the request, for the TTL less 1 % of it and
// 2 ms, because clocks may run at different speeds.
//
// The store first asks a majority of the servers, the first in the list that answer, and
// a millisecond later the others if the lock is still held. So shorter locks cost three
// fifths of the work. Until then a lock also survives the crash of a minority, because a
// server that crashes does not vote. But it does not survive a clock jump, or the
// deletion of the lock by a person, on a single server of the majority.
//
// The token of a grant is the highest that its majority gave, and is written back to that
// majority before the caller gets the lock. Any two majorities share a server, which
// makes the next grant after that, so the next token is higher. If the counters of a
// majority agree, as they do while one program locks and unlocks, that takes no round
// trip of its own. A process that repeats another one's request asks the counters, so the
// token does not fall. Two concurrent readers may have the same token, from different
// servers.
//
// A server that restarts may have forgotten a held lock. So its grants do not count until
// the longest TTL of claims (LongestTTL) has passed since its start. That includes the
// first start: new servers grant nothing for that long, unless Durable says that they
// never forget.
//
// # What it does not promise
//
// The servers' clocks must advance at about the same speed. If clocks jump on so many
// servers that no majority of the others still has the lock, two processes may consider
// themselves the holder. So may they if an operator deletes a lock on that many servers.
//
// There are no permits. Each server bounds only its own holders, and two holders need not
// share a server: five servers with C holders each allow 5C grants, every holder needs
// three, so 5C/3 could hold at the same time. Readers and the exclusive lock do not have
// this problem, because a writer's majority meets every reader's.
//
// # Waiting
//
// All waiters of a key queue on one of the servers, which the key and the order of the
// servers decide. The waiter that this server grants then asks for the majority. So
// waiters do not split the votes among themselves, a release wakes one of them, and a
// position costs only an occasional command to one server. While all processes see the
// same servers and list them in the same order, grants are first come, first served. When
// that server does not answer the next one replaces it, and for a time there may be two
// queues: their heads compete on the other servers, and a head without a majority soon
// gives up for a random time. So neither the order nor a bound on the queue
// (Request.MaxWaiting), which is that of one server, is a promise.
//
// Other Redlock clients do not know the queue. While one of them holds, every waiter also
// tries for a majority itself, every 10 to 50 ms.
package redlock
