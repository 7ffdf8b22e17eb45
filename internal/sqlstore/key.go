package sqlstore

import (
	"time"

	"github.com/batonhq/baton/driver"
)

// page is the number of claims in one read of a walk: enough to reach the first waiter of
// nearly every key.
const page = 16

// A keyTx is a transaction's work on one key, whose row it has locked.
type keyTx struct {
	tx  Tx
	fx  *Effects
	key string
	now int64

	row   Key
	saved Key
	found bool

	// Results of the walk.
	claims   bool   // a claim is left
	used     int64  // sum of the holders' weights
	capacity int64  // of the holders
	first    holder // the holder to name in a refusal
	soonest  int64  // the earliest end of a holder
	head     int64  // ticket of the first waiter, 0 if none
	granted  map[int64]Claim
}

type holder struct {
	owner       string
	since, ends int64
}

func begin(tx Tx, key string, fx *Effects) (*keyTx, error) {
	row, found, err := tx.LockKey(key)
	if err != nil {
		return nil, err
	}
	return &keyTx{tx: tx, fx: fx, key: key, now: tx.Now(), row: row, saved: row, found: found}, nil
}

func (t *keyTx) ticket() int64 {
	t.row.Last = max(t.row.Last+1, t.tx.Seed(), 1)
	return t.row.Last
}

// clear removes the row's own holder.
func (t *keyTx) clear() {
	t.row.ID, t.row.Owner, t.row.Node, t.row.Weight, t.row.Ends = "", "", "", driver.Whole, t.now
}

// claim finds the claim with the id, first by its ticket.
func (t *keyTx) claim(id string, ticket int64) (own Claim, found bool, err error) {
	if !t.row.Busy {
		return Claim{}, false, nil
	}
	if ticket > 0 {
		rows, err := t.tx.Claims(t.key, ticket-1, 1)
		if err != nil {
			return Claim{}, false, err
		}
		if len(rows) == 1 && rows[0].Seq == ticket && rows[0].ID == id {
			return rows[0], true, nil
		}
	}
	return t.tx.ClaimByID(t.key, id)
}

// walk goes through the claims from the head: it removes expired claims, adds up the
// holders, grants claims that fit, and stops at the first waiter that does not.
func (t *keyTx) walk() error {
	if t.row.ID != "" && t.row.Ends <= t.now {
		t.clear() // the row is locked, so no renewal can extend it
	}
	if t.row.ID != "" {
		t.hold(t.row.Weight, driver.Whole, holder{t.row.Owner, t.row.Since, t.row.Ends})
	}
	if !t.row.Busy {
		return nil
	}
	for after := int64(0); ; {
		rows, err := t.tx.Claims(t.key, after, page)
		if err != nil {
			return err
		}
		for _, c := range rows {
			after = c.Seq
			if c.Ends <= t.now {
				dead, err := t.tx.DeleteDead(t.key, c.Seq)
				if err != nil {
					return err
				}
				if dead {
					continue
				}
			}
			t.claims = true
			if !c.Held {
				if !t.fits(c.Weight, c.Capacity) {
					t.head = c.Seq
					return nil
				}
				if err := t.grant(&c); err != nil {
					return err
				}
			}
			t.hold(c.Weight, c.Capacity, holder{c.Owner, c.Since, c.Ends})
		}
		if len(rows) < page {
			return nil
		}
	}
}

func (t *keyTx) hold(weight, capacity int64, h holder) {
	if t.used == 0 {
		t.first, t.soonest = h, h.ends
	}
	t.used += weight
	t.capacity = capacity
	t.soonest = min(t.soonest, h.ends)
}

// fits reports whether there is no holder, or all holders have this capacity and leave
// enough of it.
func (t *keyTx) fits(weight, capacity int64) bool {
	return t.used == 0 || t.capacity == capacity && t.used+weight <= capacity
}

func (t *keyTx) grant(c *Claim) error {
	c.Held, c.Since, c.Ends = true, t.now, t.now+ClaimTime(c.TTL)
	if err := t.tx.UpdateClaim(t.key, *c); err != nil {
		return err
	}
	if t.granted == nil {
		t.granted = make(map[int64]Claim)
	}
	t.granted[c.Seq] = *c
	return nil
}

// takeGrant removes a claim from those that get a hint, because its caller gets an
// answer, and extends it to its full time.
func (t *keyTx) takeGrant(seq, ttl int64) (Claim, bool, error) {
	c, ok := t.granted[seq]
	if !ok {
		return Claim{}, false, nil
	}
	delete(t.granted, seq)
	c.TTL, c.Ends = ttl, t.now+ttl
	return c, true, t.tx.UpdateClaim(t.key, c)
}

// end saves the key row if it changed and adds the hints to the effects.
func (t *keyTx) end() error {
	t.row.Busy = t.claims || t.row.ID != "" && t.row.Weight != driver.Whole
	if t.row != t.saved {
		if err := t.tx.SaveKey(t.key, t.row, t.found); err != nil {
			return err
		}
	}
	for _, c := range t.granted {
		t.fx.Granted = append(t.fx.Granted, Granted{Node: c.Node, Key: t.key, ID: c.ID, Token: c.Seq, TTL: duration(ClaimTime(c.TTL))})
	}
	return nil
}

// again is when a waiter should ask again, 0 if not earlier than usual: the head must
// notice the death of a holder.
func (t *keyTx) again(seq int64) time.Duration {
	if t.head != seq {
		return 0
	}
	left := duration(t.soonest-t.now) + time.Millisecond
	if left >= driver.RefreshEvery {
		return 0
	}
	return max(left, time.Millisecond)
}

func (t *keyTx) waiting(seq int64) driver.Grant {
	return driver.Grant{Waiting: true, Ticket: seq, TTL: driver.WaiterTTL, Again: t.again(seq)}
}

func held(token, ttl int64) driver.Grant {
	return driver.Grant{Token: token, Ticket: token, TTL: duration(ttl)}
}

// refusal describes the holder in the way.
func (t *keyTx) refusal() (error, error) {
	n, err := t.tx.CountWaiting(t.key)
	if err != nil {
		return nil, err
	}
	return &driver.HeldError{
		Key:       t.key,
		Owner:     t.first.owner,
		Age:       duration(max(0, t.now-t.first.since)),
		Remaining: duration(max(0, t.first.ends-t.now)),
		Waiting:   n,
	}, nil
}
