package driver

import (
	"context"
	"time"
)

// Whole is the weight of an exclusive request and the capacity that readers
// and exclusive requests assume: more than any number of permits.
const Whole int64 = 1 << 40

// Times of waiters. A waiter that crashed delays the queue by at most WaiterTTL +
// ClaimTTL.
const (
	// WaiterTTL is how long a position in the queue lives after the last Acquire or
	// Renew that renewed it.
	WaiterTTL = 1500 * time.Millisecond

	// ClaimTTL bounds the TTL of a grant that the store made to the head of the queue,
	// after a release, until the new holder's first Renew. That TTL is never longer than
	// the one that the waiter asked for.
	ClaimTTL = 1500 * time.Millisecond

	// RefreshEvery is the period in which a waiter renews its position, unless
	// Grant.Again is shorter.
	RefreshEvery = 400 * time.Millisecond
)

// A Claim is one acquisition of one key, from its first attempt to its release.
type Claim struct {
	// Key is the name of the lock, legal for check.Key and compared byte by byte.
	Key string

	// ID is drawn at random for each acquisition (NewID). Only Mover.Move changes the ID
	// of a held claim. The ID is a capability and is never shown: a program that knows it
	// can renew and release. Legal are 1 to 64 of the characters A-Z a-z 0-9 - _.
	ID string

	// Owner is the holder's name for people: at most 128 bytes of printable UTF-8. It is
	// never compared.
	Owner string

	// Weight and Capacity say what is asked for: Whole of Whole is the
	// exclusive lock, 1 of Whole a reader, n of N (N < Whole) n permits.
	// Holders of different capacities never hold together.
	Weight, Capacity int64

	// Ticket is the Ticket of the last Grant that answered this claim, held or waiting.
	// It is 0 before the first answer; the store then finds the claim by its ID, at any
	// cost.
	Ticket int64
}

// Exclusive reports whether the claim excludes every other.
func (c Claim) Exclusive() bool { return c.Weight == Whole }

// Shared reports whether the claim is a reader's.
func (c Claim) Shared() bool { return c.Capacity == Whole && c.Weight < Whole }

// A Request is one attempt to acquire.
type Request struct {
	Claim

	// TTL is how long the grant lasts without renewal, by the store's clock.
	TTL time.Duration

	// Queue asks for a position in the queue if the lock cannot be granted now.
	Queue bool

	// MaxWaiting bounds the queue for a request with Queue: the store refuses the request
	// with a *QueueFullError if it would have to wait and the key's queue has that many
	// waiters already, of any kind. 0 is no bound. Expired waiters do not count, as far
	// as the store has noticed. A repeated request keeps its position. Requests with the
	// same bound never exceed it together, even at the same time; a store without the
	// trait FIFO need not guarantee that.
	MaxWaiting int

	// Retry says that an earlier attempt with this ID may have been made, by this or
	// another process, and that its answer is unknown. The store must look for the claim
	// of that attempt.
	Retry bool
}

// A Grant is a store's answer about a valid claim, held or waiting.
type Grant struct {
	// Waiting says that the claim has a position in the queue; else it holds the lock.
	Waiting bool

	// Token is the fencing token: positive, below 2⁵⁷ (the portable layer multiplies it
	// by 64), and higher than that of every earlier grant of the key. It is 0 while
	// Waiting. It is constant for the life of the grant, with one exception: a repeated
	// Acquire whose first answer was lost, or a Renew without a Ticket, may return a
	// higher one. An attempt that is carried out after its claim has ended is another
	// grant: its Token is not the one that the claim's Ticket encodes.
	Token int64

	// Ticket identifies the position or the grant in later calls. When a position becomes
	// a grant, its Token is not lower than the position's Ticket.
	Ticket int64

	// TTL is how long the claim is valid without another Renew. The store counts it
	// from a moment not earlier than when the request was sent.
	TTL time.Duration

	// Again is how soon a waiter should Renew, at the latest. Zero means RefreshEvery. A
	// store sets less when the holder's expiry is near, or when the holder will not hand
	// the lock over.
	Again time.Duration
}

// Locks makes single attempts. All methods are safe for concurrent use and obey their
// context. Errors are those of this package, context errors, or wrap ErrUnavailable,
// ErrUnknown or ErrDenied.
type Locks interface {
	// Acquire grants the claim, or, with Queue, gives it a position in the queue
	// (Grant.Waiting), or refuses with *HeldError. It never overtakes waiters that are
	// alive.
	//
	// Acquire is idempotent in the claim's ID. With Retry this includes requests of other
	// processes, unless Traits.Sessions: the claim then belongs to the process that asked
	// for it or renewed it last. A request of the other process that the server carries
	// out later may leave a claim of its own, which ends with its TTL.
	//
	// After ErrUnavailable, ErrUnknown or a context's error the store may have ended the
	// claim. It then answers a further attempt with ErrLost, and the caller draws another
	// ID.
	//
	// *CapacityError says that the key is held with another capacity, *NotLockError that
	// the key has something other than a lock, *QueueFullError that Request.MaxWaiting
	// waiters wait already. After each of them nothing has changed.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew renews holders for another ttl and waiters for another WaiterTTL, in as few
	// round trips as the store allows, and answers each claim at its index. A waiter that
	// has been granted meanwhile is renewed for the full ttl and answered as held. A key
	// that fails does not affect the answers about other keys. A claim that is no longer
	// valid is answered as lost and never becomes valid again.
	//
	// With a distant store several calls about the same claim are under way at once, with
	// Tickets of different age, and arrive in any order.
	Renew(ctx context.Context, claims []Claim, ttl time.Duration) []Renewal

	// Release ends the claim, held or waiting, and lets the store grant the waiters at
	// the head of the queue that now fit. ErrLost says that the claim was no longer valid
	// and that nothing was changed.
	Release(ctx context.Context, c Claim) error

	// Traits says what the store promises. It is constant.
	Traits() Traits
}

// Store is a Locks with connections or files of its own.
type Store interface {
	Locks

	// Close closes what the store opened itself, never what it was given. Held locks stay
	// until they expire.
	Close() error
}

// State is what Renew found.
type State uint8

const (
	Unknown State = iota // the store could not tell; Err is the reason
	Held                 // the claim holds the lock
	Waiting              // the claim has a position in the queue
	Lost                 // the claim is no longer valid
)

func (s State) String() string {
	switch s {
	case Held:
		return "held"
	case Waiting:
		return "waiting"
	case Lost:
		return "lost"
	}
	return "unknown"
}

// A Renewal is the answer about one claim.
type Renewal struct {
	State State
	Grant Grant // when Held or Waiting
	Err   error // when Unknown
}

// Watcher is implemented by stores that can send hints to waiters and holders.
type Watcher interface {
	// Watch makes the store call wake when c may have been granted or lost, until stop is
	// called. The caller calls it before Acquire. Watch does not block, and fails
	// silently: hints may be missing, merged, spurious or late, may come before the
	// answer to Acquire, and may still come while stop returns. Neither wake nor stop
	// blocks. The store does not call wake while it holds a mutex that Watch or stop
	// locks.
	Watch(c Claim, wake func(Hint)) (stop func())
}

// A Hint says "look again". If the store has already granted the lock to the waiter, it
// sets Granted and the Grant. The TTL of that grant counts from some moment after the
// last answer "waiting" about the same position.
type Hint struct {
	Granted bool
	Grant   Grant
}

// Downgrader is implemented by stores that can turn a write lock into a read lock
// without a gap.
type Downgrader interface {
	// Downgrade turns the held exclusive claim c into a reader's under the same ID,
	// grants further readers that now fit, and keeps the token. From then on the claim's
	// Weight is 1. ErrLost says that c was not held. It is idempotent.
	Downgrade(ctx context.Context, c Claim, ttl time.Duration) (Grant, error)
}

// Mover is implemented by stores that can move a held lock from one ID to another. A
// lease goes to another process this way: late requests of the earlier process, and any
// other program that has the old ID, find no claim.
type Mover interface {
	// Move gives the lock that c holds, of any kind, to the new ID id (NewID), with owner
	// as its name, for another ttl. Nothing else changes: the token stays, and no other
	// claim is granted meanwhile. From then on c is lost. ErrLost says that c was not
	// held and that nothing was changed. Move is idempotent: if id holds already, Move
	// renews it.
	Move(ctx context.Context, c Claim, id, owner string, ttl time.Duration) (Grant, error)
}

// Renamer is implemented by stores that can change the shown owner of a held lock.
type Renamer interface {
	// Rename makes the store show owner as the holder of the lock that c holds, of any
	// kind. The token, the end and the queue stay, and no hint comes. ErrLost says that c
	// was not held and that nothing was changed. Rename is idempotent.
	//
	// The earlier owner does not come back: Acquire, Renew, Downgrade and a repeated Move
	// ignore the Owner of the claim of a held lock. Of several concurrent Renames, any
	// may be the last to take effect.
	Rename(ctx context.Context, c Claim, owner string) error
}

// Leased is a lease that a store checks inside a transaction of the user.
// *baton.Lease is one.
type Leased interface {
	// Pin returns the claim of the lease, which no later lease will have. The error says
	// why the lease has ended.
	Pin() (Claim, error)
}

// Traits is what a store promises beyond the contract.
type Traits struct {
	Store string // a short name, for messages and tables: "redis"

	Fencing   bool // tokens rise through release, expiry, deletion, restart
	FIFO      bool // first come, first served across processes
	Shared    bool // readers
	Permits   bool // n of N
	Durable   bool // what was granted survives a crash of the server
	Failover  bool // tokens rise through the loss of a primary
	Consensus bool // grants survive the loss of a minority of the servers
	Processes bool // shared by the processes of one machine
	Machines  bool // shared by machines

	// Sessions says that the store ties claims to the process that made them: no other
	// process can renew or release them. The claims of a crashed process stay until its
	// session ends, which may be later than their TTL or WaiterTTL.
	Sessions bool

	MinTTL, MaxTTL time.Duration // the range that is accepted
}
