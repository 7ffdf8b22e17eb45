// Package election makes one of many programs the leader: a lease that a program
// keeps. An election is the exclusive lock of its name, so it works on any store,
// and "baton show NAME" shows the leader and who comes next.
//
//	err := election.Run(ctx, locks, "scheduler", func(ctx context.Context, l *election.Leadership) error {
//		return schedule(ctx, l.Token()) // ctx ends with the leadership
//	})
//
// # What is promised
//
// Exclusive belief: for no two candidates is IsLeader true, or a context of
// leadership not ended, at the same instant. A leader that cannot renew its
// leadership stops believing in it before the store can elect another, by the time
// that baton.Config.Margin sets.
//
// No overlap by giving up: a leader that resigns, or whose program is told to end,
// stays elected until its lead has returned. The next one is elected after that,
// never while that lead still runs.
//
// Fencing: Leadership.Token rises with every leadership of the name. Pass it to
// what the leader changes, and make that refuse a lower token after a higher one.
//
// Order: on stores with the trait FIFO, candidates of different processes are
// elected in the order in which they came. A leader that resigns goes to the end of
// the queue. No candidate can win twice while others wait.
//
// Liveness: a leader that crashed is followed within its TTL by the next one.
//
// # What is not
//
// That a leader stops although its lead does not return. Its context has ended, and
// this package can do no more: if the leadership was lost, another may lead beside
// it. Events.Late and the Logger report such a leader again and again until lead
// returns, and its candidate stands for no election meanwhile. A program that
// cannot be sure of what it calls should end at the first report.
//
// That no program acts on a leadership that has passed. A program may be stopped
// for a minute between asking IsLeader and writing. That is what the token is for.
//
// That Observe sees every leader: it looks twice a second, and misses one that came
// and went between two looks. It never misses the present one.
//
// # Which token do I pass?
//
// That of this very leadership: guard.Of(l). Once another leader has followed, the
// guard refuses it. See the example of Leadership.Token.
//
// # Where is it checked?
//
// Where what the leader does takes effect, in the same step, by package guard. A
// look at IsLeader, or at the context of lead, comes before that step: it saves
// useless work and guards nothing.
//
// # What if I cannot change the resource?
//
// If it is a database that Baton can keep its locks in, commit with InTx of the
// store, which takes a Leadership. Otherwise see the same question in package
// guard, and end the program at the first Events.Late.
//
// # What if the process stops here?
//
// Before lead is called: it is not called if the leadership is over by then. In
// lead: another is elected within the TTL; when this one continues, its context has
// ended, and IsLeader is false from its first call. After lead has returned and
// before the leadership is given up: the next one is elected within the TTL, and
// nothing overlaps.
//
// # The value
//
// Candidate.Value is what observers learn of the leader, such as the address at
// which to reach it. Stores keep it as the owner of a lock: at most 128 bytes of
// printable UTF-8, shown byte by byte as it was given. Everyone who can read the
// store sees it, so it must not contain a secret.
//
// A leader can change it with Leadership.Publish, if the store can: when it knows the
// port on which it listens, or has read what it needs to serve. A later leadership
// begins with Candidate.Value again.
package election
