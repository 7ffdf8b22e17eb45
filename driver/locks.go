package driver

import (
	"context"
	"time"
)

// Whole is the weight of an exclusive request and the capacity that readers
// and exclusive requests assume: more than any number of permits.
const Whole int64 = 1 << 40

// How the store treats waiters. A waiter that crashed delays the queue by at most
// WaiterTTL + ClaimTTL.
const (
	// WaiterTTL is how long a position in the queue lives after the last Acquire or
	// Renew that renewed it.
	WaiterTTL = 1500 * time.Millisecond

	// ClaimTTL bounds the TTL of a grant that the store made on its own (to the
	// head of the queue, after a release) until the new holder's first Renew. That
	// TTL is never longer than the one that the waiter asked for.
	ClaimTTL = 1500 * time.Millisecond

	// RefreshEvery is how often a waiter renews its position, unless Grant.Again
	// asks for it sooner.
	RefreshEvery = 400 * time.Millisecond
)

// A Claim names one acquisition of one key, from its first attempt to its
// release.
type Claim struct {
	// Key is the name of the lock: 1 to 512 bytes that check.Key accepts, compared
	// byte by byte.
	Key string

	// ID is drawn at random for each acquisition (NewID). Only Mover.Move gives
	// what is held to another ID. A program that knows the ID can renew and
	// release: it is a capability and is never shown. Legal are 1 to 64 of the
	// characters A-Z a-z 0-9 - _.
	ID string

	// Owner is shown to people and never compared: at most 128 bytes of
	// printable UTF-8.
	Owner string

	// Weight and Capacity say what is asked for: Whole of Whole is the
	// exclusive lock, 1 of Whole a reader, n of N (N < Whole) n permits.
	// Holders of different capacities never hold together.
	Weight, Capacity int64

	// Ticket repeats the Ticket of the last Grant that answered this claim, held or
	// waiting. It is 0 before the first answer; the store then finds the claim by
	// its ID, whatever that costs.
	Ticket int64
}

// Exclusive reports whether the claim excludes every other.
func (c Claim) Exclusive() bool { return c.Weight == Whole }

// Shared reports whether the claim is a reader's.
func (c Claim) Shared() bool { return c.Capacity == Whole && c.Weight < Whole }

// A Request is one attempt to acquire.
type Request struct {
	Claim

	// TTL is how long the grant lasts without renewal, by the store's
	// clock.
	TTL time.Duration

	// Queue asks for a position in the queue if the lock cannot be granted now.
	Queue bool

	// MaxWaiting bounds the queue that Queue asks for: if the request would have to
	// wait, and the key's queue has that many waiters already, of whatever kind, the
	// store refuses it with a *QueueFullError. 0 is no bound. Waiters whose position
	// has expired do not count, as far as the store sees that then. A repeated request
	// keeps a position that it has. Requests that carry the same bound never bring the
	// queue above it, however many come at once. A store without the trait FIFO need
	// not keep that.
	MaxWaiting int

	// Retry says that an earlier attempt with this ID may have been made, by this process or
	// by another one, of which it does not know the answer. The store must look for what
	// that attempt may have left.
	Retry bool
}

// A Grant is a store's answer about a claim that is valid: held, or waiting.
type Grant struct {
	// Waiting distinguishes a position in the queue from a lock that is held.
	Waiting bool

	// Token is the fencing token: positive, below 2⁵⁷ (the portable layer
	// multiplies it by 64), and higher than that of every earlier grant of the key.
	// It is 0 while Waiting. It stays the same for the life of the grant, with one
	// exception: a repeated Acquire whose first answer was lost, or a Renew without
	// a Ticket, may be answered with a higher one. It is never what the claim's Ticket
	// tells of an earlier grant to the same ID: an attempt that is carried out after its
	// claim has ended is another grant.
	Token int64

	// Ticket identifies the position or the grant in later calls. When a position
	// becomes a grant, its Token is not lower than the position's Ticket.
	Ticket int64

	// TTL is how long the claim is valid without another Renew. The store counts it
	// from a moment not earlier than when the request was sent.
	TTL time.Duration

	// Again is how soon a waiter should Renew, at the latest. Zero means
	// RefreshEvery. A store asks for less when the holder's expiry is near, or when
	// the holder will not hand the lock over.
	Again time.Duration
}

// Locks makes single attempts. All methods are safe for concurrent use and
// obey their context. Errors are those of this package, context errors, or
// wrap one of ErrUnavailable, ErrUnknown and ErrDenied.
type Locks interface {
	// Acquire grants the claim, or, with Queue, gives it a position in the queue
	// (Grant.Waiting), or refuses with *HeldError. It never overtakes waiters that
	// are alive. It is idempotent in the claim's ID: with Retry also if another process
	// has asked for the claim before, unless Traits.Sessions. Then the claim is kept by
	// whichever process asked for it or renewed it last. A request of the other process
	// that the server carries out after that may leave a claim of its own, which ends with
	// its TTL.
	//
	// After an error that is ErrUnavailable or ErrUnknown, or a context's, the
	// store may have ended the claim: it then answers a further attempt with
	// ErrLost, and the caller draws another ID.
	//
	// *CapacityError reports that the key is held with another capacity,
	// *NotLockError that the store has something under the key that is not a lock,
	// *QueueFullError that Request.MaxWaiting waiters wait already. After each of them,
	// nothing has changed.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew renews holders for another ttl and waiters for another WaiterTTL, in as
	// few round trips as the store allows, and answers each claim at its index. A
	// waiter that has been granted meanwhile is renewed for the full ttl and
	// answered as held. A key that fails does not delay or spoil the answers about
	// the others. A claim that is no longer valid is answered as lost and never
	// becomes valid again.
	//
	// If the store is far away, several calls about the same claim are under way at
	// once, with Tickets of different age, and arrive in any order.
	Renew(ctx context.Context, claims []Claim, ttl time.Duration) []Renewal

	// Release ends the claim, held or waiting, and lets the store grant the waiters
	// at the head of the queue that now fit. ErrLost says that the claim was not
	// valid any more and that nothing was changed.
	Release(ctx context.Context, c Claim) error

	// Traits says what the store promises. It is constant.
	Traits() Traits
}

// Store is a Locks with connections or files of its own.
type Store interface {
	Locks

	// Close closes what the store opened itself, never what it was given. Locks
	// that are held stay until they expire.
	Close() error
}

// State is what Renew found.
type State uint8

const (
	Unknown State = iota // the store could not say; Err says why
	Held                 // the claim holds the lock
	Waiting              // the claim has a position in the queue
	Lost                 // the claim is not valid any more
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

// Watcher is implemented by stores that can tell a waiter or a holder that
// something happened.
type Watcher interface {
	// Watch makes the store call wake when c may have been granted or lost, until
	// stop is called. The caller of Acquire calls it before. It does not block, and
	// fails silently: hints may be missing, merged, spurious or late, may come before
	// the answer to Acquire, and may still come while stop returns.
	// Neither wake nor stop blocks, and the store does not call wake while it holds
	// a mutex that Watch or stop locks.
	Watch(c Claim, wake func(Hint)) (stop func())
}

// A Hint says "look again". If the store has already granted the lock to the
// waiter, it sets Granted and the Grant. The TTL of that grant counts from some
// moment after the last answer "waiting" about the same position.
type Hint struct {
	Granted bool
	Grant   Grant
}

// Downgrader is implemented by stores that can turn a write lock into a read lock
// without a gap.
type Downgrader interface {
	// Downgrade turns the held exclusive claim c into a reader's under the same ID,
	// lets further readers in, and keeps the token. From then on the claim's Weight
	// is 1. ErrLost says that c was not held. It is idempotent.
	Downgrade(ctx context.Context, c Claim, ttl time.Duration) (Grant, error)
}

// Mover is implemented by stores that can move a held lock from one ID to another.
// A lease changes its process this way: requests of the earlier process that are
// still under way, and any other program that has the old ID, find nothing.
type Mover interface {
	// Move gives what c holds, of any kind, to the new ID id, which was drawn for
	// it (NewID), with owner as the name to show, for another ttl. Nothing else
	// changes: the token stays, and no other claim is granted meanwhile. From then
	// on c is lost. ErrLost says that c did not hold and that nothing was changed.
	// It is idempotent: if id holds already, Move renews it.
	Move(ctx context.Context, c Claim, id, owner string, ttl time.Duration) (Grant, error)
}

// Renamer is implemented by stores that can change the owner that they show for a lock
// that is held.
type Renamer interface {
	// Rename makes the store show owner as the holder of what c holds, of any kind.
	// Nothing else changes: not the token, the end or the queue, and no hint comes.
	// ErrLost says that c did not hold and that nothing was changed. It is idempotent.
	//
	// The earlier owner does not come back: whatever the Owner of their claims is,
	// Acquire, Renew and Downgrade leave that of a lock that is held as it is, and so
	// does a repeated Move. Of several Rename under way at once, any may be the last to
	// take effect.
	Rename(ctx context.Context, c Claim, owner string) error
}

// Leased is a lease that a store checks inside a transaction of the user.
// *baton.Lease is one.
type Leased interface {
	// Pin returns the claim that the store knows the lease by, and that no later
	// lease will have; or the error says why the lease has ended.
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

	// Sessions says that the store ties claims to the process that made them: no
	// other process can renew or release them, and those of a process that crashed
	// stay until its session ends, which may be later than their TTL or WaiterTTL.
	Sessions bool

	MinTTL, MaxTTL time.Duration // the range that is accepted
}
