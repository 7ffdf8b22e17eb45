// Package agent gives the processes of one host locks over a socket, in any language.
//
// A connection is a session. A session asks for locks by lines of JSON, and has them
// until it unlocks them or ends. The kernel ends the session of a process that dies, so
// its locks are free at once: flock(2), across machines, with tokens. The agent renews
// what is held, waits in the queue of the store, and tells of losses.
//
//	locks, err := baton.New(store, baton.Config{})
//	server, err := agent.New(locks, agent.Config{})
//	err = server.Serve(ctx, listener) // of a Unix socket, until ctx ends
//
// # What is promised
//
// All sessions share one Locker, and so one local queue for each key: 200 processes that
// wait cost the store one position, and are served first come, first served.
//
// A client whose session ends for a reason of the agent (a lock was lost or held too long,
// the agent is being stopped, the client does not keep to the protocol) is told so, unless
// it does not read. Its other locks stay taken until it has closed the connection, or
// until what it was promised is over, at least for a quarter of a second.
//
// An expiry is told before the store can grant the lock to another holder, if the agent runs.
//
// Every remaining_ms counts from when the client sent its request, and is what is certain
// even if the agent stops right after its answer, or ends the session: a lock ends before
// only if it is unlocked, its client closes the connection, or it is broken. An agent that
// is being stopped leaves such locks to expire: see Server.Serve.
//
// # What is not
//
// A process that is stopped keeps its locks. Config.MaxHold, or max_hold_ms of the
// request, bounds that.
//
// The agent itself can be stopped while its client runs. The client hears nothing then,
// and the store grants the lock to another holder after the TTL. Before a step that must
// not happen twice a client sends check, and takes the step within remaining_ms. The
// token is for everything else, as with every lease: see the documentation of package
// baton.
//
// The kernel ends a session when the last process that has the connection closes it: a
// child that inherited it keeps the locks.
package agent
