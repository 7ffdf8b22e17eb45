package zkstore

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
)

// maxLooks bounds how often a request with Request.MaxWaiting looks at a queue that
// others have joined since it looked before.
const maxLooks = 20

// room reads the queue that the claim is about to join, and refuses if the claim would
// have to wait while most wait already. It returns the version of the parent's data,
// which every claim of Baton's that joins the queue changes.
func (c *claim) room(ctx context.Context, most int) (version int32, err error) {
	s := c.s
	for synced := false; ; synced = true {
		children, stat, err := s.children(ctx, c.parent)
		if err == zk.ErrNoNode {
			return 0, err
		} else if err != nil {
			return 0, refused("read", c.parent, err)
		}
		all, err := s.ordered(ctx, c.parent, children)
		if err != nil {
			return 0, refused("read", c.parent, err)
		}
		waiting := len(all) - holders(all)
		if waiting < most || fits(all, &contender{weight: c.weight, capacity: c.capacity}) {
			return stat.Version, nil
		}
		if h := all[0]; !h.exclusive() && c.weight != driver.Whole && h.capacity != c.capacity {
			return 0, &driver.CapacityError{Key: c.name.key, InUse: h.capacity, Asked: c.capacity}
		}
		if synced {
			return 0, &driver.QueueFullError{Key: c.name.key, Waiting: waiting}
		}
		if err := s.sync(ctx); err != nil { // the server may be behind, and no refusal is to be a stale one
			return 0, err
		}
	}
}
