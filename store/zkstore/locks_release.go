package zkstore

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
)

// Release implements driver.Locks. After an error other than a context error the store
// continues in the background.
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
	if err := c.lockCalls(ctx); err != nil {
		return err
	}
	defer c.unlockCalls()

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
	g := c.endLocked()
	c.Unlock()
	defer c.forget()
	if g == nil {
		return driver.ErrLost
	}
	var farewell []any
	if was == held && frank {
		// A waiter that watches this node sees it change before its deletion, and so
		// knows that its owner had the lock, and that no other contender is before the
		// waiter. If this claim did not have to wait, the change does not pay.
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
