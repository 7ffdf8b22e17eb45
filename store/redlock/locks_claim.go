package redlock

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// has is what a claim is known to have on one node.
type has uint8

const (
	nothing  has = iota
	maybe        // a request was not answered
	position     // in the queue
	lock
)

// part is the known state of a claim on one node. Only one request for it is under way at
// a time, so that requests stay in order: next waits.
type part struct {
	has      has
	excluded bool // a late release or shortening may take effect: no more requests
	votes    bool
	named    bool // it shows the owner of a Rename
	underWay bool
	next     *task
	ticket   int64
	token    int64
	sent     time.Time // of the last request that got the whole TTL; zero once less may be left
}

// claim is one claim on all nodes: what this process must know of it between calls. A
// claim that another process made is found by its ID.
type claim struct {
	key, id string

	mu       sync.Mutex
	parts    []part
	asked    driver.Claim // as in the last request, and as repair asks for it
	reads    bool         // it was downgraded, or is being downgraded
	owner    string       // of a Rename
	renamed  bool         // there was a Rename
	known    bool         // parts have all requests of this process
	repeated bool         // another process, or an earlier run, may have been granted it
	gone     bool         // to be forgotten: later grants are released
	held     bool         // by a majority
	token    int64        // of the grant
	seq      int          // the node with its position, or -1
	ticket   int64        // of the position there
	called   bool         // a hint says that the position was granted
	head     time.Time    // since when it is at the queue's head without a majority
	yield    time.Duration
	probed   time.Time // when to try next for a majority while it is queued
	hurry    int       // how often in a row the node wanted a request soon
	until    time.Time
	refs     int // calls that use it
	underWay int // parts
	wakes    []*wake
	stops    []func() // end the watches on the nodes
	watch    set

	renewal, next *renewal // the renewal under way, and the one after it
}

type wake struct{ f func(driver.Hint) }

type claimName struct{ key, id string }

type shard struct {
	mu      sync.Mutex
	claims  map[claimName]*claim
	sweepAt int
}

var shardSeed = maphash.MakeSeed()

func (s *Store) shard(id string) *shard {
	return &s.claims[maphash.String(shardSeed, id)%uint64(len(s.claims))]
}

// claim finds a claim, or makes one if create is set. The caller calls put at the end.
func (s *Store) claim(key, id string, create bool) *claim {
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	name := claimName{key, id}
	st := sh.claims[name]
	if st == nil {
		if !create {
			return nil
		}
		st = &claim{key: key, id: id, parts: make([]part, len(s.nodes)), seq: -1}
		if sh.claims == nil {
			sh.claims = map[claimName]*claim{}
		}
		if len(sh.claims) >= max(sh.sweepAt, 64) {
			sh.sweep()
		}
		sh.claims[name] = st
	}
	st.mu.Lock()
	st.refs++
	st.mu.Unlock()
	return st
}

// sweep forgets claims that expired without a release.
func (sh *shard) sweep() {
	now := bootclock.Now()
	for name, st := range sh.claims {
		st.mu.Lock()
		if st.refs == 0 && st.underWay == 0 && len(st.wakes) == 0 && now.After(st.until) {
			delete(sh.claims, name)
		}
		st.mu.Unlock()
	}
	sh.sweepAt = 2 * len(sh.claims)
}

// put ends a caller's use of a claim. It forgets a claim that is gone from all nodes.
func (s *Store) put(st *claim) {
	st.mu.Lock()
	st.refs--
	idle := st.idleLocked()
	st.mu.Unlock()
	if idle {
		s.forget(st)
	}
}

func (st *claim) idleLocked() bool {
	return st.refs == 0 && st.underWay == 0 && (st.gone || !st.known) && len(st.wakes) == 0
}

func (s *Store) forget(st *claim) {
	sh := s.shard(st.id)
	sh.mu.Lock()
	st.mu.Lock()
	idle := st.idleLocked()
	if name := (claimName{st.key, st.id}); idle && sh.claims[name] == st {
		delete(sh.claims, name)
	}
	stops := st.stops
	if idle {
		st.stops, st.watch = nil, 0
	}
	st.mu.Unlock()
	sh.mu.Unlock()
	if idle {
		for _, stop := range stops {
			stop()
		}
	}
}

// begin prepares a claim for an attempt. An ended claim cannot be made again under its
// ID: an unanswered release or other request may still release it on the nodes.
func (st *claim) begin(r driver.Request) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.gone {
		return driver.ErrLost
	}
	st.askLocked(r.Claim)
	if !st.known {
		st.known = true
		if r.Retry || r.Ticket != 0 { // another process, or an earlier run, may have asked
			st.repeated = r.Ticket >= 0
			for i := range st.parts {
				st.parts[i].has = maybe
			}
		}
		if r.Ticket < 0 {
			st.token = -r.Ticket
		}
	}
	st.until = bootclock.Now().Add(r.TTL + time.Minute)
	return nil
}

// askLocked notes the claim for later requests. A caller that does not know of a
// downgrade continues to ask as a writer; but no node may be asked for the write lock any
// more, because the others let readers in. Nor may one be asked under the owner from
// before a Rename.
func (st *claim) askLocked(c driver.Claim) {
	if st.reads {
		c.Weight = 1
	}
	if st.renamed {
		c.Owner = st.owner
	}
	st.asked = c
}

// onLocked is the claim for a node.
func (st *claim) onLocked(i int) driver.Claim {
	c := st.asked
	c.Key, c.ID, c.Ticket = st.key, st.id, st.parts[i].ticket
	return c
}

// holds is the set of nodes whose grants count and were requested at since or later.
func (st *claim) holds(since time.Time) set {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.holdsLocked(since)
}

func (st *claim) holdsLocked(since time.Time) (x set) {
	for i := range st.parts {
		if l := &st.parts[i]; l.has == lock && l.votes && !l.excluded && !l.sent.Before(since) {
			x |= 1 << i
		}
	}
	return x
}

// hopeless reports whether too few nodes are left to vote for the claim.
func (s *Store) hopeless(st *claim) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	left := 0
	for i := range st.parts {
		if !st.parts[i].excluded {
			left++
		}
	}
	return left < s.quorum
}

// shortenLocked prepares a part for a request that may shorten the claim's time on this
// node: from then on its lock counts for no majority. It returns false, and the request
// must not be sent, if a majority holds the lock.
func (st *claim) shortenLocked(i int) bool {
	if !st.held {
		st.parts[i].sent = time.Time{}
	}
	return !st.held
}

// end releases the claim on all nodes except keep, in the background.
func (s *Store) end(st *claim, keep set) {
	st.mu.Lock()
	if keep == 0 {
		st.gone, st.held, st.seq, st.head = true, false, -1, time.Time{}
	}
	var drop set
	for i := range st.parts {
		l := &st.parts[i]
		if !keep.has(i) && (l.has != nothing || l.underWay && keep != 0) {
			drop |= 1 << i // the result of another request under way is released at its answer
		}
	}
	st.mu.Unlock()
	for i := range s.nodes {
		if drop.has(i) {
			s.send(st, i, task{kind: release})
		}
	}
}
