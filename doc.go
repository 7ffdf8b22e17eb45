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
// Exclusive: no two leases that exclude each other are valid at the same instant. A lease
// counts from when its request was sent. The lease and its contexts end before the store
// can grant the lock to another holder.
//
// Fencing: every grant carries a token that is higher than that of every earlier grant of
// the key. Pass the token to what the lock protects. That must refuse a lower token after
// a higher one.
//
// Liveness: a crashed holder blocks the others for at most its TTL, a crashed waiter for
// at most 3 seconds. No cleanup by hand is needed.
//
// Order: stores with the trait FIFO grant locks in the order in which processes asked.
// Inside a process the order is that of the calls.
//
// Several keys: LockAll takes all or none. Calls of LockAll never deadlock with each
// other. Each key has a token of its own.
//
// # What is not
//
// No lock with an expiry can prevent a write after the end of its lease: a program may
// pause for a minute between its look at the lease and the write. The token is for that
// case. GUARANTEES.md says what each store promises and what it does not. Package guard
// says, with examples, which token to pass, where to check it, and what to do about a
// resource that cannot be changed.
//
// # How it works
//
// Goroutines of one process that call Lock for the same key form one local queue. Only
// its front asks the store, so the store has one waiter for all of them. MaxWaiting
// bounds both queues. A read lock or permits leave the local queue as soon as they are
// held, so that one process can hold several.
//
// Unlock hands the exclusive lock over to the next goroutine without a request to the
// store, with a higher token each time. It does so up to 31 times, within a quarter of a
// second from the store's grant; then another process gets its turn.
//
// A Locker renews all its leases in batches. Its timer stops when no lock is held or
// waited for, so a Locker needs no Close.
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
// A front whose context ends while it is queued, or while its request is under way,
// leaves its position to the next goroutine that asks for the same kind, owner, TTL,
// MinHold and MaxWaiting. That goroutine becomes the front; the store sees no change. So
// a process whose callers give up soon keeps its position.
//
// A call ends without a lease when its context does (unless the store's grant came
// first), when the store refuses, or when the store has not answered for Config.TTL, at
// least 5s. The Locker then releases in the background what the store may still have.
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
