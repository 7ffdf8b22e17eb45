// Package server gives programs in every language locks, limits and operations that
// succeed once, over a network: by gRPC and by JSON, on one port. batonv1/baton.proto
// describes both.
//
//	s, err := server.New(server.Config{Store: store, Secret: secret})
//	h := server.HTTPServer(s.Handler())
//	err = h.Serve(listener)
//	…
//	s.Shutdown(ctx) // waiting calls are answered
//	h.Shutdown(ctx)
//
// The server has no state that can be lost. The lock is in the store, and the client has a
// handle for it: a sealed text. Every server over the same store with the same secret
// opens the handle, so a client may renew at one server what another has granted.
//
// # Time
//
// Every remaining_ms counts from when the client sent its request, on a clock of the
// client that continues through suspend. It includes the time that the call waited. So any
// delay on the way, by a proxy, a network or a retry of a library, makes the client
// consider itself the holder for a shorter time, never for a longer one.
//
// # Calls that are repeated
//
// A client may draw an op for each lock that it wants. The claim's ID is a keyed hash of
// the caller, the key and the op. So a repeated call, at any server, finds what the first
// call got, and a guessed op gives no access to another caller's claim.
//
// The server never undoes a call with an op, neither when its connection ends nor at the
// end of its wait: a repetition may have been answered already. If no call repeats it,
// what it got expires: a position after driver.WaiterTTL, a grant after its TTL. Cancel
// ends both at once.
//
// A call without an op cannot be repeated. If its connection ends before the answer, the
// server releases what the call got.
//
// # What is not promised
//
// A late duplicate of a request can get its lease again after the release; that lease
// lasts for its TTL. So use an op for one lease, and use the token of the last answer.
//
// Stores that tie locks to the process that took them (driver.Traits.Sessions) are
// refused: use an agent on each host with them.
package server
