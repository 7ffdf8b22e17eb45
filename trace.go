package baton

import "time"

// Trace is told what happens to the locks of a Locker. Any function may be
// nil. They are called from the goroutines that do the work, several at a time,
// with no lock of this package held. They should return soon and must not
// panic: somebody's turn would be lost.
type Trace struct {
	// Waiting is called when a Lock has to wait: behind others of this
	// process (local) or in the store's line.
	Waiting func(key string, local bool)

	// Acquired is called when a lease was given, with the time it took.
	Acquired func(key string, token int64, waited time.Duration)

	// Renewed is called for every request that renews leases or confirms
	// places in line, with how many it carried, how many of them the store
	// could not answer, and how long it took.
	Renewed func(claims, failed int, took time.Duration)

	// Lost is called when a lease ended without an Unlock.
	Lost func(*LostError)

	// Released is called when a lease was unlocked, with the time it was
	// held. local says that the next in line of this process got it.
	Released func(key string, token int64, held time.Duration, local bool)
}
