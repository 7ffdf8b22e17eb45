package zkstore

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
)

// Watch implements driver.Watcher.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	n := name{c.Key, c.ID}
	h := &hint{wake}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hints[n] = append(s.hints[n], h)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := s.hints[n][:0:0]
		for _, other := range s.hints[n] {
			if other != h {
				left = append(left, other)
			}
		}
		if s.hints[n] = left; len(left) == 0 {
			delete(s.hints, n)
		}
	}
}

type hint struct{ wake func(driver.Hint) }

// tell wakes the watches of the claim.
func (s *Store) tell(n name, h driver.Hint) {
	s.mu.Lock()
	watching := s.hints[n]
	s.mu.Unlock()
	for _, w := range watching {
		w.wake(h)
	}
}

// A nodeWatch is the one watch of this process on a node, shared by all claims that wait
// for it: the client cannot drop a watch, so an abandoned one would stay until the node
// changes.
type nodeWatch struct {
	ready chan struct{} // closed when err is set
	err   error         // zk.ErrNoNode, or why the node could not be watched
	holds bool          // the node was marked as held when the watch was set

	look  chan chan struct{} // see barrier
	fired chan struct{}      // closed when event is set
	event zk.Event
}

// watchNode returns the watch on a node, once it is known whether the node exists.
func (s *Store) watchNode(ctx context.Context, path string) (*nodeWatch, error) {
	s.mu.Lock()
	w := s.nodes[path]
	if w == nil {
		w = &nodeWatch{ready: make(chan struct{}), look: make(chan chan struct{}), fired: make(chan struct{})}
		s.nodes[path] = w
		go s.follow(path, w)
	}
	s.mu.Unlock()
	select {
	case <-w.ready:
		return w, w.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *Store) follow(path string, w *nodeWatch) {
	drop := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.nodes[path] == w {
			delete(s.nodes, path)
		}
	}
	// Many claims share the watch, so no caller's context ends it.
	events, _, err := send(s.life, s, false, func(c *zk.Conn) (<-chan zk.Event, error) {
		if err := s.session.watchAlways(c); err != nil {
			return nil, err
		}
		data, _, events, err := c.GetW(path)
		w.holds = err == nil && readData(data).marked
		return events, err
	})
	if w.err = err; err != nil {
		drop()
		close(w.ready)
		return
	}
	close(w.ready)
	for {
		select {
		case w.event = <-events:
			drop()
			close(w.fired)
			return
		case asked := <-w.look:
			// The caller of barrier asks whether the event has come.
			select {
			case w.event = <-events:
				drop()
				close(w.fired)
				close(asked)
				return
			default:
			}
			close(asked)
		case <-s.life.Done():
			drop()
			return
		}
	}
}

// barrier returns when all earlier events of the client are processed, and reports
// whether the watch has fired.
func (w *nodeWatch) barrier(ctx context.Context) bool {
	asked := make(chan struct{})
	select {
	case w.look <- asked:
		<-asked
	case <-w.fired:
	case <-ctx.Done():
	}
	return w.hasFired()
}

func (w *nodeWatch) hasFired() bool {
	select {
	case <-w.fired:
		return true
	default:
		return false
	}
}

// blocked is what a waiter waits for.
type blocked struct {
	own    *nodeWatch
	others []*nodeWatch
	link   *link
}

// upToDate reports that the waiter has no event to act on.
func (p *blocked) upToDate(ctx context.Context, s *Store) bool {
	if s.session.link() != p.link || p.own.barrier(ctx) {
		return false
	}
	for _, w := range p.others {
		if w.barrier(ctx) {
			return false
		}
	}
	return true
}

// A waiter waits for the lock on behalf of one claim.
type waiter struct {
	*claim
	ctx     context.Context
	own     *nodeWatch
	verdict verdict // of the last listing, without nodes deleted since
	link    *link   // when the listing and the watches were made
}

// wait starts the waiter of a claim with the verdict v.
func (c *claim) wait(l *link, own *nodeWatch, v verdict) (driver.Grant, error) {
	c.Lock()
	if c.state == gone {
		c.Unlock()
		return driver.Grant{}, c.endLate()
	}
	ctx, cancel := context.WithCancel(c.s.life)
	c.state = waiting
	c.stop = cancel
	c.endInLocked(c.s.waiterTTL)
	c.Unlock()
	w := &waiter{claim: c, ctx: ctx, own: own, verdict: v, link: l}
	go w.run()
	return c.waitingGrant(), nil
}

// How long a waiter relies on its watches before it looks again: longer each time without
// news.
const (
	firstPoll = 2 * time.Second
	lastPoll  = 15 * time.Second
)

func (w *waiter) run() {
	s := w.s
	poll, stale := firstPoll, false
	var lastToldBy *nodeWatch // the watch whose data last made the waiter read the queue
	for w.ctx.Err() == nil {
		l := s.session.link()
		if l.id != w.session {
			w.lose()
			return
		}
		if !l.up {
			w.waitEvent(nil, l, 0)
			continue
		}
		if stale || l != w.link || w.own == nil || w.own.hasFired() {
			if !w.readQueue(l) {
				w.waitEvent(nil, l, retryAfter)
				continue
			}
			stale = false
		}
		v := &w.verdict
		watch := v.any
		switch {
		case v.missing:
			w.lose()
			return
		case v.granted:
			w.granted()
			return
		case watch != nil:
		case len(v.gone) > 0:
			watch = v.gone[:1]
		case w.capacity < driver.Whole:
			stale = true // all others have gone: now its permits are counted
			continue
		case w.own.barrier(w.ctx):
			continue // the loss of its own node was reported before the others'
		default:
			w.granted()
			return
		}
		var others []*nodeWatch
		var err error
		for _, name := range watch {
			var n *nodeWatch
			if n, err = s.watchNode(w.ctx, w.parent+"/"+name); err != nil {
				break
			}
			others = append(others, n)
		}
		switch {
		case err == zk.ErrNoNode:
			stale = v.any != nil || v.nearestWent()
		case err != nil:
			w.waitEvent(nil, l, retryAfter)
		case v.next && others[0].holds && others[0] != lastToldBy:
			lastToldBy, stale = others[0], true // the node changed before the watch was set
		case w.waitEvent(others, l, poll):
			stale, poll = !w.unchanged(watch), min(2*poll, lastPoll)
		case v.any != nil:
			stale = true
		case !others[0].hasFired():
		case others[0].event.Type == zk.EventNodeDeleted:
			stale = v.nearestWent()
		case v.tellsRelease && others[0].event.Type == zk.EventNodeDataChanged:
			v.gone = nil // its owner had the lock, so all before it went earlier
		}
	}
}

// retryAfter is the pause after a request without an answer.
const retryAfter = 50 * time.Millisecond

// unchanged reports whether the waiter has certainly missed no event. A waiter for one
// node asks for that node and its own. A waiter for permits must read the queue.
func (w *waiter) unchanged(watch []string) bool {
	if w.verdict.any != nil {
		return false
	}
	for _, name := range []string{w.nodes[0], watch[0]} {
		if _, err := w.s.exists(w.ctx, w.parent+"/"+name); err != nil {
			return false
		}
	}
	return true
}

// readQueue reads the queue, and sets a watch on the claim's own node.
func (w *waiter) readQueue(l *link) bool {
	s := w.s
	var wg sync.WaitGroup
	own, ownErr := w.own, error(nil)
	if own == nil || own.hasFired() || l != w.link {
		wg.Go(func() { own, ownErr = s.watchNode(w.ctx, w.parent+"/"+w.nodes[0]) })
	}
	all, _, err := s.readQueue(w.ctx, w.parent)
	wg.Wait()
	switch {
	case err == zk.ErrNoNode || ownErr == zk.ErrNoNode:
		w.verdict = verdict{missing: true}
		return true
	case err != nil || ownErr != nil:
		return false
	}
	w.verdict = judge(all, w.guid)
	w.own, w.link = own, l
	return true
}

// waitEvent waits until one of the watches fires, the connection changes, or d has passed
// (zero: no limit), and reports whether d has passed. Without others the waiter is not
// blocked: it may have missed an event.
func (w *waiter) waitEvent(others []*nodeWatch, l *link, d time.Duration) (timeout bool) {
	var after <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	var ownFired, fired <-chan struct{}
	if others != nil {
		ownFired = w.own.fired
		w.Lock()
		if w.state == waiting {
			w.blockedLocked(&blocked{own: w.own, others: others, link: l})
		}
		w.Unlock()
		defer func() {
			w.Lock()
			w.blocked = nil
			w.Unlock()
		}()
		fired = others[0].fired
	}
	if len(others) > 1 {
		first := make(chan struct{}, len(others))
		done := make(chan struct{})
		defer close(done)
		for _, o := range others {
			go func() {
				select {
				case <-o.fired:
					first <- struct{}{}
				case <-done:
				}
			}()
		}
		fired = first
	}
	select {
	case <-fired:
	case <-ownFired:
	case <-l.next:
	case <-w.ctx.Done():
	case <-after:
		return true
	}
	return false
}

// granted makes the claim a holder, for the time of a grant that the caller does not know
// of yet.
func (w *waiter) granted() {
	s := w.s
	w.Lock()
	if w.state != waiting {
		w.Unlock()
		return
	}
	d := lasting(min(w.ttl, s.claimTTL))
	w.waited = true
	w.holdLocked(d)
	g := driver.Grant{Token: w.token, Ticket: w.token, TTL: min(d, s.session.provenLeft(w.session))}
	permits := w.capacity < driver.Whole
	w.Unlock()
	if g.TTL < d/2 {
		s.tell(w.name, driver.Hint{}) // no commit for long: the renewal will be one
	} else {
		s.tell(w.name, driver.Hint{Granted: true, Grant: g})
	}
	if permits {
		// The next waiter learns from it that it is at the head.
		w.mark(s.life)
	}
}
