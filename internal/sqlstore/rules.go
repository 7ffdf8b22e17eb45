package sqlstore

import (
	"github.com/batonhq/baton/driver"
)

// The functions below make one act within tx. Their last result is a failure
// of the database: roll back. What the contract refuses is the result before
// it, and the transaction is to be committed all the same, because the walk
// may have served others.

// Acquire makes one attempt.
func Acquire(tx Tx, r driver.Request, fx *Effects) (g driver.Grant, refused, failed error) {
	t, err := begin(tx, r.Key, fx)
	if err != nil {
		return g, nil, err
	}
	ttl := micros(r.TTL)
	if t.row.ID == r.ID && t.row.HeldAt(t.now) {
		t.row.Ends = t.now + ttl
		t.claims = t.row.Busy
		return held(t.row.Token, ttl), nil, t.end()
	}

	own, found, err := t.claim(r.ID, r.Ticket)
	if err != nil {
		return g, nil, err
	}
	if found && own.Ends <= t.now {
		if dead, err := tx.DeleteDead(t.key, own.Seq); err != nil {
			return g, nil, err
		} else if dead {
			found = false
		}
	}
	if found {
		own.TTL = ttl
		own.Ends = t.now + micros(driver.WaiterTTL)
		if own.Held {
			own.Ends = t.now + ttl
		}
		if err := tx.UpdateClaim(t.key, own); err != nil {
			return g, nil, err
		}
	}
	if err := t.walk(); err != nil {
		return g, nil, err
	}

	switch {
	case found && own.Held:
		return held(own.Seq, ttl), nil, t.end()
	case found:
		g, isHeld, err := t.place(own.Seq, ttl)
		if err == nil && !isHeld && !r.Queue {
			refused, err = t.refusal()
		}
		if err != nil {
			return g, nil, err
		}
		return g, refused, t.end()
	}

	g, refused, err = t.enter(r, ttl)
	if err != nil {
		return g, nil, err
	}
	return g, refused, t.end()
}

// enter lets a newcomer in, or into the queue, or refuses.
func (t *turn) enter(r driver.Request, ttl int64) (g driver.Grant, refused, failed error) {
	fits := t.fits(r.Weight, r.Capacity)
	switch {
	case t.used > 0 && t.used < driver.Whole && !r.Exclusive() && t.capacity != r.Capacity:
		return g, &driver.CapacityError{Key: r.Key, InUse: t.capacity, Asked: r.Capacity}, nil

	case t.head == 0 && fits && r.Exclusive() && !t.claims:
		t.row.Token = t.ticket()
		t.row.ID, t.row.Owner, t.row.Node, t.row.Weight = r.ID, r.Owner, t.tx.Node(false), driver.Whole
		t.row.Since, t.row.Ends = t.now, t.now+ttl
		return held(t.row.Token, ttl), nil, nil

	case t.head == 0 && fits:
		c := t.newClaim(r, ttl)
		c.Node = t.tx.Node(false)
		c.Held, c.Ends = true, t.now+ttl
		return held(c.Seq, ttl), nil, t.tx.InsertClaim(t.key, c)

	case !r.Queue:
		refused, failed = t.refusal()
		return g, refused, failed
	}

	c := t.newClaim(r, ttl)
	c.Node = t.tx.Node(true)
	c.Ends = t.now + micros(driver.WaiterTTL)
	if t.head == 0 {
		t.head = c.Seq
	}
	return t.waiting(c.Seq), nil, t.tx.InsertClaim(t.key, c)
}

func (t *turn) newClaim(r driver.Request, ttl int64) Claim {
	t.claims = true
	return Claim{
		Seq: t.ticket(), ID: r.ID, Owner: r.Owner,
		Weight: r.Weight, Capacity: r.Capacity, TTL: ttl, Since: t.now,
	}
}

// place answers about a place in line after the walk.
func (t *turn) place(seq, ttl int64) (g driver.Grant, isHeld bool, failed error) {
	c, isHeld, err := t.takeGrant(seq, ttl)
	if err != nil {
		return g, false, err
	}
	if isHeld {
		return held(c.Seq, ttl), true, nil
	}
	return t.waiting(seq), false, nil
}

// Release ends the claim and grants those who now fit. refused is
// driver.ErrLost if the claim does not stand.
func Release(tx Tx, c driver.Claim, fx *Effects) (refused, failed error) {
	t, err := begin(tx, c.Key, fx)
	if err != nil {
		return nil, err
	}
	if t.row.ID == c.ID && t.row.HeldAt(t.now) {
		t.clear()
	} else {
		own, found, err := t.claim(c.ID, c.Ticket)
		if err != nil {
			return nil, err
		}
		if !found || own.Ends <= t.now {
			return driver.ErrLost, nil
		}
		if err := tx.DeleteClaim(t.key, own.Seq); err != nil {
			return nil, err
		}
	}
	if err := t.walk(); err != nil {
		return nil, err
	}
	return nil, t.end()
}

// Look serves those who can be served on key, as every waiter must now and
// then because nobody else notices a holder that died, and answers the
// waiting claims of the batch for which the batch has just confirmed a place.
func Look(tx Tx, key string, places []Place, b *Batch, ttl int64, fx *Effects) error {
	t, err := begin(tx, key, fx)
	if err != nil {
		return err
	}
	if err := t.walk(); err != nil {
		return err
	}
	for _, p := range places {
		g, isHeld, err := t.place(p.Seq, ttl)
		if err != nil {
			return err
		}
		if isHeld {
			b.Held(p.ID, key, g.Token)
		} else {
			b.Waiting(p.ID, key, g)
		}
	}
	return t.end()
}

// Find answers one claim of a batch that the batch's statements did not find,
// because its ticket is not known or not the newest. It confirms what stands
// and returns the place in line, if that is what it is.
func Find(tx Tx, p Place, b *Batch, ttl int64) (at Place, waiting bool, failed error) {
	t, err := begin(tx, p.Key, nil)
	if err != nil {
		return at, false, err
	}
	own, found, err := t.claim(p.ID, p.Seq)
	if err != nil || !found || own.Ends <= t.now {
		return at, false, err
	}
	own.Ends = t.now + micros(driver.WaiterTTL)
	if own.Held {
		own.Ends = t.now + ttl
		b.Held(p.ID, p.Key, own.Seq)
	}
	own.TTL = ttl
	return Place{Key: p.Key, ID: p.ID, Seq: own.Seq}, !own.Held, tx.UpdateClaim(p.Key, own)
}

// Downgrade makes a writer a reader. refused is driver.ErrLost if c holds
// nothing exclusively and is no reader either.
func Downgrade(tx Tx, c driver.Claim, ttl int64, fx *Effects) (g driver.Grant, refused, failed error) {
	t, err := begin(tx, c.Key, fx)
	if err != nil {
		return g, nil, err
	}
	if t.row.ID == c.ID && t.row.HeldAt(t.now) {
		// It stays in the lock row, where its renewals look for it.
		t.row.Weight, t.row.Busy = 1, true
		t.row.Ends = t.now + ttl
		g = held(t.row.Token, ttl)
	} else {
		own, found, err := t.claim(c.ID, c.Ticket)
		if err != nil {
			return g, nil, err
		}
		if !found || !own.Held || own.Ends <= t.now || own.Capacity != driver.Whole {
			return g, driver.ErrLost, nil
		}
		own.Weight, own.TTL, own.Ends = 1, ttl, t.now+ttl
		if err := tx.UpdateClaim(t.key, own); err != nil {
			return g, nil, err
		}
		g = held(own.Seq, ttl)
	}
	if err := t.walk(); err != nil {
		return g, nil, err
	}
	return g, nil, t.end()
}

// Move passes what c holds to the ID id, for another ttl.
func Move(tx Tx, c driver.Claim, id, owner string, ttl int64, fx *Effects) (g driver.Grant, refused, failed error) {
	t, err := begin(tx, c.Key, fx)
	if err != nil {
		return g, nil, err
	}
	t.claims = t.row.Busy
	for _, from := range []string{id, c.ID} { // id, if the answer to an earlier attempt was lost
		if t.row.ID == from && t.row.HeldAt(t.now) {
			t.row.ID, t.row.Owner, t.row.Node = id, owner, tx.Node(false)
			t.row.Ends = t.now + ttl
			return held(t.row.Token, ttl), nil, t.end()
		}
		own, found, err := t.claim(from, c.Ticket)
		if err != nil {
			return g, nil, err
		}
		if !found || !own.Held || own.Ends <= t.now {
			continue
		}
		own.ID, own.Owner, own.Node = id, owner, tx.Node(false)
		own.TTL, own.Ends = ttl, t.now+ttl
		if err := tx.DeleteClaim(t.key, own.Seq); err != nil {
			return g, nil, err
		}
		return held(own.Seq, ttl), nil, tx.InsertClaim(t.key, own)
	}
	return g, driver.ErrLost, nil
}

// Break ends all holders of key and grants those who now fit.
func Break(tx Tx, key string, fx *Effects) (holders int, failed error) {
	t, err := begin(tx, key, fx)
	if err != nil {
		return 0, err
	}
	if t.row.HeldAt(t.now) {
		holders++
		fx.Broken = append(fx.Broken, Broken{t.row.Node, key, t.row.ID})
		t.clear()
	}
	for after, more := int64(0), t.row.Busy; more; {
		rows, err := tx.Claims(key, after, page)
		if err != nil {
			return 0, err
		}
		more = len(rows) == page
		for _, c := range rows {
			if !c.Held {
				more = false // holders precede waiters
				break
			}
			after = c.Seq
			if c.Ends > t.now {
				holders++
				fx.Broken = append(fx.Broken, Broken{c.Node, key, c.ID})
			}
			if err := tx.DeleteClaim(key, c.Seq); err != nil {
				return 0, err
			}
		}
	}
	if err := t.walk(); err != nil {
		return 0, err
	}
	return holders, t.end()
}

// Serve removes what is dead on key and grants those who fit.
func Serve(tx Tx, key string, fx *Effects) error {
	t, err := begin(tx, key, fx)
	if err != nil {
		return err
	}
	if err := t.walk(); err != nil {
		return err
	}
	return t.end()
}
