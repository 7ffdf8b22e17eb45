package zkstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// Acquire implements driver.Locks. It takes one request if the queue is empty; otherwise
// a second one that reads the queue, and one that sets a watch.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, s.accepted()); err != nil {
		return driver.Grant{}, err
	}
	if s.closed.Load() {
		return driver.Grant{}, driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	for {
		c := s.claim(r)
		g, again, err := c.acquire(ctx, r)
		switch {
		case again:
		case err == nil && g.TTL <= 0:
			c.expire()
			return driver.Grant{}, unavailable(errSilent)
		default:
			return g, err
		}
	}
}

// acquire makes one attempt. again says that the claim was already gone.
func (c *claim) acquire(ctx context.Context, r driver.Request) (g driver.Grant, again bool, err error) {
	if err := c.lockCalls(ctx); err != nil {
		return g, false, err
	}
	defer c.unlockCalls()
	switch c.is() {
	case gone:
		return g, true, nil
	case waiting, held:
		a := c.s.renew(ctx, []*claim{c}, r.TTL)[0]
		switch a.State {
		case driver.Lost:
			return g, true, nil
		case driver.Unknown:
			return g, false, a.Err
		}
		return a.Grant, false, nil
	case unsure:
		g, found, err := c.adopt(ctx, r)
		if found || err != nil {
			return g, false, err
		}
	}
	g, err = c.create(ctx, r)
	if err != nil && c.is() == fresh {
		c.Lock()
		c.endLocked()
		c.Unlock()
		c.forget()
	}
	return g, false, err
}

// adopt searches for nodes of an earlier attempt, and makes them the claim's. found is
// false if there are none, so that the claim must be made again.
func (c *claim) adopt(ctx context.Context, r driver.Request) (g driver.Grant, found bool, err error) {
	s := c.s
	if c.pending != nil {
		select {
		case <-c.pending:
		case <-ctx.Done():
			return g, false, fmt.Errorf("zookeeper: %w: an earlier request has no answer yet: %w", driver.ErrUnknown, ctx.Err())
		}
	}
	l := s.session.link()
	nodes, err := s.search(ctx, c.parent, c.guid)
	if err != nil {
		return g, false, uncertain(err)
	}
	var stat *zk.Stat
	if nodes != nil {
		if stat, err = s.exists(ctx, c.parent+"/"+nodes[0]); err == zk.ErrNoNode {
			nodes, err = nil, nil
		} else if err != nil {
			return g, false, uncertain(err)
		}
	}
	if nodes != nil && stat.EphemeralOwner != l.id { // no session of this process keeps them alive
		if _, err := s.remove(ctx, c.parent, nodes); err != nil {
			return g, false, uncertain(err)
		}
		nodes = nil
	}
	c.Lock()
	c.pending = nil
	switch {
	case c.state == gone:
		c.Unlock()
		return g, false, unavailable(errLate)
	case nodes == nil:
		c.state, c.nodes = fresh, nil
		c.Unlock()
		return g, false, nil
	}
	c.nodes, c.token, c.session, c.ttl = nodes, stat.Czxid, l.id, r.TTL
	c.Unlock()
	s.parents.learn(c.parent, true)
	ops := c.checks(nil)
	_, t, _, err := s.multi(ctx, ops) // a commit must prove that they exist
	if err != nil {
		return g, false, uncertain(err)
	}
	r.MaxWaiting = 0 // it has its position
	g, err = c.queue(ctx, r, t, nil)
	return g, true, err
}

func (c *claim) create(ctx context.Context, r driver.Request) (driver.Grant, error) {
	var random [8]byte
	rand.Read(random[:]) // cannot fail
	c.Lock()
	c.guid = c.s.guidPrefix + hex.EncodeToString(random[:])
	c.ttl = r.TTL
	c.Unlock()

	m, err := c.createNodes(ctx, r)
	if err != nil {
		if errors.Is(err, driver.ErrUnknown) {
			c.unresolved(m.trip.done, r.TTL)
		}
		return driver.Grant{}, err
	}
	c.Lock()
	c.nodes, c.token, c.session = m.nodes, m.token, m.trip.link.id
	alive := !m.alone || c.holdLocked(lasting(r.TTL))
	c.Unlock()
	if !alive {
		return driver.Grant{}, c.endLate()
	}
	if m.alone {
		return c.grant(r.TTL, m.trip.proven), nil
	}
	return c.queue(ctx, r, m.trip, m.children)
}

type created struct {
	trip     request
	nodes    []string
	token    int64
	alone    bool     // the queue has no other contender
	children []string // the queue, if it was read
}

// ZooKeeper's flags.
const (
	sequential = zk.FlagEphemeralSequential
	container  = zk.FlagContainer
)

// createNodes sends the transaction that creates the nodes and touches the parent. The
// answer about the parent has the token, which is the number of that transaction, and the
// number of children.
//
// A claim with a bound joins only if no other one has touched the parent since it read
// the queue. So the bound holds for concurrent claims.
func (c *claim) createNodes(ctx context.Context, r driver.Request) (m created, err error) {
	s := c.s
	bounded, tries := r.Queue && r.MaxWaiting > 0, 5
	if bounded {
		tries = maxLooks
	}
	data := c.data(false)
	var create []any
	for _, mark := range c.marks() {
		create = append(create, &zk.CreateRequest{Path: c.parent + "/" + c.guid + mark, Data: data, Acl: s.acl, Flags: sequential})
	}
	existed, touch := s.parents.known(c.parent), true
	if !existed && s.parents.guess() {
		if existed, err = c.checkParent(ctx); err != nil {
			return m, err
		}
	}
	for range tries {
		version := int32(-1) // any
		if bounded && existed {
			if version, err = c.checkRoom(ctx, r.MaxWaiting); err == zk.ErrNoNode {
				s.parents.forget(c.parent)
				existed = false
			} else if err != nil {
				return m, err
			}
		}
		ops := create
		switch {
		case !existed:
			ops = append([]any{&zk.CreateRequest{Path: c.parent, Acl: s.acl, Flags: s.parentFlags()}}, create...)
		case touch:
			ops = append(create[:len(create):len(create)], &zk.SetDataRequest{Path: c.parent, Version: version})
		}
		var results []zk.MultiResponse
		var failed int
		if existed && touch && !bounded {
			results, m.trip, failed, err = s.join(ctx, &item{parent: c.parent, creates: true, ops: ops})
		} else {
			results, m.trip, failed, err = s.multi(ctx, ops)
		}
		switch {
		case err == nil && existed && touch:
			s.parents.learn(c.parent, true)
			for _, one := range results[:len(create)] {
				m.nodes = append(m.nodes, base(one.String))
			}
			stat := results[len(create)].Stat
			s.clock.set(stat.Mtime)
			m.token, m.alone = stat.Mzxid, int(stat.NumChildren) == len(create)
			return m, nil
		case err == nil, err == zk.ErrAPIError && !existed:
			// The client cannot parse the answer about a container node, but the
			// transaction was committed.
			s.parents.learn(c.parent, existed)
			return m, c.readBack(ctx, &m, !existed)
		case err == zk.ErrNoNode && existed:
			s.parents.forget(c.parent)
			existed = false
		case err == zk.ErrNoNode:
			if err := s.makeRoot(ctx); err != nil {
				return m, err
			}
		case err == zk.ErrNodeExists && !existed:
			if existed, err = c.checkParent(ctx); err != nil {
				return m, err
			}
		case err == zk.ErrNoChildrenForEphemerals:
			return m, &driver.NotLockError{Key: c.name.key, Store: "zookeeper", Found: "an ephemeral node"}
		case err == zk.ErrBadVersion && bounded && existed:
			// Another claim has joined: look again.
		case err == zk.ErrNoAuth && existed && touch && failed == len(create):
			touch = false // the user may create children, but not write
		case err == zk.ErrBadArguments && !existed && !s.withoutContainers.Load():
			s.withoutContainers.Store(true) // a server without container nodes
		default:
			return m, refused("create nodes below", c.parent, err)
		}
	}
	if bounded {
		return m, unavailable(fmt.Errorf("the queue below %s changed each time that it was about to be joined", c.parent))
	}
	return m, unavailable(fmt.Errorf("the node %s is made and deleted all the time", c.parent))
}

// marks are the ends of the nodes' names, before the number. The first node exists as
// long as the claim does.
func (c *claim) marks() []string {
	switch {
	case c.weight == driver.Whole:
		return []string{"-" + markLock, "-" + markWrite}
	case c.capacity == driver.Whole:
		return []string{"-" + markRead}
	}
	return []string{fmt.Sprintf("-%s%d.%d-", markPerm, c.weight, c.capacity)}
}

func (s *Store) parentFlags() int32 {
	if s.withoutContainers.Load() {
		return zk.FlagPersistent
	}
	return container
}

// readBack finds out what a transaction made, if its answer did not tell.
func (c *claim) readBack(ctx context.Context, m *created, parentToo bool) error {
	children, stat, err := c.s.children(ctx, c.parent)
	if err != nil {
		return uncertain(err)
	}
	if m.nodes = ownNodes(children, c.guid); m.nodes == nil {
		return uncertain(errVanished)
	}
	m.children, m.token = children, stat.Czxid
	m.alone = parentToo && len(children) == len(m.nodes)
	if !parentToo {
		own, err := c.s.exists(ctx, c.parent+"/"+m.nodes[0])
		if err != nil {
			return uncertain(err)
		}
		m.token = own.Czxid
	}
	return nil
}

// checkParent reads an unknown parent before its data are emptied: they may be another
// program's.
func (c *claim) checkParent(ctx context.Context) (existed bool, err error) {
	stat, err := c.s.exists(ctx, c.parent)
	switch {
	case err == zk.ErrNoNode:
		return false, nil
	case err != nil:
		return false, refused("read", c.parent, err)
	case stat.DataLength > 0:
		return false, &driver.NotLockError{Key: c.name.key, Store: "zookeeper", Found: fmt.Sprintf("a node with %d bytes of data", stat.DataLength)}
	case stat.EphemeralOwner != 0:
		return false, &driver.NotLockError{Key: c.name.key, Store: "zookeeper", Found: "an ephemeral node"}
	}
	return true, nil
}

// makeRoot makes the nodes on the path of the root.
func (s *Store) makeRoot(ctx context.Context) error {
	for i := 1; i <= len(s.root); i++ {
		if i < len(s.root) && s.root[i] != '/' || i == 1 && s.root == "/" {
			continue
		}
		path := s.root[:i]
		_, _, err := send(ctx, s, true, func(c *zk.Conn) (string, error) { return c.Create(path, nil, zk.FlagPersistent, s.acl) })
		if err != nil && err != zk.ErrNodeExists {
			return refused("create", path, err)
		}
	}
	return nil
}

// queue finds the position of a claim whose queue has other contenders: it is granted,
// waits, or is refused. Its nodes exist; queue deletes them after a refusal.
func (c *claim) queue(ctx context.Context, r driver.Request, t request, children []string) (driver.Grant, error) {
	s := c.s
	var own *nodeWatch
	var watching sync.WaitGroup
	if r.Queue {
		watching.Go(func() {
			w, err := s.watchNode(ctx, c.parent+"/"+c.nodes[0])
			if err == nil || err == zk.ErrNoNode {
				own = w
			}
		})
	}
	var all []*contender
	var err error
	if children != nil {
		all, err = s.ordered(ctx, c.parent, children)
	} else {
		all, _, err = s.readQueue(ctx, c.parent)
	}
	watching.Wait()
	if err != nil && err != zk.ErrNoNode {
		c.unresolved(nil, r.TTL)
		return driver.Grant{}, uncertain(err)
	}
	v := judge(all, c.guid)
	switch {
	case v.missing || own != nil && own.err == zk.ErrNoNode:
		c.lose()
		return driver.Grant{}, unavailable(errVanished)
	case v.granted:
		c.Lock()
		alive := c.holdLocked(lasting(r.TTL))
		// Later contenders may have seen others before it, and wait until it holds.
		tells := alive && c.capacity < driver.Whole && v.at+1 < len(all)
		c.waited = c.waited || tells
		c.Unlock()
		if !alive {
			return driver.Grant{}, c.endLate()
		}
		if tells {
			go c.mark(s.life)
		}
		return c.grant(r.TTL, t.proven), nil
	}
	var no error
	if h := all[0]; !h.exclusive() && c.weight != driver.Whole && h.capacity != c.capacity {
		no = &driver.CapacityError{Key: c.name.key, InUse: h.capacity, Asked: c.capacity}
	} else if !r.Queue {
		no = s.heldError(ctx, c.name.key, c.parent, all, v.at)
	} else if n := v.at - holders(all); r.MaxWaiting > 0 && n >= r.MaxWaiting {
		// It could not keep out contenders that do not touch the parent, such as
		// Curator's, or may not.
		no = &driver.QueueFullError{Key: c.name.key, Waiting: n}
	}
	if no == nil {
		return c.wait(t.link, own, v)
	}
	c.Lock()
	c.state = held // any state but unsure: the nodes are known
	g := c.endLocked()
	c.Unlock()
	c.forget()
	if _, err := s.remove(ctx, c.parent, g.nodes); err != nil {
		s.removeLeftover(g)
	}
	return driver.Grant{}, no
}

// heldError describes the holder, as far as the nodes tell. all is the queue; its first
// before contenders are before the caller.
func (s *Store) heldError(ctx context.Context, key, parent string, all []*contender, before int) error {
	n := holders(all)
	e := &driver.HeldError{Key: key, Waiting: max(0, min(before, len(all))-n)}
	d, err := s.readFacts(ctx, parent, all[0])
	if err != nil {
		return e // the holder may be gone: no error
	}
	e.Owner, e.Foreign, e.Remaining = d.owner, d.foreign, d.ttl
	if age, ok := s.clock.since(d.since(d.stat)); ok {
		e.Age = age
	}
	return e
}

func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// checks appends operations that fail unless the claim's nodes exist.
func (c *claim) checks(ops []any) []any {
	for _, n := range c.nodes {
		ops = append(ops, &zk.CheckVersionRequest{Path: c.parent + "/" + n, Version: -1})
	}
	return ops
}

// maxLooks bounds how often a request with Request.MaxWaiting reads the queue again,
// because other contenders have joined.
const maxLooks = 20

// checkRoom reads the queue before the claim joins it, and refuses if the claim would
// have to wait while most wait already. It returns the version of the parent's data,
// which every joining claim of Baton's changes.
func (c *claim) checkRoom(ctx context.Context, most int) (version int32, err error) {
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
		if err := s.sync(ctx); err != nil { // a server that lags behind must not cause a refusal
			return 0, err
		}
	}
}
