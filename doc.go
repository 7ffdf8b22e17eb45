// Package baton gives programs distributed locks over the stores that they
// already run.
//
//	locks, err := baton.New(store, baton.Config{})
//	lease, err := locks.Lock(ctx, "invoice/42")   // waits for the lock
//	if err != nil { … }
//	defer lease.Unlock()
//	work(lease.Context(ctx), lease.Token())       // the context ends if the lease does
//
// # What is promised
//
// Exclusive: no two leases that exclude each other are valid at the same instant. A lease counts from when its request was sent. It and its contexts end
// before the store can grant the lock to another holder.
//
// Fencing: every grant carries a token that is higher than that of every earlier
// grant of the key. Pass it to what the lock protects, and make that refuse a lower
// token after a higher one.
//
// Liveness: a holder that crashed blocks the others for at most its TTL, a waiter
// that crashed for at most 3 seconds, and nothing needs to be cleaned up by hand.
//
// Order: stores with the trait FIFO grant locks in the order in which processes
// asked; inside a process the order is that of the calls.
//
// Several keys: LockAll takes all or none, and no two calls of it wait for each
// other in a circle. Each key has a token of its own.
//
// # What is not
//
// No lock with an expiry can prevent that a process writes after its lease has ended:
// a program may stop for a minute between the look at its lease and the write. That
// is what the token is for. GUARANTEES.md says what
// each store promises and what it does not. Package guard says, with examples,
// which token to pass, where to check it, what to do about a resource that cannot
// be changed, and what happens if the process stops.
//
// # How it works
//
// Goroutines of one process that call Lock for the same key form one local queue, and
// only its front asks the store: however many they are, the store has one waiter.
// MaxWaiting bounds both queues. A
// read lock or permits leave the local queue as soon as they are held, so that one
// process can hold several. Unlock hands the exclusive lock over to the next goroutine
// without a request to the store, with a higher token each time, up to 31 times and
// only within a quarter of a second from the store's grant: then other processes have
// waited long enough. A Locker renews all its leases in batches, by a timer that stops
// when nothing is held or waited for, so that it needs no Close.
//
// # A Lock call
//
// What the front does is one acquisition. Its phases are requesting, queued, held
// and ended; a fifth, downgrading, is described below the picture:
//
//	 Lock
//	  │
//	  ▼                          the front, with the lock
//	local queue ─────────────────────────────────────────────────┐
//	  │ the front, without the lock                              │
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
//	  ├── Unlock, the next of this process may have it ──▶ held by that one
//	  ├── Unlock otherwise ──▶ ended: the lock is released in the store
//	  └── not renewed in time, or gone from the store ──▶ ended: the lease is lost
//
// The TTL of a grant counts from when the process sent the request for it; if the
// store pushed the grant, from when the process sent the last request that renewed
// the position. If too little of it is left when the answer or the push comes, the
// acquisition is queued and asks the store at once. A grant that ends before its
// goroutine has the lease is requested again. When a lease is lost, the next goroutine
// becomes the front at once. Downgrade has a phase of its own, downgrading: held, but
// neither renewed nor handed over until the store has answered.
//
// Unlock hands over only if the next goroutine wants the exclusive lock under the
// same owner, if enough of the TTL is left, and if the lease was not pinned or
// renamed. Otherwise it releases, and the next goroutine requests.
//
// A front whose context ends while it is queued, or while its request is under way, leaves
// its position to the next goroutine that asks for the same: the kind, owner, TTL, MinHold
// and MaxWaiting. That goroutine is the front then and waits on, and the store learns
// nothing. So a process whose callers give up soon keeps its position.
//
// A call ends without a lease when its context does (a grant from the store that came
// first is a lease all the same), when the store refuses, or when the store has not
// answered for Config.TTL, at least 5s. The Locker then releases in the background
// what the store may still have.
//
// In the source, locker.go has the upper half of this picture, lease.go has Unlock.
// Package internal/acquire has the acquisition, with a method for each event. keeper.go
// performs most effects, renewer.go is the timer that asks the store, waitqueue.go
// the local queue, lease_release.go ends claims.
//
// # Other packages
//
//   - open makes a store from a URL; store/… has each kind of store, with New for a
//     client that the program already has (of rueidis: store/redisstore/rueidisstore) and
//     store/redlock for a majority of Redis servers.
//   - election keeps one leader, once runs an operation once and remembers its
//     outcome, ratelimit limits rates.
//   - guard checks tokens where the data is written.
//   - driver is the contract for a store of one's own, drivertest its tests.
package baton
