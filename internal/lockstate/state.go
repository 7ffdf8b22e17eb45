// Package lockstate is the state of one key, its holders and its queue, as a pure
// machine: no clock, no mutex, no goroutine. It is the plainest form of package driver's
// contract, the core of memstore, and the oracle for stores with scripts or SQL.
//
// # The rules
//
// A claim asks for a weight of a capacity. The holders of a key have the same capacity,
// and the sum of their weights is at most that. The exclusive claim asks for driver.Whole
// of driver.Whole, a reader for 1 of driver.Whole.
//
// A claim that does not fit, or finds other claims in the queue, waits in the order of
// arrival. After every change the head of the queue is granted as long as it fits; no
// claim overtakes it. So after any operation there is no free lock with a live waiter.
//
// Every claim has an end, and is gone at that moment even without a call: for a holder
// its TTL after its last renewal, for a waiter driver.WaiterTTL after it. A grant to the
// head of the queue, made without its owner's call, lasts driver.ClaimTTL at most, until
// the owner's first Renew.
//
// Tokens and tickets come from one counter, so the token of a grant is higher than that
// of every earlier grant and than the ticket of its position.
package lockstate

import (
	"time"

	"github.com/batonhq/baton/driver"
)

// Counter draws tokens. Several keys may share one. It follows the clock, in
// microseconds, so it needs no memory of keys without claims. If grants came faster than
// one a microsecond, it is ahead of the clock; it still rises through a restart that
// takes longer than that. In the long run a grant takes more than a microsecond.
type Counter struct{ last int64 }

func (c *Counter) next(now time.Duration) int64 {
	c.last = max(c.last+1, now.Microseconds())
	return c.last
}

// Raise makes later tokens and tickets higher than token. It returns a number that they
// are all above.
func (c *Counter) Raise(token int64) int64 {
	c.last = max(c.last, token)
	return c.last
}

// State is the state of one key. Use New. The times that its methods take, since 1970,
// must never go back. Requests must be legal (check.Request).
type State struct {
	key    string
	tokens *Counter

	claims  map[string]*claim // by ID, holders and waiters
	holders list              // in the order of grants
	queue   list              // in the order of arrival
	ageing  list              // the queue in the order of ends

	used     int64         // the sum of the holders' weights
	noEndTil time.Duration // no holder ends before this
	events   []Event
	spare    *claim // the last removed one, to save an allocation
	most     int    // the most claims at one time
}

type claim struct {
	driver.Claim
	held   bool
	ticket int64
	token  int64
	ttl    time.Duration // as asked for
	since  time.Duration // when it joined, or was granted
	end    time.Duration // the first moment after it

	inQueue, inAgeing link
}

// An Event is a change of a claim that its owner did not ask for in this call.
type Event struct {
	ID    string
	Held  bool         // granted from the queue; otherwise lost by Break
	Grant driver.Grant // if Held
}

// New returns the state of a key without claims.
func New(key string, tokens *Counter) *State {
	s := &State{tokens: tokens, claims: map[string]*claim{}}
	s.holders.link = func(c *claim) *link { return &c.inQueue }
	s.queue.link = s.holders.link
	s.ageing.link = func(c *claim) *link { return &c.inAgeing }
	s.Reuse(key)
	return s
}

// Reuse turns an idle state into that of another key. It frees most of the memory of many
// claims.
func (s *State) Reuse(key string) {
	s.key = key
	if s.most > 64 {
		s.claims, s.events, s.most = map[string]*claim{}, nil, 0
	}
}

// Idle reports whether the key has no claims, so that the state may be dropped.
func (s *State) Idle(now time.Duration) bool {
	s.settle(now)
	return len(s.claims) == 0
}

// Acquire is driver.Locks.Acquire.
func (s *State) Acquire(now time.Duration, r driver.Request) (driver.Grant, error) {
	s.settle(now)
	if c := s.claims[r.ID]; c != nil { // the answer to an earlier attempt was lost
		s.confirm(now, c, r.TTL)
		return s.answer(now, c), nil
	}
	if h := s.holders.first; h != nil && !h.Exclusive() && !r.Exclusive() && h.Capacity != r.Capacity {
		return driver.Grant{}, &driver.CapacityError{Key: s.key, InUse: h.Capacity, Asked: r.Capacity}
	}
	if s.queue.first == nil && s.fits(r.Claim) {
		c := s.add(r)
		s.hold(now, c, r.TTL)
		return s.answer(now, c), nil
	}
	if !r.Queue {
		return driver.Grant{}, s.heldError(now)
	}
	if r.MaxWaiting > 0 && s.queue.len >= r.MaxWaiting {
		return driver.Grant{}, &driver.QueueFullError{Key: s.key, Waiting: s.queue.len}
	}
	c := s.add(r)
	c.ticket = s.tokens.next(now)
	c.since = now
	s.queue.push(c)
	s.ageing.push(c)
	s.confirm(now, c, r.TTL)
	return s.answer(now, c), nil
}

// Renew is driver.Locks.Renew for one claim.
func (s *State) Renew(now time.Duration, cl driver.Claim, ttl time.Duration) driver.Renewal {
	s.settle(now)
	c := s.claims[cl.ID]
	if c == nil {
		return driver.Renewal{State: driver.Lost}
	}
	s.confirm(now, c, ttl)
	if c.held {
		return driver.Renewal{State: driver.Held, Grant: s.answer(now, c)}
	}
	return driver.Renewal{State: driver.Waiting, Grant: s.answer(now, c)}
}

// Release is driver.Locks.Release.
func (s *State) Release(now time.Duration, cl driver.Claim) error {
	s.expire(now)
	c := s.claims[cl.ID]
	if c != nil {
		s.remove(c)
	}
	s.advance(now)
	if c == nil {
		return driver.ErrLost
	}
	return nil
}

// Downgrade is driver.Downgrader.Downgrade.
func (s *State) Downgrade(now time.Duration, cl driver.Claim, ttl time.Duration) (driver.Grant, error) {
	s.settle(now)
	c := s.claims[cl.ID]
	if c == nil || !c.held || c.Capacity != driver.Whole {
		return driver.Grant{}, driver.ErrLost
	}
	s.used -= c.Weight - 1
	c.Weight = 1
	s.confirm(now, c, ttl)
	s.advance(now)
	return s.answer(now, c), nil
}

// Move is driver.Mover.Move.
func (s *State) Move(now time.Duration, cl driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
	s.settle(now)
	c := s.claims[id] // an earlier attempt, whose answer was lost
	if c == nil {
		c = s.claims[cl.ID]
	}
	if c == nil || !c.held {
		return driver.Grant{}, driver.ErrLost
	}
	if c.ID != id {
		delete(s.claims, c.ID)
		c.ID, c.Owner = id, owner
		s.claims[id] = c
	}
	s.confirm(now, c, ttl)
	return s.answer(now, c), nil
}

// Rename is driver.Renamer.Rename.
func (s *State) Rename(now time.Duration, cl driver.Claim, owner string) error {
	s.settle(now)
	c := s.claims[cl.ID]
	if c == nil || !c.held {
		return driver.ErrLost
	}
	c.Owner = owner
	return nil
}

// Break is driver.Inspector.Break.
func (s *State) Break(now time.Duration, grants ...string) (ended int) {
	s.expire(now)
	for c := range s.holders.all {
		if driver.Among(driver.GrantOf(c.ID), grants) {
			s.events = append(s.events, Event{ID: c.ID})
			s.remove(c)
			ended++
		}
	}
	s.advance(now)
	return ended
}

// Inspect is driver.Inspector.Inspect.
func (s *State) Inspect(now time.Duration) driver.KeyInfo {
	s.settle(now)
	info := driver.KeyInfo{Key: s.key}
	for c := range s.holders.all {
		info.Holders = append(info.Holders, driver.HolderInfo{
			Owner: c.Owner, Weight: c.Weight, Capacity: c.Capacity, Token: c.token, Age: now - c.since, Remaining: c.end - now,
			Grant: driver.GrantOf(c.ID),
		})
	}
	for c := range s.queue.all {
		info.Waiters = append(info.Waiters, driver.WaiterInfo{
			Owner: c.Owner, Weight: c.Weight, Capacity: c.Capacity, Age: now - c.since,
		})
	}
	return info
}

// Events returns the events since its last call. The slice is valid until the next
// operation.
func (s *State) Events() []Event {
	e := s.events
	s.events = s.events[:0]
	return e
}

// settle removes the claims that have ended and grants the claims that now fit.
func (s *State) settle(now time.Duration) {
	s.expire(now)
	s.advance(now)
}

func (s *State) expire(now time.Duration) {
	for c := s.ageing.first; c != nil && c.end <= now; c = s.ageing.first {
		s.remove(c)
	}
	if s.holders.first == nil || now < s.noEndTil {
		return
	}
	s.noEndTil = now + 1<<62
	for c := range s.holders.all {
		if c.end <= now {
			s.remove(c)
		} else {
			s.noEndTil = min(s.noEndTil, c.end)
		}
	}
}

// advance grants the head of the queue as long as it fits.
func (s *State) advance(now time.Duration) {
	for c := s.queue.first; c != nil && s.fits(c.Claim); c = s.queue.first {
		s.queue.remove(c)
		s.ageing.remove(c)
		s.hold(now, c, min(c.ttl, driver.ClaimTTL))
		s.events = append(s.events, Event{ID: c.ID, Held: true, Grant: s.answer(now, c)})
	}
}

func (s *State) fits(c driver.Claim) bool {
	h := s.holders.first
	return h == nil || h.Capacity == c.Capacity && s.used+c.Weight <= c.Capacity
}

func (s *State) hold(now time.Duration, c *claim, ttl time.Duration) {
	c.held = true
	c.token = s.tokens.next(now)
	c.ticket = c.token
	c.since = now
	s.used += c.Weight
	s.holders.push(c)
	s.lastUntil(c, now+ttl)
}

// confirm prolongs a claim whose owner has just asked about it.
func (s *State) confirm(now time.Duration, c *claim, ttl time.Duration) {
	c.ttl = ttl
	if c.held {
		s.lastUntil(c, now+ttl)
		return
	}
	c.end = now + driver.WaiterTTL
	s.ageing.remove(c)
	s.ageing.push(c) // all waiters last equally long, so the last renewed ends last
}

// lastUntil gives a holder a new end. With several holders noEndTil may be too early
// until expire recomputes it.
func (s *State) lastUntil(c *claim, end time.Duration) {
	c.end = end
	if s.holders.len == 1 {
		s.noEndTil = end
	} else {
		s.noEndTil = min(s.noEndTil, end)
	}
}

func (s *State) answer(now time.Duration, c *claim) driver.Grant {
	g := driver.Grant{Waiting: !c.held, Token: c.token, Ticket: c.ticket, TTL: c.end - now}
	if g.Waiting {
		g.Again = min(driver.RefreshEvery, s.noEndTil-now+time.Millisecond)
	}
	return g
}

// heldError describes a holder. There is one: a free lock has no queue.
func (s *State) heldError(now time.Duration) error {
	h := s.holders.first
	return &driver.HeldError{
		Key: s.key, Owner: h.Owner, Age: now - h.since, Remaining: h.end - now, Waiting: s.queue.len,
	}
}

func (s *State) add(r driver.Request) *claim {
	c := s.spare
	if c == nil {
		c = new(claim)
	}
	s.spare = nil
	*c = claim{Claim: r.Claim, ttl: r.TTL}
	s.claims[c.ID] = c
	s.most = max(s.most, len(s.claims))
	return c
}

// remove takes a claim out of all lists.
func (s *State) remove(c *claim) {
	delete(s.claims, c.ID)
	if c.held {
		s.used -= c.Weight
		s.holders.remove(c)
	} else {
		s.queue.remove(c)
		s.ageing.remove(c)
	}
	s.spare = c
}
