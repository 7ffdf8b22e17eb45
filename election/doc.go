// Package election makes one of several programs the leader. An election is the exclusive
// lock of its name, so it works on any store, and "baton show NAME" shows the leader and
// the waiting candidates.
//
//	err := election.Run(ctx, locks, "scheduler", func(ctx context.Context, l *election.Leadership) error {
//		return schedule(ctx, l.Token()) // ctx ends with the leadership
//	})
//
// # What is promised
//
// Exclusive: at no instant do two candidates have a true IsLeader or an open context of
// leadership. A leader that cannot renew its leadership stops considering itself the
// leader before the store can elect another, by baton.Config.Margin.
//
// No overlap after giving up: a leader that resigns, or whose program is told to end,
// stays elected until its lead has returned. The next one is elected after that.
//
// Fencing: Leadership.Token rises with every leadership of the name. Pass it to what the
// leader changes, and make that refuse a lower token after a higher one.
//
// Order: on stores with the trait FIFO, candidates of different processes are elected in
// the order in which they came. A leader that resigns goes to the end of the queue, so no
// candidate wins twice while others wait.
//
// Liveness: a leader that crashed is followed within its TTL.
//
// # What is not
//
// That a leader stops. If its lead does not return after the end of its context, this
// package can do no more: after a loss another candidate may lead at the same time.
// Events.Late and the Logger report such a leader repeatedly until lead returns; its
// candidate takes part in no election meanwhile. A program that cannot be sure of its
// lead should end at the first report.
//
// That no program acts after the end of its leadership: a program may pause for a minute
// between asking IsLeader and writing. The token is for that case.
//
// That Observe sees every leader: it looks twice a second, and misses one that came and
// went in between. It never misses the present one.
//
// # Which token do I pass?
//
// That of this leadership: guard.Of(l). Once another leader has followed, the guard
// refuses it. See the example of Leadership.Token.
//
// # Where is it checked?
//
// Where the leader's change takes effect, in the same step, by package guard. A check of
// IsLeader or of lead's context comes before that step: it only saves useless work.
//
// # What if I cannot change the resource?
//
// If it is a database that Baton can keep its locks in, commit with InTx of the store,
// which accepts a Leadership. Otherwise see the same question in package guard, and end
// the program at the first Events.Late.
//
// # What if the process stops here?
//
// Before lead is called: lead is not called if the leadership is over by then. In lead:
// another candidate is elected within the TTL; when this process continues, its context
// has ended, and IsLeader is false from its first call. After lead has returned and
// before the leadership is given up: the next one is elected within the TTL, without
// overlap.
//
// # The value
//
// Candidate.Value is the leader's text for observers, such as its address. Stores keep it
// as the owner of a lock: at most 128 bytes of printable UTF-8, shown byte by byte.
// Everyone who can read the store sees it, so it must not contain a secret.
//
// A leader can change it with Leadership.Publish, if the store can, for example when it
// knows its port or is ready to serve. A later leadership begins with Candidate.Value
// again.
package election
