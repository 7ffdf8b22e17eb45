package zkstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
)

// manyClaims is the greatest number of claims in one request.
const manyClaims = 200

// Renew implements driver.Locks. It renews holders by a transaction that fails unless
// their nodes exist, because only a commit proves that, and waiters by one request after
// which they have seen every event.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	var ours []*claim
	var at []int
	traits := s.accepted()
	for i, cl := range claims {
		err := check.Claim(cl)
		if err == nil {
			err = check.TTL(cl.Key, ttl, traits)
		}
		if err == nil && s.closed.Load() {
			err = driver.ErrClosed
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			answers[i] = driver.Renewal{State: driver.Unknown, Err: err}
			continue
		}
		c := s.find(cl)
		if c == nil {
			answers[i] = driver.Renewal{State: driver.Lost}
			continue
		}
		ours, at = append(ours, c), append(at, i)
	}
	s.session.closeIfSilentFor(ttl)
	for i, a := range s.renew(ctx, ours, ttl) {
		answers[at[i]] = a
	}
	return answers
}

func (s *Store) renew(ctx context.Context, claims []*claim, ttl time.Duration) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	var holders, waiters []int
	for i, c := range claims {
		answers[i], holders, waiters = c.sort(ctx, i, holders, waiters)
	}
	synced := false
	for part := range slices.Chunk(holders, manyClaims) {
		synced = s.renewHolders(ctx, claims, part, ttl, answers) || synced
	}
	if len(waiters) == 0 {
		return answers
	}
	if !synced { // a commit is answered after the events of all earlier commits
		if err := s.sync(ctx); err != nil {
			for _, i := range waiters {
				answers[i] = unknown(refused("sync", s.root, err))
			}
			return answers
		}
	}
	var granted []int
	for _, i := range waiters {
		if answers[i] = claims[i].renewWaiter(ctx, ttl); answers[i].State == driver.Held {
			granted = append(granted, i)
		}
	}
	for part := range slices.Chunk(granted, manyClaims) {
		s.renewHolders(ctx, claims, part, ttl, answers)
	}
	return answers
}

func unknown(err error) driver.Renewal { return driver.Renewal{State: driver.Unknown, Err: err} }

// sort adds the claim's index to holders or waiters, or returns the answer.
func (c *claim) sort(ctx context.Context, i int, holders, waiters []int) (driver.Renewal, []int, []int) {
	c.Lock()
	st, session := c.state, c.session
	over := (st == waiting || st == held) && !bootclock.Now().Before(c.end)
	var g *leftover
	if over {
		g = c.endLocked() // before another call can renew it
	}
	c.Unlock()
	lost := driver.Renewal{State: driver.Lost}
	switch {
	case st == gone || st == fresh:
		return lost, holders, waiters
	case st == unsure: // due ends it, unless the caller repeats its request
		return unknown(unavailable(errors.New("an earlier request has no answer yet"))), holders, waiters
	case over:
		if done := c.removeLeft(g); done != nil {
			select { // so that its nodes are gone before its caller learns of its end
			case <-done:
			case <-ctx.Done():
			}
		}
		return lost, holders, waiters
	}
	if l := c.s.session.link(); l.id != session {
		c.lose()
		return lost, holders, waiters
	}
	if st == held {
		return lost, append(holders, i), waiters
	}
	return lost, holders, append(waiters, i)
}

// renewHolders renews holders in one transaction, and in more if some of their nodes are
// gone. It reports whether one was committed.
func (s *Store) renewHolders(ctx context.Context, claims []*claim, left []int, ttl time.Duration, answers []driver.Renewal) bool {
	for len(left) > 0 {
		var ops []any
		var whose []int // by operation
		for _, i := range left {
			c := claims[i]
			c.Lock()
			n := len(ops)
			ops = c.checks(ops)
			if c.waited && !c.marked { // the first renewal since it got the lock
				last := len(ops) - 1 // see factsNode
				ops[last] = &zk.SetDataRequest{Path: c.parent + "/" + c.nodes[last-n], Data: c.data(true), Version: unwritten}
			}
			c.Unlock()
			for range len(ops) - n {
				whose = append(whose, i)
			}
		}
		_, t, failed, err := s.multi(ctx, ops)
		if err == nil {
			for _, i := range left {
				answers[i] = claims[i].confirmed(t, ttl)
			}
			return true
		}
		if err == zk.ErrBadVersion && failed >= 0 {
			claims[whose[failed]].isMarked()
			continue
		}
		if err != zk.ErrNoNode || failed < 0 {
			for _, i := range left {
				answers[i] = unknown(refused("confirm the locks in", s.root, err))
			}
			return false
		}
		// The operations after the failed one were not tried.
		i := whose[failed]
		if claims[i].lacks(base(pathOf(ops[failed]))) {
			claims[i].lose()
			answers[i] = driver.Renewal{State: driver.Lost}
			left = slices.DeleteFunc(slices.Clone(left), func(j int) bool { return j == i })
		}
	}
	return false
}

func pathOf(op any) string {
	switch op := op.(type) {
	case *zk.CheckVersionRequest:
		return op.Path
	case *zk.SetDataRequest:
		return op.Path
	}
	return ""
}

// lacks reports whether the claim has ended because that node of it does not exist. It
// has not ended if it was downgraded meanwhile, or earlier by an unanswered request.
func (c *claim) lacks(node string) bool {
	c.Lock()
	defer c.Unlock()
	if c.reader != "" && node == c.nodes[1] {
		c.nodes, c.weight, c.reader = []string{c.nodes[0], c.reader}, 1, ""
		return false
	}
	return slices.Contains(c.nodes, node)
}

// confirmed takes a committed answer that the claim's nodes exist.
func (c *claim) confirmed(t request, ttl time.Duration) driver.Renewal {
	c.Lock()
	switch {
	case c.state != held || c.session != t.link.id:
		c.Unlock()
		return driver.Renewal{State: driver.Lost}
	case t.proven <= 0:
		c.Unlock()
		return unknown(unavailable(errSilent))
	}
	c.ttl = ttl
	c.marked = c.waited
	c.endInLocked(lasting(ttl))
	g := c.grant(ttl, t.proven)
	c.Unlock()
	return driver.Renewal{State: driver.Held, Grant: g}
}

// renewWaiter renews a position. The server has sent all earlier events; the answer must
// wait until the waiter has processed them.
func (c *claim) renewWaiter(ctx context.Context, ttl time.Duration) driver.Renewal {
	for {
		c.Lock()
		switch c.state {
		case gone:
			c.Unlock()
			return driver.Renewal{State: driver.Lost}
		case held:
			c.Unlock()
			return driver.Renewal{State: driver.Held} // renewHolders renews it
		}
		p := c.blocked
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.Unlock()
		if p != nil && p.upToDate(ctx, c.s) {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return unknown(ctx.Err())
		}
	}
	c.Lock()
	defer c.Unlock()
	if c.state != waiting {
		if c.state == held {
			return driver.Renewal{State: driver.Held}
		}
		return driver.Renewal{State: driver.Lost}
	}
	c.ttl = ttl
	c.endInLocked(c.s.waiterTTL)
	return driver.Renewal{State: driver.Waiting, Grant: c.waitingGrant()}
}

// unwritten is the version of a node's data before the first change. Marking requires it,
// so that it does not undo a Rename, which marks the node, too.
const unwritten = 0

// mark marks the claim's node as held.
func (c *claim) mark(ctx context.Context) {
	c.Lock()
	path, data := c.parent+"/"+c.nodes[0], c.data(true)
	c.Unlock()
	_, _, err := send(ctx, c.s, true, func(conn *zk.Conn) (*zk.Stat, error) { return conn.Set(path, data, unwritten) })
	if err == nil || err == zk.ErrBadVersion {
		c.isMarked()
	}
}

// isMarked notes that the claim's node is marked.
func (c *claim) isMarked() {
	c.Lock()
	defer c.Unlock()
	c.marked = true
}
