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

// A nodeWatch is the one watch of this process on a node, shared by all claims that
// wait for it: the client cannot drop a watch, so one that is abandoned would stay
// until the node changes.
type nodeWatch struct {
	ready chan struct{} // closed when err is set
	err   error         // zk.ErrNoNode, or why the node could not be watched
	holds bool          // the node's data said that its owner holds when the watch was set

	look  chan chan struct{} // see barrier
	fired chan struct{}      // closed when event is set
	event zk.Event
}

// watchNode returns the watch on a node, once it is known whether it exists.
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

// follow sets the watch and waits until it fires.
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
		if err := s.session.standing(c); err != nil {
			return nil, err
		}
		data, _, events, err := c.GetW(path)
		w.holds = err == nil && readData(data).marked
		return events, err
	})
	if w.err = err; err != nil {
		drop()
		if err == zk.ErrNoNode {
			s.sawPathGone(path)
		}
		close(w.ready)
		return
	}
	close(w.ready)
	for {
		select {
		case w.event = <-events:
			s.firedWatch(path, w, drop)
			return
		case asked := <-w.look:
			// The caller of barrier wants to know whether the event has come by now.
			select {
			case w.event = <-events:
				s.firedWatch(path, w, drop)
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

func (s *Store) firedWatch(path string, w *nodeWatch, drop func()) {
	drop()
	if w.event.Type == zk.EventNodeDeleted {
		s.sawPathGone(path)
	}
	close(w.fired)
}

// barrier returns when everything that the client was told before has been taken in,
// and reports whether the watch has fired.
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

// A crowd is the claims of this process that wait in one queue. It remembers which
// nodes before them have gone, so that no other claim asks for them again.
type crowd struct {
	waiters int
	gone    map[string]struct{}

	looking sync.Mutex          // one reads for all, and the others wait for that
	seen    map[string]struct{} // the queue, as it was at at
	at      time.Time
}

// manyWaiters is the number of waiters from which the queue is read once for all of
// them, and not two nodes for each.
const manyWaiters = 16

// A tail is the last of this process's claims in a queue.
type tail struct {
	*claim
	born int64  // the czxid of the parent
	seq  int32  // the last number of its nodes
	lock string // the first of them
}

// last notes that the claim's nodes are new, below a parent whose czxid is born. It
// returns the tail of this process that is right before the claim, if there is one.
// Every node that is made takes a number, so no other contender is between two claims
// whose numbers follow each other, unless the parent was deleted and made again
// meanwhile, and its numbers started again.
func (c *claim) last(born int64) (before tail) {
	if born == 0 || c.weight != driver.Whole {
		return before
	}
	first, ok1 := parse(c.nodes[0])
	second, ok2 := parse(c.nodes[1])
	if !ok1 || !ok2 || first.seq < 0 || second.seq != first.seq+1 {
		return before
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.tails[c.parent]
	if was.born > born || was.born == born && was.seq > second.seq {
		return before // the answers came out of order
	}
	s.tails[c.parent] = tail{c, born, second.seq, c.nodes[0]}
	if was.claim != nil && was.claim != c && was.born == born && was.seq+1 == first.seq {
		return was
	}
	return before
}

// precedes is the verdict on an exclusive claim right behind the tail. ok is false if
// the queue has to be read: the tail's claim may have other nodes now, behind those of
// later contenders.
func (t tail) precedes() (v verdict, ok bool) {
	c := t.claim
	if c == nil {
		return v, false
	}
	c.Lock()
	defer c.Unlock()
	if c.weight != driver.Whole || c.reader != "" || len(c.nodes) != 2 || c.nodes[0] != t.lock || c.state == gone {
		return v, false
	}
	return verdict{gone: c.nodes[:1:1], frank: true, partial: c.state != held}, true
}

func (s *Store) joinCrowd(parent string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[parent]
	if l == nil {
		l = &crowd{gone: map[string]struct{}{}}
		s.lines[parent] = l
	}
	l.waiters++
}

func (s *Store) leaveCrowd(parent string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[parent]; l.waiters > 1 {
		l.waiters--
	} else {
		delete(s.lines, parent)
	}
}

// crowded reports whether claims of this process wait in the queue.
func (s *Store) crowded(parent string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines[parent] != nil
}

func (s *Store) sawGone(parent string, names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[parent]; l != nil {
		if len(l.gone) > 100_000 {
			clear(l.gone) // it only saves requests
		}
		for _, n := range names {
			l.gone[n] = struct{}{}
		}
	}
}

// sawAgain is told of nodes that were listed: a server that was set back may have nodes
// again that had gone.
func (s *Store) sawAgain(parent string, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range names {
		delete(s.lines[parent].gone, n)
	}
}

func (s *Store) sawPathGone(path string) {
	i := len(path) - 1
	for path[i] != '/' {
		i--
	}
	s.sawGone(path[:i], path[i+1:])
}

// left returns the nodes that are not known to have gone.
func (s *Store) left(parent string, nodes []string) (left []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[parent]
	for _, n := range nodes {
		if _, gone := l.gone[n]; !gone {
			left = append(left, n)
		}
	}
	return left
}

// parked is what a waiter waits for.
type parked struct {
	own    *nodeWatch
	others []*nodeWatch
	link   *link
}

// settled reports that nothing has happened that the waiter has to act on.
func (p *parked) settled(ctx context.Context, s *Store) bool {
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

// A waiter leads one claim from its position to the lock.
type waiter struct {
	*claim
	ctx  context.Context
	own  *nodeWatch
	line verdict // of the last listing
	link *link   // when the listing and the watches were made
}

// wait starts the waiter of a claim whose position is v.
func (c *claim) wait(l *link, own *nodeWatch, v verdict) (driver.Grant, error) {
	c.Lock()
	if c.state == gone {
		c.Unlock()
		return driver.Grant{}, c.late()
	}
	ctx, cancel := context.WithCancel(c.s.life)
	c.state = waiting
	c.stop = cancel
	c.lastLocked(c.s.waiterTTL)
	c.Unlock()
	c.s.joinCrowd(c.parent)
	w := &waiter{claim: c, ctx: ctx, own: own, line: v, link: l}
	go func() {
		defer c.s.leaveCrowd(c.parent)
		w.run()
	}()
	return c.place(), nil
}

// How long a waiter trusts its watches before it looks again by itself: longer and
// longer, while it finds nothing new.
const (
	firstPoll = 2 * time.Second
	lastPoll  = 15 * time.Second
)

func (w *waiter) run() {
	s := w.s
	poll, stale := firstPoll, false
	var told *nodeWatch // the watch whose data last made the waiter read the queue
	for w.ctx.Err() == nil {
		l := s.session.link()
		if l.id != w.session {
			w.lose()
			return
		}
		if !l.up {
			w.rest(nil, l, 0)
			continue
		}
		if stale || l != w.link || w.own == nil || w.own.hasFired() {
			anew := l != w.link || w.line.gone != nil && len(s.left(w.parent, w.line.gone)) == 0
			if !w.look(l) {
				w.rest(nil, l, retryAfter)
				continue
			}
			if stale = false; anew {
				s.sawAgain(w.parent, w.line.gone)
			}
		}
		switch {
		case w.line.missing:
			w.lose()
			return
		case w.line.granted:
			w.granted()
			return
		}
		watch := w.line.any
		if w.line.gone != nil {
			left := s.left(w.parent, w.line.gone)
			switch {
			case len(left) == 0 && w.line.partial:
				stale = true
				continue
			case len(left) == 0 && w.capacity == driver.Whole:
				if w.own.barrier(w.ctx) {
					continue // the loss of its own node was told before the others'
				}
				w.granted()
				return
			case len(left) == 0, 1 < len(left) && len(left) < len(w.line.gone):
				// Permits are counted when all other contenders have gone. And if some
				// have gone, one listing replaces a request for each of the others.
				stale = true
				continue
			}
			watch = left[:1]
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
			stale = w.line.gone == nil // otherwise left knows now that it has gone
		case err != nil:
			w.rest(nil, l, retryAfter)
		case w.line.next && others[0].holds && others[0] != told:
			told, stale = others[0], true // the node changed before the watch was set
		case w.rest(others, l, poll):
			stale, poll = !w.stands(watch), min(2*poll, lastPoll)
		case w.line.gone == nil:
			stale = true
		case w.line.frank && watch[0] == w.line.gone[0] && others[0].hasFired() && others[0].event.Type == zk.EventNodeDataChanged:
			// Only that node changes when its owner releases the lock; a reader's node
			// changes when it is renewed, too.
			w.line.partial = false
			s.sawGone(w.parent, w.line.gone...)
		}
	}
}

// retryAfter is the pause after a request that got no answer.
const retryAfter = 50 * time.Millisecond

// stands reports whether the waiter has certainly missed nothing. A waiter for one node
// asks for that node and its own; in a crowd each waiter would do so, so that they
// share one listing. A waiter for permits has to read the queue.
func (w *waiter) stands(watch []string) bool {
	if w.line.gone == nil {
		return false
	}
	s, names := w.s, [...]string{w.nodes[0], watch[0]}
	s.mu.Lock()
	l := s.lines[w.parent]
	crowded := l.waiters >= manyWaiters
	s.mu.Unlock()
	if crowded {
		seen := l.lately(w)
		_, mine := seen[names[0]]
		_, others := seen[names[1]]
		return mine && others
	}
	for _, name := range names {
		if _, err := s.exists(w.ctx, w.parent+"/"+name); err != nil {
			return false
		}
	}
	return true
}

// lately returns the queue as it was read lately, after w joined it: no waiter looks
// sooner than firstPoll after that.
func (l *crowd) lately(w *waiter) map[string]struct{} {
	l.looking.Lock()
	defer l.looking.Unlock()
	if now := time.Now(); l.seen == nil || now.Sub(l.at) > firstPoll/2 {
		children, _, err := w.s.children(w.ctx, w.parent)
		if err != nil {
			return nil
		}
		l.seen, l.at = make(map[string]struct{}, len(children)), now
		for _, name := range children {
			l.seen[name] = struct{}{}
		}
	}
	return l.seen
}

// look reads the queue, and makes sure that the claim's own node is watched.
func (w *waiter) look(l *link) bool {
	s := w.s
	var wg sync.WaitGroup
	own, ownErr := w.own, error(nil)
	if own == nil || own.hasFired() || l != w.link {
		wg.Go(func() { own, ownErr = s.watchNode(w.ctx, w.parent+"/"+w.nodes[0]) })
	}
	all, _, err := s.line(w.ctx, w.parent)
	wg.Wait()
	switch {
	case err == zk.ErrNoNode || ownErr == zk.ErrNoNode:
		w.line = verdict{missing: true}
		return true
	case err != nil || ownErr != nil:
		return false
	}
	w.line = judge(all, w.guid)
	w.own, w.link = own, l
	return true
}

// rest waits until one of the watches fires, the connection changes, or d has passed
// (zero: no limit), and reports whether d has passed. Without others the waiter is not
// parked: it could not say that it has missed nothing.
func (w *waiter) rest(others []*nodeWatch, l *link, d time.Duration) (timeout bool) {
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
			w.turnedLocked(&parked{own: w.own, others: others, link: l})
		}
		w.Unlock()
		defer func() {
			w.Lock()
			w.park = nil
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

// granted makes the claim a holder, for as long as a grant lasts that the caller has
// not yet heard of.
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
	g := driver.Grant{Token: w.token, Ticket: w.token, TTL: min(d, s.session.sure(w.session))}
	permits := w.capacity < driver.Whole
	w.Unlock()
	if g.TTL < d/2 {
		s.tell(w.name, driver.Hint{}) // nothing was committed for long: the renewal will be
	} else {
		s.tell(w.name, driver.Hint{Granted: true, Grant: g})
	}
	if permits {
		// The next waiter learns from it that it is at the head.
		w.mark(s.life)
	}
}
