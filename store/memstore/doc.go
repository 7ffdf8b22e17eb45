// Package memstore keeps locks, rate limits and records in the memory of this process.
// It is the reference among the stores, the fastest one, and the one for tests and
// examples: it needs no server, starts no goroutine, and follows fake time within a
// testing/synctest bubble.
//
// All ends with the process, and other processes do not see it.
//
// # How the data lie
//
// Keys are spread over 64 shards by a seeded hash, each with its own mutex and maps. The
// state of a lock is a lockstate.State, which decides all that happens to one key; the
// state of a limit is a rate.State. Token buckets that were prepared (see Store.Prepare)
// are in a table that is read without a mutex.
//
// No timer runs. A state that is no longer used is dropped by the operations that come
// later: for a lock when its map would grow, for a limit a few at a time.
package memstore
