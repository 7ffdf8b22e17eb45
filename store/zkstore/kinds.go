package zkstore

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

var _ driver.Renamer = (*Store)(nil)

// Rename implements driver.Renamer, by a read and a transaction. It writes the node that
// Inspect reads, and never the first of an exclusive claim: a change of that one says
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
	if err := c.take(ctx); err != nil { // a Downgrade replaces the node
		return err
	}
	defer c.give()
	for try := range 5 {
		if a, holders, _ := c.sort(ctx, 0, nil, nil); a.State == driver.Unknown {
			return a.Err
		} else if len(holders) == 0 {
			return driver.ErrLost
		}
		if try > 0 { // the server that answers may be behind
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
// is not there.
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
		case waited: // as the next renewal would write
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
