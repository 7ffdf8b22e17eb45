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
// What the front does is one acquisition. Its phases are requesting, queued, held
// and ended:
//
//	 Lock
//	  │
//	  ▼                          the lock comes with the turn
//	local queue ─────────────────────────────────────────────────┐
//	  │ the turn comes alone                                     │
//	  ▼                                                          │
//	requesting ───┐                                              │
//	  │  ▲  ▲     │ no answer: again after a pause               │
//	  │  │  └─────┘                                              │
//	  │  │                                                       │
//	  │  └──────────────────────────────┐                        │
//	  │                                 │ the position is lost:  │
//	  ├── "waiting" ────────▶ queued ───┘ again, with a new ID   │
//	  │                        │ │ ▲                             │
//	  │                        │ └─┘ "waiting", or no answer:    │
//	  │ "held"                 │     asked again                 │
//	  │                        │                                 │
//	  │                        │ the store pushes the lock,      │
//	  ▼                        ▼ or says "held" when asked       │
//	held ◀───────────────────────────────────────────────────────┘
//	  │ ▲
//	  ├─┘ renewed every third of the TTL
//	  │
//	  ├── Unlock while others of this process wait ──▶ the next one's turn
//	  ├── Unlock ──▶ ended: the lock is released in the store
//	  └── not renewed in time, or gone from the store ──▶ ended: the lease is lost
//
// A lease is believed in from when the request for it was sent; one that the store
// pushes, from when the request that last confirmed the position was sent. If too
// little of it is left when the answer or the push comes, the acquisition is still
// queued, and asks the store at once. Downgrade has a phase of its own,
// downgrading: held, but neither renewed nor handed over until the store has
// answered.
//
// A call ends without a lease when its context does, when the store refuses, or
// when the store has not answered for Config.TTL, at least 5s. What the store may
// then still have is released in the background.
//
// In the source lock.go is the way down this picture and acquisition.go has a
// method for each of its arrows. keeper.go performs what follows from them,
// renewer.go is the timer, waitqueue.go the local queue, release.go the way out.
package baton
