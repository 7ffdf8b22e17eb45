package zkstore

import (
	"context"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/internal/bootclock"
)

// A leftover is the possible remains of an ended claim: nodes that keep every later
// contender waiting for as long as the session lives. It ends by events that only
// ZooKeeper has: a late answer to the client, or the end of the session. So it is no
// sqlstore.Abandoned.
type leftover struct {
	parent  string
	guid    string
	nodes   []string // nil: they must be searched for
	session int64
	pending <-chan struct{} // closed when a request that may still make nodes is over
	since   time.Time
	done    chan struct{} // closed when all nodes are gone
}

// removeLeftover deletes the nodes, in the background, for as long as it takes.
func (s *Store) removeLeftover(g *leftover) <-chan struct{} {
	g.since = bootclock.Now()
	s.mu.Lock()
	s.leftovers[g] = struct{}{}
	s.mu.Unlock()
	go func() {
		for pause := 20 * time.Millisecond; !s.tryLeftover(g); pause = min(2*pause, time.Second) {
			t := time.NewTimer(pause)
			select {
			case <-s.session.link().next:
			case <-t.C:
			case <-s.life.Done():
				t.Stop()
				return
			}
			t.Stop()
		}
		close(g.done)
		s.mu.Lock()
		delete(s.leftovers, g)
		last := s.closed.Load() && s.idleLocked()
		s.mu.Unlock()
		if last {
			s.finish()
		}
	}()
	return g.done
}

// tryLeftover tries once, and reports whether all nodes are gone.
func (s *Store) tryLeftover(g *leftover) bool {
	if g.pending != nil {
		// The client may still send it, even in the next session.
		select {
		case <-g.pending:
		case <-s.life.Done():
			return true
		}
	}
	ctx, cancel := context.WithTimeout(s.life, 5*time.Second)
	defer cancel()
	l := s.session.link()
	if !l.up {
		// The session may outlive any time without an answer: its time does not pass
		// while there is no leader. It certainly ends only after a new connection.
		return s.closed.Load() && bootclock.Now().Sub(g.since) > 2*l.timeout
	}
	nodes := g.nodes
	if nodes == nil {
		var err error
		if nodes, err = s.search(ctx, g.parent, g.guid); err != nil {
			return false
		}
	} else if g.session != l.id {
		return true // the server has deleted them with their session
	}
	_, err := s.remove(ctx, g.parent, nodes)
	return err == nil
}

// search finds the nodes of a request without an answer.
func (s *Store) search(ctx context.Context, parent, guid string) (nodes []string, err error) {
	// This server may not yet have the latest state of the last one.
	if err := s.sync(ctx); err != nil {
		return nil, err
	}
	children, _, err := s.children(ctx, parent)
	if err != nil && err != zk.ErrNoNode {
		return nil, err
	}
	return ownNodes(children, guid), nil
}

// ownNodes returns the nodes of one request in order.
func ownNodes(children []string, guid string) (nodes []string) {
	for _, name := range children {
		if !strings.HasPrefix(name, guid) {
			continue
		}
		if nodes = append(nodes, name); strings.Contains(name, markLock) {
			nodes[0], nodes[len(nodes)-1] = nodes[len(nodes)-1], nodes[0]
		}
	}
	return nodes
}

// guidOf returns the part of a node's name that identifies its claim. ok is false for a
// node of another store.
func (s *Store) guidOf(node string) (guid string, ok bool) {
	if n := len(s.guidPrefix) + 16; len(node) > n && strings.HasPrefix(node, s.guidPrefix) {
		return node[:n], true
	}
	return "", false
}

// remove deletes nodes, in one request if all exist, and returns how many there were.
func (s *Store) remove(ctx context.Context, parent string, nodes []string) (deleted int, err error) {
	return s.removeAfter(ctx, parent, nodes)
}

// removeAfter is remove after other operations of the same transaction.
func (s *Store) removeAfter(ctx context.Context, parent string, nodes []string, ops ...any) (deleted int, err error) {
	if len(nodes) > 1 {
		for _, n := range nodes {
			ops = append(ops, &zk.DeleteRequest{Path: parent + "/" + n, Version: -1})
		}
		_, _, _, err := s.join(ctx, &item{parent: parent, ops: ops})
		if err == nil {
			return len(nodes), nil
		}
		if err != zk.ErrNoNode {
			return 0, err
		}
	}
	for _, n := range nodes {
		_, _, err := send(ctx, s, true, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(parent+"/"+n, -1) })
		switch err {
		case nil:
			deleted++
		case zk.ErrNoNode:
		default:
			return deleted, err
		}
	}
	return deleted, nil
}

// outage is the shortest time without any server when servers are restored: all of them
// must start. A broken connection is replaced in less.
const outage = time.Second

// removeLeftovers deletes the nodes of this process without a claim, below the parents
// that it has used, one after the other: other processes may do the same. It returns
// false if it lost the connection before its end.
func (s *Store) removeLeftovers(l *link) (done bool) {
	ctx, cancel := context.WithCancel(s.life)
	defer cancel()
	go func() {
		select {
		case <-l.next:
			cancel()
		case <-ctx.Done():
		}
	}()
	for err := s.sync(ctx); err != nil && !answer(err); err = s.sync(ctx) {
		if !pauseRetry(ctx) {
			return false
		}
	}
	type found struct{ parent, node string }
	byGUID := map[string][]found{}
	for _, parent := range s.parents.all() {
		names, _, err := s.children(ctx, parent)
		for err != nil && !answer(err) {
			if !pauseRetry(ctx) {
				return false
			}
			names, _, err = s.children(ctx, parent)
		}
		for _, n := range names { // none if it may not be read
			if guid, ok := s.guidOf(n); ok {
				byGUID[guid] = append(byGUID[guid], found{parent, n})
			}
		}
	}
	// The search did not find later nodes. Claims that have ended since then have deleted
	// their nodes, or will.
	s.mu.Lock()
	var claims []*claim
	for _, c := range s.claims {
		claims = append(claims, c)
	}
	for g := range s.leftovers {
		delete(byGUID, g.guid)
	}
	s.mu.Unlock()
	for _, c := range claims {
		c.Lock()
		delete(byGUID, c.guid)
		c.Unlock()
	}
	for guid, nodes := range byGUID {
		g := &leftover{parent: nodes[0].parent, guid: guid, session: l.id, done: make(chan struct{})}
		for _, n := range nodes {
			g.nodes = append(g.nodes, n.node)
		}
		s.removeLeftover(g)
	}
	return true
}

// pauseRetry waits before a request without an answer is repeated.
func pauseRetry(ctx context.Context) bool {
	t := time.NewTimer(retryAfter)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
