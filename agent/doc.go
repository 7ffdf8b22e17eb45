// Package agent gives the processes of one host locks over a socket, in any language.
//
// A connection is a session. A session requests locks by lines of JSON, and holds them
// until it unlocks them or ends. The kernel ends the session of a process that dies, so
// its locks are free at once: like flock(2), but across machines and with tokens. The
// agent renews leases, waits in the store's queue, and tells of losses.
//
//	locks, err := baton.New(store, baton.Config{})
//	server, err := agent.New(locks, agent.Config{})
//	err = server.Serve(ctx, listener) // of a Unix socket, until ctx ends
//
// # What is promised
//
// All sessions share one Locker, and so one local queue for each key: 200 waiting
// processes take one position in the store's queue, and are served first come, first
// served.
//
// The agent ends a session because a lock was lost or held too long, because the agent
// stops, or because the client breaks the protocol. It tells the client why, unless the
// client does not read. The client's other locks are kept until it has closed the
// connection, or until the time that it was promised is over, at least for a quarter of a
// second.
//
// A running agent tells of an expiry before the store can grant the lock to another
// holder.
//
// Every remaining_ms counts from when the client sent its request. It holds even if the
// agent stops right after its answer, or ends the session: the lock ends earlier only if
// it is unlocked or broken, or the client closes the connection. A stopping agent leaves
// such locks to expire: see Server.Serve.
//
// # What is not
//
// A paused process keeps its locks. Config.MaxHold, or max_hold_ms of the request, bounds
// that.
//
// The agent itself can be paused while its client runs. Then the client gets no message,
// and the store grants the lock to another holder after the TTL. Before a step that must
// not happen twice a client sends check, and takes the step within remaining_ms. In all
// other cases the token protects, as with every lease: see the documentation of package
// baton.
//
// The kernel ends a session when the last process closes the connection: a child that
// inherited the connection keeps the locks.
package agent
