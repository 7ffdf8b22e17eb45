// Package election makes one of many programs the leader: a lease that you
// keep. An election is the exclusive lock of its name, so it stands on any
// store, and "baton show NAME" shows the leader and who comes next.
//
//	err := election.Run(ctx, locks, "scheduler", func(ctx context.Context, l *election.Leadership) error {
//		return schedule(ctx, l.Token()) // ctx ends with the leadership
//	})
//
// # What is promised
//
// Exclusive belief: no two candidates have IsLeader answer true, or a context
// of leadership that has not ended, at the same instant. A leader that cannot
// renew its leadership stops believing before the store can elect another, by
// the time that baton.Config.Margin sets.
//
// No overlap by giving up: a leader that resigns, or whose program is told to
// end, stays elected until its lead has returned. The next one is elected after
// that, never while it still runs.
//
// Fencing: Leadership.Token rises with every leadership of the name. Pass it
// to what the leader changes, and have that refuse a lower one after a higher
// one.
//
// Order: candidates of different processes are elected in the order in which
// they came, on stores with the trait FIFO. A leader that resigns goes to the
// end of the line. Nobody can win twice while others wait.
//
// Liveness: a leader that crashed is followed within its TTL by the next one.
//
// # What is not
//
// That a leader whose lead does not return stops. Its context has ended, and
// nobody can do more for it: if it was lost, another may lead beside it. Such a
// leader is reported by Trace.Late and to the Logger, again and again until it
// returns, and its candidate stands for no election meanwhile. Programs that
// cannot be sure of what they call should end at the first report.
//
// That nobody acts on a leadership that has passed. A program may be stopped
// for a minute between asking IsLeader and writing. That is what the token is
// for.
//
// That every leader is seen by Observe: it looks twice a second, and one that
// came and went between two looks is missed. The present one never is.
//
// # Which token do I pass?
//
// That of this very leadership: guard.Of(l). A leader that was followed by
// another is refused from then on. See the example of Leadership.Token.
//
// # Where is it checked?
//
// Where what the leader does takes effect, in the same step, by package guard.
// IsLeader, and the context of lead, are looked at before that step: they spare
// work in vain and guard nothing.
//
// # What if I cannot change the resource?
//
// If it is a database that Baton can keep its locks in, commit with InTx of the
// store, which takes a Leadership. Otherwise see the same question in package
// guard, and end the program at the first Trace.Late.
//
// # What if the process stops here?
//
// Before lead is called: it is not called if the leadership is over by then.
// In lead: another is elected within the TTL; this one's context has ended when
// it goes on, and IsLeader is false from its first call. After lead has
// returned and before the leadership is given up: the next one is elected within
// the TTL, and nothing overlaps.
//
// # The value
//
// Candidate.Value is what observers learn of the leader, the address at which
// it is found for example. It travels as the text that stores show as a lock's
// owner: at most 128 bytes of printable UTF-8, shown byte by byte as it was
// given. It is seen by everybody who can read the store, so it is no place for
// a secret, and it stays the same for as long as the leadership lasts.
package election
