//go:build !unix

package redisstore

// quietSocket takes every socket for one that stands. If it does not, the next call
// finds out, and has an unknown outcome.
func quietSocket(uintptr) bool { return true }
