// Package sqlstore is shared by the SQL stores: the rows of the two tables, the rules by
// which one transaction changes them, and the bookkeeping of batches, hints and
// inspection. A dialect brings the statements (type Tx), its fast path, and its way to
// wake waiters.
//
// # The tables
//
// lock has one row per key: the counter, and the holder if the fast path granted it.
// claim has the waiters, the holders that were granted from the queue, and all shared
// holders. These rules hold:
//
//   - A transaction locks the key's row before it changes a claim, in a statement of its
//     own. Renew is the exception: it changes only ends and ttl.
//   - A claim never moves between the tables. So a batch that asks first for claims and
//     then for locks cannot miss one that is just being granted.
//   - The ticket, drawn when a claim is made, is its future token. Grants are first come,
//     first served, so tokens rise in the order of grants.
//   - Held claims precede waiting ones. A walk from the head therefore ends after the
//     holders and one waiter that does not fit.
//   - A held row is dead only when a DELETE that checks its end again has removed it, not
//     when it was read as expired: its holder may be renewing it.
//   - The counter and the holder's token are two columns: a repeated Acquire is answered
//     with the token of the grant, while waiters have raised the counter.
//     counter.
package sqlstore

import (
	"time"

	"github.com/batonhq/baton/driver"
)

// Key is a row of the lock table. Times are microseconds of the store's clock.
type Key struct {
	Last   int64  // the highest ticket drawn; for a missing row, the floor
	Busy   bool   // claim may have rows of this key, or Weight is a reader's
	ID     string // of the holder that the fast path granted; "" is none
	Token  int64  // of that holder
	Weight int64  // of that holder: driver.Whole, or 1 after a downgrade
	Owner  string
	Node   string
	Since  int64
	Ends   int64
}

func (k Key) HeldAt(now int64) bool { return k.ID != "" && k.Ends > now }

// Claim is a row of the claim table.
type Claim struct {
	Seq      int64 // the ticket, and the token once held
	ID       string
	Node     string // the address for hints; "" is none
	Owner    string
	Weight   int64
	Capacity int64
	Held     bool
	TTL      int64
	Since    int64 // the time of the grant if held, else of joining
	Ends     int64
}

// Tx is a transaction of one dialect. Its errors are failures of the database, after
// which the transaction is rolled back.
type Tx interface {
	// Now is the store's clock, read after the key row was locked. It must not run ahead.
	Now() int64

	// Seed is the wall clock of the store, at which new tickets start, so that they rise
	// even if all rows of a key are gone.
	Seed() int64

	// Node is the address of this process for hints, or "". A waiter will need it, a
	// holder may.
	Node(waits bool) string

	// LockKey locks the row of key. For a missing row it returns the floor as Last.
	LockKey(key string) (k Key, found bool, err error)

	// SaveKey writes the row that LockKey locked, or inserts it.
	SaveKey(key string, k Key, found bool) error

	// Claims reads up to limit claims after the ticket, in their order.
	Claims(key string, after int64, limit int) ([]Claim, error)

	// ClaimByID searches all claims of the key.
	ClaimByID(key, id string) (c Claim, found bool, err error)

	InsertClaim(key string, c Claim) error

	// UpdateClaim writes Held, Weight, TTL, Since and Ends. If Renew does not lock the
	// key row, UpdateClaim must not undo what a renewal promised in the meantime.
	UpdateClaim(key string, c Claim) error

	// RenameClaim writes Owner, and nothing else.
	RenameClaim(key string, c Claim) error

	DeleteClaim(key string, seq int64) error

	// DeleteDead deletes the claim if it has ended, and reports whether it did.
	DeleteDead(key string, seq int64) (bool, error)

	CountWaiting(key string) (int, error)
}

// Effects are the hints to send when a transaction is durable.
type Effects struct {
	Granted []Granted
	Broken  []Broken
}

// Granted is a claim that was granted from the queue.
type Granted struct {
	Node, Key, ID string
	Token         int64
	TTL           time.Duration
}

func (g Granted) Hint() driver.Hint {
	return driver.Hint{Granted: true, Grant: driver.Grant{Token: g.Token, Ticket: g.Token, TTL: g.TTL}}
}

// Broken is a claim that Break has ended.
type Broken struct{ Node, Key, ID string }

func micros(d time.Duration) int64 { return d.Microseconds() }

func duration(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// ClaimTime is the time of a grant to the head of the queue until its first Renew.
func ClaimTime(ttl int64) int64 { return min(ttl, micros(driver.ClaimTTL)) }
