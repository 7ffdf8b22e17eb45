package sqlstore

import (
	"github.com/batonhq/baton/driver"
)

// Each function below is one operation within tx. Its last result is a failure of the
// database: roll back. The result before it is a refusal by the contract: commit anyway,
// because the walk may have granted other claims.

// Acquire makes one attempt.
func Acquire(tx Tx, r driver.Request, fx *Effects) (g driver.Grant, refused, failed error) {
	a, err := arrive(tx, r, fx)
	if err != nil {
		return g, nil, err
	}
	if g, refused, err = a.decide(); err != nil {
		return g, nil, err
	}
	return g, refused, a.end()
}

// An attempt is a request with the result of its walk.
type attempt struct {
	*keyTx
	r     driver.Request
	ttl   int64
	mine  bool  // the row's own holder has this ID
	found bool  // an earlier attempt has left a claim:
	own   Claim // that claim
}

// arrive renews the claim of an earlier attempt, and walks.
func arrive(tx Tx, r driver.Request, fx *Effects) (*attempt, error) {
	t, err := begin(tx, r.Key, fx)
	if err != nil {
		return nil, err
	}
	a := &attempt{keyTx: t, r: r, ttl: micros(r.TTL)}
	if t.row.ID == r.ID && t.row.HeldAt(t.now) {
		a.mine = true
		t.row.Ends = t.now + a.ttl
		t.claims = t.row.Busy
		return a, nil
	}
	if a.own, a.found, err = t.claim(r.ID, r.Ticket); err != nil {
		return nil, err
	}
	if a.found && a.own.Ends <= t.now {
		dead, err := tx.DeleteDead(t.key, a.own.Seq)
		if err != nil {
			return nil, err
		}
		a.found = !dead
	}
	if a.found {
		a.own.TTL = a.ttl
		a.own.Ends = t.now + micros(driver.WaiterTTL)
		if a.own.Held {
			a.own.Ends = t.now + a.ttl
		}
		if err := tx.UpdateClaim(t.key, a.own); err != nil {
			return nil, err
		}
	}
	return a, t.walk()
}

// succeeds reports whether decide will grant.
func (a *attempt) succeeds() bool {
	switch {
	case a.mine:
		return true
	case a.found:
		_, now := a.granted[a.own.Seq]
		return now || a.own.Held
	}
	return a.head == 0 && a.fits(a.r.Weight, a.r.Capacity)
}

func (a *attempt) decide() (g driver.Grant, refused, failed error) {
	switch {
	case a.mine:
		return held(a.row.Token, a.ttl), nil, nil
	case a.found && a.own.Held:
		return held(a.own.Seq, a.ttl), nil, nil
	case a.found:
		g, isHeld, err := a.position(a.own.Seq, a.ttl)
		if err == nil && !isHeld && !a.r.Queue {
			refused, err = a.refusal()
		}
		return g, refused, err
	}
	return a.enter(a.r, a.ttl)
}

// AcquireAll makes one attempt for several keys: it grants all or none. No other
// transaction may write meanwhile.
func AcquireAll(tx Tx, r []driver.Request, fx *Effects) (g []driver.Grant, refused, failed error) {
	all := make([]*attempt, 0, len(r))
	g = make([]driver.Grant, len(r))
	for _, q := range r {
		a, err := arrive(tx, q, fx)
		if err != nil {
			return nil, nil, err
		}
		if all = append(all, a); a.succeeds() {
			continue
		}
		if _, refused, err = a.decide(); err != nil {
			return nil, nil, err
		}
		break
	}
	for i, a := range all {
		if refused == nil {
			if g[i], _, failed = a.decide(); failed != nil {
				return nil, nil, failed
			}
		}
		if failed = a.end(); failed != nil {
			return nil, nil, failed
		}
	}
	if refused == nil {
		return g, nil, nil
	}
	for _, q := range r {
		if q.Retry || q.Ticket > 0 { // also release the claim of an earlier attempt
			if _, err := Release(tx, q.Claim, fx); err != nil {
				return nil, nil, err
			}
		}
	}
	return nil, refused, nil
}

// enter grants, queues or refuses a request without a claim.
func (t *keyTx) enter(r driver.Request, ttl int64) (g driver.Grant, refused, failed error) {
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

	case r.MaxWaiting > 0 && t.head > 0:
		n, err := t.tx.CountWaiting(t.key)
		if err != nil {
			return g, nil, err
		}
		if n >= r.MaxWaiting {
			return g, &driver.QueueFullError{Key: r.Key, Waiting: n}, nil
		}
	}

	c := t.newClaim(r, ttl)
	c.Node = t.tx.Node(true)
	c.Ends = t.now + micros(driver.WaiterTTL)
	if t.head == 0 {
		t.head = c.Seq
	}
	return t.waiting(c.Seq), nil, t.tx.InsertClaim(t.key, c)
}

func (t *keyTx) newClaim(r driver.Request, ttl int64) Claim {
	t.claims = true
	return Claim{
		Seq: t.ticket(), ID: r.ID, Owner: r.Owner,
		Weight: r.Weight, Capacity: r.Capacity, TTL: ttl, Since: t.now,
	}
}

// position is the answer about a position after the walk.
func (t *keyTx) position(seq, ttl int64) (g driver.Grant, isHeld bool, failed error) {
	c, isHeld, err := t.takeGrant(seq, ttl)
	if err != nil {
		return g, false, err
	}
	if isHeld {
		return held(c.Seq, ttl), true, nil
	}
	return t.waiting(seq), false, nil
}

// Release ends the claim and grants the waiters that now fit. refused is driver.ErrLost
// if the claim has ended.
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

// Look grants the waiters of key that fit, and answers those waiting claims of the batch
// whose positions the batch has just renewed. Every waiter must look now and then: there
// is no other way to notice the death of a holder.
func Look(tx Tx, key string, positions []Position, b *Batch, ttl int64, fx *Effects) error {
	t, err := begin(tx, key, fx)
	if err != nil {
		return err
	}
	if err := t.walk(); err != nil {
		return err
	}
	for _, p := range positions {
		g, isHeld, err := t.position(p.Seq, ttl)
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

// Find answers one claim of a batch that the batch's statements did not find, because its
// ticket is unknown or not the newest. It renews the claim if that has not ended, and
// returns its position if it waits.
func Find(tx Tx, p Position, b *Batch, ttl int64) (at Position, waiting bool, failed error) {
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
	return Position{Key: p.Key, ID: p.ID, Seq: own.Seq}, !own.Held, tx.UpdateClaim(p.Key, own)
}

// Downgrade makes a writer a reader. refused is driver.ErrLost if c is neither an
// exclusive holder nor a reader.
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

// Move moves the lock of c to the ID id, for another ttl.
func Move(tx Tx, c driver.Claim, id, owner string, ttl int64, fx *Effects) (g driver.Grant, refused, failed error) {
	t, err := begin(tx, c.Key, fx)
	if err != nil {
		return g, nil, err
	}
	t.claims = t.row.Busy
	for _, from := range []string{id, c.ID} { // id, if the answer to an earlier attempt was lost
		if t.row.ID == from && t.row.HeldAt(t.now) {
			if from != id {
				t.row.Owner = owner
			}
			t.row.ID, t.row.Node = id, tx.Node(false)
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
		if from != id {
			own.Owner = owner
		}
		own.ID, own.Node = id, tx.Node(false)
		own.TTL, own.Ends = ttl, t.now+ttl
		if err := tx.DeleteClaim(t.key, own.Seq); err != nil {
			return g, nil, err
		}
		return held(own.Seq, ttl), nil, tx.InsertClaim(t.key, own)
	}
	return g, driver.ErrLost, nil
}

// Rename changes the owner of the lock of c. refused is driver.ErrLost if c holds
// nothing.
func Rename(tx Tx, c driver.Claim, owner string, fx *Effects) (refused, failed error) {
	t, err := begin(tx, c.Key, fx)
	if err != nil {
		return nil, err
	}
	if t.row.ID == c.ID && t.row.HeldAt(t.now) {
		t.row.Owner, t.claims = owner, t.row.Busy
		return nil, t.end()
	}
	own, found, err := t.claim(c.ID, c.Ticket)
	if err != nil {
		return nil, err
	}
	if !found || !own.Held || own.Ends <= t.now {
		return driver.ErrLost, nil
	}
	own.Owner = owner
	return nil, tx.RenameClaim(t.key, own)
}

// Break ends the claims of all holders of key, or of these grants, and grants the waiters
// that now fit.
func Break(tx Tx, key string, grants []string, fx *Effects) (ended int, failed error) {
	t, err := begin(tx, key, fx)
	if err != nil {
		return 0, err
	}
	meant := func(id string) bool { return driver.Among(driver.GrantOf(id), grants) }
	if t.row.HeldAt(t.now) && meant(t.row.ID) {
		ended++
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
			if after = c.Seq; !meant(c.ID) {
				continue
			}
			if c.Ends > t.now {
				ended++
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
	return ended, t.end()
}

// Serve removes expired claims of key and grants the waiters that fit.
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
