package zkstore

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
)

// Release implements driver.Locks. After an error other than a context error the store
// goes on trying in the background.
func (s *Store) Release(ctx context.Context, cl driver.Claim) error {
	if err := check.Claim(cl); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c := s.find(cl)
	if c == nil {
		return driver.ErrLost
	}
	if err := c.take(ctx); err != nil {
		return err
	}
	defer c.give()

	c.Lock()
	was, dead, old := c.state, !bootclock.Now().Before(c.end), c.session != s.session.link().id
	c.Unlock()
	switch {
	case was == gone || was == fresh:
		return driver.ErrLost
	case was != unsure && old:
		c.lose()
		return driver.ErrLost
	case was != unsure && dead:
		if done := c.expire(); done != nil {
			select {
			case <-done:
			case <-ctx.Done():
			}
		}
		return driver.ErrLost
	case was == unsure && c.pending != nil:
		select {
		case <-c.pending:
		case <-ctx.Done():
			return fmt.Errorf("zookeeper: %w: %w", driver.ErrUnknown, ctx.Err())
		}
	}
	c.Lock()
	frank := c.waited && c.weight == driver.Whole
	g := c.leaveLocked()
	c.Unlock()
	defer c.forget()
	if g == nil {
		return driver.ErrLost
	}
	var farewell []any
	if was == held && frank {
		// A waiter that watches this node sees it change before it goes, and knows that
		// its owner had the lock: so no other contender is before the waiter. If this
		// claim did not have to wait, the change is not worth its cost.
		farewell = []any{&zk.SetDataRequest{Path: g.parent + "/" + g.nodes[0], Version: -1}}
	}
	nodes, err := g.nodes, error(nil)
	if nodes == nil {
		nodes, err = s.search(ctx, g.parent, g.guid)
	}
	deleted := 0
	if err == nil {
		deleted, err = s.removeAfter(ctx, g.parent, nodes, farewell...)
	}
	switch {
	case err != nil:
		s.removeLeftover(g)
		if err := refused("delete nodes below", g.parent, err); err != nil && answer(err) {
			return err
		}
		return uncertain(err)
	case deleted == 0:
		return driver.ErrLost
	}
	return nil
}

// Downgrade implements driver.Downgrader. The reader keeps the writer's number in the
// queue, and the first of its nodes: other processes' writers wait for that one,
// readers for the second, which is replaced.
func (s *Store) Downgrade(ctx context.Context, cl driver.Claim, ttl time.Duration) (driver.Grant, error) {
	var none driver.Grant
	if err := check.Claim(cl); err != nil {
		return none, err
	}
	if err := check.TTL(cl.Key, ttl, s.accepted()); err != nil {
		return none, err
	}
	if s.closed.Load() {
		return none, driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	c := s.find(cl)
	if c == nil {
		return none, driver.ErrLost
	}
	if err := c.take(ctx); err != nil {
		return none, err
	}
	defer c.give()
	a := s.renew(ctx, []*claim{c}, ttl)[0]
	c.Lock()
	nodes, weight, capacity := c.nodes, c.weight, c.capacity
	c.Unlock()
	switch {
	case a.State == driver.Unknown:
		return none, a.Err
	case a.State != driver.Held || capacity != driver.Whole:
		return none, driver.ErrLost
	case weight != driver.Whole || len(nodes) != 2:
		return a.Grant, nil // it is a reader
	}
	ch, ok := parse(nodes[1])
	if !ok {
		return none, driver.ErrLost
	}
	reader := fmt.Sprintf("%s-%s%010d", c.guid, markRead, ch.seq)
	c.Lock()
	data := c.data(c.marked)
	c.reader = reader
	c.Unlock()
	_, t, _, err := s.multi(ctx, []any{
		&zk.CheckVersionRequest{Path: c.parent + "/" + nodes[0], Version: -1},
		&zk.DeleteRequest{Path: c.parent + "/" + nodes[1], Version: -1},
		&zk.CreateRequest{Path: c.parent + "/" + reader, Data: data, Acl: s.acl, Flags: zk.FlagEphemeral},
	})
	if err != nil && !answer(err) {
		return none, err // the next renewal finds out
	}
	if err == zk.ErrNoNode {
		// Another client deleted the nodes since they were renewed, or an earlier
		// request that got no answer took effect: a renewal tells.
		switch a := s.renew(ctx, []*claim{c}, ttl)[0]; a.State {
		case driver.Held:
			return a.Grant, nil
		case driver.Unknown:
			return none, a.Err
		}
		return none, driver.ErrLost
	}
	c.Lock()
	defer c.Unlock()
	c.reader = ""
	switch {
	case c.state != held:
		return none, driver.ErrLost
	case err != nil:
		return none, refused("downgrade the lock in", c.parent, err)
	}
	c.nodes, c.weight = []string{nodes[0], reader}, 1
	s.sawGone(c.parent, nodes[1])
	return c.grant(ttl, t.sure), nil
}
