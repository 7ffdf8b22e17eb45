package zkstore

import (
	"context"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

type state uint8

const (
	fresh   state = iota // it has no nodes, or they have just been made
	unsure               // it may have nodes: a request got no answer
	waiting              // it has nodes, behind other contenders
	held
	gone // final; it is no longer in Store.claims
)

// A claim is a claim of this process on one key. Its nodes live as long as the session,
// so the store must delete them when the claim ends.
//
// A call that creates its nodes, or finds out whether there are any, holds callMu. Only
// such a call ends a fresh or unsure claim. The embedded Mutex guards the rest and is
// locked before Store.mu.
type claim struct {
	s        *Store
	name     name
	owner    string
	weight   int64
	capacity int64
	parent   string
	callMu   chan struct{} // cap 1

	sync.Mutex // guards the fields below

	state state
	ttl   time.Duration // as asked for
	end   time.Time     // when the claim ends
	timer *time.Timer   // fires at armed or later
	armed time.Time

	guid    string
	nodes   []string // names; the first exists until the claim ends
	reader  string   // the name that an unanswered downgrade may have given the second
	token   int64
	session int64
	pending <-chan struct{} // the unanswered request; closed when the client is done with it

	blocked *blocked           // what the waiter waits for; nil while it works
	changed chan struct{}      // closed when blocked changes; nil if no call waits for that
	stop    context.CancelFunc // ends the waiter
	waited  bool               // it was granted after waiting
	marked  bool               // its node says so
}

// reserve is the end of a TTL in which the store deletes the nodes, so that they are gone
// when the TTL is over.
func reserve(ttl time.Duration) time.Duration { return min(ttl/8, 250*time.Millisecond) }

func lasting(ttl time.Duration) time.Duration { return ttl - reserve(ttl) }

// claim returns the claim of the request, and makes a missing one.
func (s *Store) claim(r driver.Request) *claim {
	n := name{r.Key, r.ID}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.claims[n]
	if c == nil {
		c = &claim{
			s: s, name: n, owner: r.Owner, weight: r.Weight, capacity: r.Capacity,
			parent: s.parent(r.Key), callMu: make(chan struct{}, 1),
		}
		s.claims[n] = c
	}
	return c
}

func (s *Store) find(cl driver.Claim) *claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[name{cl.Key, cl.ID}]
}

func (c *claim) lockCalls(ctx context.Context) error {
	select {
	case c.callMu <- struct{}{}:
		return nil
	default:
	}
	select {
	case c.callMu <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *claim) unlockCalls() { <-c.callMu }

func (c *claim) is() state {
	c.Lock()
	defer c.Unlock()
	return c.state
}

func (c *claim) endInLocked(d time.Duration) {
	now := bootclock.Now()
	c.end = now.Add(d)
	switch {
	case c.timer == nil:
		c.timer = time.AfterFunc(d, c.due)
	case c.end.Before(c.armed) || !now.Before(c.armed):
		c.timer.Reset(d)
	default:
		return // due looks again when the timer fires
	}
	c.armed = c.end
}

// due is called by the timer.
func (c *claim) due() {
	c.Lock()
	if c.state == gone {
		c.Unlock()
		return
	}
	if left := c.end.Sub(bootclock.Now()); left > 0 {
		c.armed = c.end
		c.timer.Reset(left)
		c.Unlock()
		return
	}
	if c.state == fresh || c.state == unsure {
		select {
		case c.callMu <- struct{}{}:
			defer c.unlockCalls()
		default: // a repeated Acquire is about to settle it
			c.armed = bootclock.Now().Add(retryAfter)
			c.timer.Reset(retryAfter)
			c.Unlock()
			return
		}
	}
	g := c.endLocked() // before another call can renew it
	c.Unlock()
	c.removeLeft(g)
}

func (c *claim) expire() <-chan struct{} {
	c.Lock()
	g := c.endLocked()
	c.Unlock()
	return c.removeLeft(g)
}

// removeLeft deletes what endLocked has returned, in the background. The channel is
// closed at the end.
func (c *claim) removeLeft(g *leftover) <-chan struct{} {
	c.forget()
	if g == nil {
		return nil
	}
	c.s.tell(c.name, driver.Hint{})
	return c.s.removeLeftover(g)
}

// endLocked makes the claim gone, and returns its possible remains on the server.
func (c *claim) endLocked() *leftover {
	if c.state == gone {
		return nil
	}
	var g *leftover
	if c.state == unsure || len(c.nodes) > 0 {
		g = c.leftoverLocked()
	}
	c.state = gone
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.stop != nil {
		c.stop()
	}
	c.blockedLocked(nil)
	return g
}

func (c *claim) leftoverLocked() *leftover {
	g := &leftover{parent: c.parent, guid: c.guid, nodes: c.nodes, session: c.session, pending: c.pending, done: make(chan struct{})}
	if c.reader != "" {
		g.nodes = append(g.nodes[:len(g.nodes):len(g.nodes)], c.reader)
	}
	if c.state == unsure {
		g.nodes = nil // there may be other nodes
	}
	return g
}

// forget removes a gone claim from the store's map.
func (c *claim) forget() {
	s := c.s
	s.mu.Lock()
	if s.claims[c.name] == c {
		delete(s.claims, c.name)
	}
	last := s.closed.Load() && s.idleLocked()
	s.mu.Unlock()
	if last {
		s.finish()
	}
}

// lose ends a claim whose nodes or session are gone.
func (c *claim) lose() {
	c.Lock()
	was := c.state
	g := c.endLocked()
	c.Unlock()
	c.forget()
	if was == gone {
		return
	}
	c.s.tell(c.name, driver.Hint{})
	if g != nil {
		c.s.removeLeftover(g) // one of two nodes may be left
	}
}

// loseAll ends all claims of earlier sessions.
func (s *Store) loseAll() {
	now := s.session.link().id
	s.mu.Lock()
	var lost []*claim
	for _, c := range s.claims {
		lost = append(lost, c)
	}
	s.mu.Unlock()
	for _, c := range lost {
		c.Lock()
		old := (c.state == waiting || c.state == held) && c.session != now
		c.Unlock()
		if old {
			c.lose()
		}
	}
}

// blockedLocked notes that the waiter now waits for p, or works if p is nil, and wakes
// the calls that wait for such a change.
func (c *claim) blockedLocked(p *blocked) {
	c.blocked = p
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// holdLocked makes the claim a holder for d, unless it is gone.
func (c *claim) holdLocked(d time.Duration) bool {
	if c.state == gone {
		return false
	}
	c.state = held
	c.endInLocked(d)
	c.blockedLocked(nil)
	return true
}

// unresolved notes that the outcome of a request is unknown. pending is closed when the
// request is over.
func (c *claim) unresolved(pending <-chan struct{}, ttl time.Duration) {
	c.Lock()
	c.pending = pending
	if c.state == gone {
		g := c.leftoverLocked()
		g.nodes = nil
		c.Unlock()
		c.s.removeLeftover(g)
		return
	}
	c.state = unsure
	c.endInLocked(max(ttl, driver.WaiterTTL)) // longer than its caller repeats the request
	c.Unlock()
}

// endLate deletes the nodes that a request made for a claim that is gone now: no call
// could renew or release them.
func (c *claim) endLate() error {
	c.Lock()
	g := c.leftoverLocked()
	c.Unlock()
	c.s.removeLeftover(g)
	return unavailable(errLate)
}

// grant is the answer about a held claim. sure is the session's proven time: see
// Session.committed.
func (c *claim) grant(ttl time.Duration, sure time.Duration) driver.Grant {
	return driver.Grant{Token: c.token, Ticket: c.token, TTL: min(lasting(ttl), sure)}
}

func (c *claim) waitingGrant() driver.Grant {
	return driver.Grant{Waiting: true, Ticket: c.token, TTL: driver.WaiterTTL}
}
