// Package server gives programs in every language locks, limits and operations that
// succeed once, over a network: by gRPC and by JSON, on one port, from one description in
// batonv1/baton.proto.
//
//	s, err := server.New(server.Config{Store: store, Secret: secret})
//	h := server.HTTPServer(s.Handler())
//	err = h.Serve(listener)
//	…
//	s.Shutdown(ctx) // waiting calls are answered
//	h.Shutdown(ctx)
//
// The server keeps nothing that can be lost. The lock is in the store, and the client has
// a handle for it, a sealed text. Every server over the same store that has the same
// secret opens it, so that a client renews at one what it got at another.
//
// # Time
//
// Every remaining_ms counts from when the client sent its request, on a clock of the
// client's own that goes on through suspend. It contains the time that the call waited:
// every delay on the way, a proxy's, a network's or that of a repetition by a library,
// makes the client believe for less long and never for longer.
//
// # Calls that are repeated
//
// A client may draw an op for each lock that it wants. The claim's ID is a keyed hash of
// the caller, the key and the op, so that a repetition at any server finds what the first
// call got, and nobody who guesses an op has another's claim. A call with an op is never
// undone by the server: not when its connection ends, nor at the end of its wait, as a
// repetition of it may have its answer already. What nobody asks for again runs out: a
// position after driver.WaiterTTL, a grant after its TTL. Cancel ends both at once.
//
// A call without an op cannot be repeated. If its connection ends before the answer, the
// server releases what the call has got.
//
// # What is not promised
//
// A lease that was released can be granted again by a late duplicate of the request that
// got it, and then stands for its TTL. So an op is used for one lease, and the token of
// the last answer is the one that counts.
//
// Stores that tie locks to the process that took them (driver.Traits.Sessions) are
// refused: there a host's agent is the process.
package server
