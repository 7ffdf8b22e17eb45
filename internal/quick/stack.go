// Package quick makes short messages between servers and clients cheap: the system calls
// of their sockets, and the stacks of their goroutines.
package quick

// Stack grows the stack of a new goroutine once, to the size that a request to a store
// needs. Otherwise the stack grows several times deep in these calls and is copied each
// time, which costs a tenth of a request.
//
//go:noinline
func Stack() { // the space is free again when Stack returns; the stack keeps its size
	var room [8 << 10]byte
	use(&room)
}

//go:noinline
func use(*[8 << 10]byte) {}
