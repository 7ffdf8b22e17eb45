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
// A lock is held by whoever holds it on more than half of the servers. So it
// survives the loss of fewer than half of them: they may crash, hang, or be cut
// off. A claim is trusted until the moment its request was sent, plus its TTL,
// minus 1 % of that and 2 ms for clocks that run at different speeds.
//
// A lock is asked for on a majority of the servers first, those that stand first
// in the list and answer, and a millisecond later on the others if it is still
// held, so that the work of locks that are held for less is three fifths. Until
// then what is said of a minority that fails holds as well: a server that crashes
// does not vote. But one whose clock jumps, or on which somebody deletes the
// lock, is then one too many.
//
// The token of a grant is the highest that its majority gave, and is written
// back to that majority before the lock is handed out. Two majorities share a
// server, and there the next grant comes after that, so its token is higher.
// When the counters of a majority agree, as they do while one program locks and
// unlocks, that takes no round trip of its own. Two readers that were granted at
// the same time may have the same token, from different servers.
//
// A server that restarts may have forgotten a lock that is held. For the
// longest TTL that claims may have after its start (LongestTTL) its grants do
// not count. That includes the first start: a fresh set of servers grants
// nothing for that long, unless Durable says that nothing is ever forgotten.
//
// # What it does not promise
//
// The servers' clocks must advance at about the same speed. If the clocks of so
// many servers jump that fewer than a majority remain which hold the lock and
// did not, two may believe in it. The same holds for a lock that an operator
// deletes on so many of them.
//
// There are no permits. Each server by itself bounds how many hold there, but
// holders need not meet on one server: five servers that admit C holders each
// have 5C places, every holder takes three, so 5C/3 could hold together. Readers
// and the exclusive lock do not have this problem, as a writer's majority meets
// every reader's.
//
// # Waiting
//
// Everybody who waits for a key stands in line on one of the servers, which the
// key and the order of the servers decide, and the one that is granted there
// goes for the majority. So those who wait do not split the votes among
// themselves, a release wakes one of them, and a place in line costs one server
// one command now and then. While all processes see the same servers and list
// them in the same order this is first come, first served. When that server
// does not answer the next one takes its place, and for a time there may be two
// lines: their heads meet on the other servers, and one that gets no majority
// soon steps back for a random time. So it is no promise.
//
// Other Redlock clients do not know the line. While one of them holds, whoever
// waits also tries for a majority itself, every 10 to 50 ms.
package redlock
