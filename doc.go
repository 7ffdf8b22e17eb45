// Package baton gives programs distributed locks over the stores that they
// already run.
//
//	locks, err := baton.New(store, baton.Config{})
//	lease, err := locks.Lock(ctx, "invoice/42")   // waits its turn
//	if err != nil { … }
//	defer lease.Unlock()
//	work(lease.Context(ctx), lease.Token())       // the context ends if the lease does
//
// # What is promised
//
// Exclusive belief: no two leases that exclude each other are valid at the
// same instant. A lease counts from when its request was sent and ends, with
// its contexts, before the store can give the lock to another.
//
// Fencing: every grant carries a token that is higher than that of every
// earlier grant of the key. Pass it to what the lock protects, and have that
// refuse a lower one after a higher one.
//
// Liveness: a holder that crashed blocks the others for its TTL at the most,
// a waiter that crashed for 3 seconds, and nothing needs to be cleaned up by
// hand.
//
// Order: on stores with the trait FIFO, locks are granted in the order in
// which processes asked; inside a process in the order of the calls.
//
// Several keys: LockAll takes all or none, and no two calls of it wait for
// each other. Each key has a token of its own.
//
// # What is not
//
// No lock with an expiry can promise that nobody acts while another believes
// it holds the lock: a program may stop for a minute between looking at its
// lease and writing. That is what the token is for. What each store promises
// and what it does not is in GUARANTEES.md. Which token to pass, where it is
// checked, what to do about a resource that cannot be changed, and what happens
// if the process stops: package guard, with examples.
//
// # How it works
//
// Goroutines of one process that want the same key form one local queue, and only
// its front deals with the store: however many they are, the store has one waiter.
// An unlocked lock is handed over to the next of them without a word to the store,
// up to 32 times or for a quarter of a second, with a higher token each time. All
// leases of a Locker are renewed in batches, by a timer that stops when nothing
// is held or waited for, so that a Locker needs no Close.
//
// # A Lock call
//
// What the front does is one acquisition. It is in one of these phases:
//
//	 Lock
//	  │   behind others of this process: wait for the turn
//	  ▼
//	local queue ───── the turn comes with the lock (hand-over) ───────┐
//	  │ the turn comes alone, or at once                              │
//	  ▼                                                               │
//	requesting ◀─┐ no answer: request again after a pause             │
//	  │  │  │  ▲ └──┐                                                 │
//	  │  │  └──┼────┘                                                 │
//	  │  │     └── position lost: again, with a new ID ───────┐        │
//	  │  └─ "waiting" ──▶ queued ◀─┐ "waiting", or no answer: │        │
//	  │                    │ │ │   │ ask again              │        │
//	  │                    │ │ └───┘                        │        │
//	  │                    │ └──────────────────────────────┘        │
//	  │ "held"             │ pushed in time, or "held" when asked     │
//	  ▼                    ▼                                          ▼
//	held ◀── renewed every third of the TTL ──────────────────────▶ Lease
//	  │
//	  │ Unlock: hand over, or release · not renewed in time · lost in the store
//	  ▼
//	ended
//
// A request that is answered "held" so late that there is no time to renew the
// lease, and a grant that the store pushes so late, do not make it held: it is then
// queued, and the store is asked at once. A lease is believed in from when the
// request for it, or the last request that confirmed the position, was sent.
//
// A call ends without a lease when its context does, when the store refuses, or
// when the store has not answered for Config.TTL, at least 5s. What the store may
// then still have is released in the background.
//
// The source has the same order: lock.go is the way down this picture, acquisition.go
// has a method for each arrow, keeper.go performs what follows from them,
// renewer.go is the timer, waitqueue.go the local queue, release.go the way out.
package baton
