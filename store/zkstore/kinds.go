package zkstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// Downgrade implements driver.Downgrader. The reader keeps the writer's number in the
// queue, and the first of its nodes. Other processes' writers wait for that one, readers
// for the second, which is replaced.
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
	if err := c.lockCalls(ctx); err != nil {
		return none, err
	}
	defer c.unlockCalls()
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
		// Another client has deleted the nodes since they were renewed, or an earlier
		// unanswered request took effect: a renewal finds out.
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
	return c.grant(ttl, t.proven), nil
}

var _ driver.Renamer = (*Store)(nil)

// Rename implements driver.Renamer, by a read and a transaction. It writes the node that
// Inspect reads, and never the first of an exclusive claim: a change of that one means
// that the lock is released.
func (s *Store) Rename(ctx context.Context, cl driver.Claim, owner string) error {
	if err := check.Rename(cl, owner); err != nil {
		return err
	}
	if s.closed.Load() {
		return driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c := s.find(cl)
	if c == nil {
		return driver.ErrLost
	}
	if err := c.lockCalls(ctx); err != nil { // a Downgrade replaces the node
		return err
	}
	defer c.unlockCalls()
	for try := range 5 {
		if a, holders, _ := c.sort(ctx, 0, nil, nil); a.State == driver.Unknown {
			return a.Err
		} else if len(holders) == 0 {
			return driver.ErrLost
		}
		if try > 0 { // the server that answers may lag behind
			if err := s.sync(ctx); err != nil {
				return refused("sync", s.root, err)
			}
		}
		if done, err := c.rename(ctx, owner); done || err != nil {
			return err
		}
	}
	return unavailable(errors.New("the lock's node changes all the time"))
}

// rename makes one attempt. done is false if the node has changed since it was read, or
// does not exist.
func (c *claim) rename(ctx context.Context, owner string) (done bool, err error) {
	s := c.s
	c.Lock()
	node, ops := c.nodes[len(c.nodes)-1], c.checks(nil)
	waited := c.waited
	c.Unlock()
	path := c.parent + "/" + node
	d, err := s.get(ctx, path)
	if err == nil {
		f := readData(d.data)
		switch {
		case f.marked:
			f.at = f.since(d.stat)
		case waited: // like the next renewal
			f.marked = true
		}
		f.owner = owner
		ops[len(ops)-1] = &zk.SetDataRequest{Path: path, Data: f.data(), Version: d.stat.Version}
		var failed int
		if _, _, failed, err = s.multi(ctx, ops); err == zk.ErrNoNode && failed >= 0 {
			node = base(pathOf(ops[failed]))
		}
	}
	switch {
	case err == zk.ErrBadVersion:
		return false, nil
	case err == zk.ErrNoNode:
		if c.lacks(node) {
			c.lose()
		}
		return false, nil
	case err != nil:
		return false, refused("write", path, err)
	}
	c.Lock()
	defer c.Unlock()
	c.owner, c.marked = owner, c.marked || waited
	return true, nil
}
