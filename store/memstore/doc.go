// Package memstore keeps locks, rate limits and records in the memory of this process. It
// is the reference among the stores, the fastest one, and the one for tests and examples:
// it needs no server, starts no goroutine, and follows fake time within a
// testing/synctest bubble.
//
// All data end with the process. Other processes do not see them.
//
// # How the data lie
//
// Keys are spread over 64 shards by a seeded hash, each with its own mutex and maps. The
// state of a lock is a lockstate.State, which decides everything about one key; the state
// of a limit is a rate.State. Prepared token buckets (see Store.Prepare) are in a table
// that is read without a mutex.
//
// No timer runs. Later operations drop unused states: of locks when their map would grow,
// of limits a few at a time.
package memstore
