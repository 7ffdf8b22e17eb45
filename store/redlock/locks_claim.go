package redlock

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// has is what a claim has on one node, as far as we know.
type has uint8

const (
	nothing  has = iota
	maybe        // a request was not answered
	position     // in the queue
	lock
)

// part is what we know of a claim on one node. Only one request at a time is under way
// for it, so that none overtakes the one before: next waits.
type part struct {
	has      has
	excluded bool // a release or a shortening may still take effect: ask no more
	votes    bool
	named    bool // it shows the owner that a Rename has given
	underWay bool
	next     *task
	ticket   int64
	token    int64
	sent     time.Time // of the last request that got the whole TTL; zero once less may be left
}

// claim is one claim on all nodes: what this process needs to know of it
// between two calls. A claim that another process made is found by its ID.
type claim struct {
	key, id string

	mu       sync.Mutex
	parts    []part
	asked    driver.Claim // as it was last asked for, and as repair asks for it
	reads    bool         // it was downgraded, or is being
	owner    string       // given by a Rename
	renamed  bool         // there was one
	known    bool         // parts tell all that this process did with it
	repeated bool         // another process, or an earlier run, may have been granted it
	gone     bool         // it is to be forgotten: what is answered now is released
	held     bool         // by a majority
	token    int64        // of the grant
	seq      int          // the node that has its position, or -1
	ticket   int64        // of the position there
	called   bool         // a hint says that the position was granted
	head     time.Time    // since when it is the head of the queue without a majority
	yield    time.Duration
	probed   time.Time // when to try next for a majority while it is queued
	hurry    int       // how often in a row the node wanted to be asked soon
	until    time.Time
	refs     int // calls that work with it
	underWay int // parts
	wakes    []*wake
	stops    []func() // they end the watches on the nodes
	watch    set

	renewal, next *renewal // the renewal that is under way, and what comes after it
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

// claim finds a claim, or begins one if create is set. The caller calls put when it is
// done with it.
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

// sweep forgets claims that were never released and have expired since.
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

// put ends a caller's use of a claim. It forgets one that is gone from all nodes.
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

// begin prepares a claim for an attempt. A claim that was ended cannot be made again
// under its ID: a release or another request that was not answered may still take
// effect, and release it on the nodes once more.
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

// askLocked notes how the claim is asked for. A caller that has not heard of a
// downgrade yet goes on asking as the writer that it was. No node must be asked for the
// write lock any more, as the others let readers in. Nor is one asked under the owner
// from before a Rename.
func (st *claim) askLocked(c driver.Claim) {
	if st.reads {
		c.Weight = 1
	}
	if st.renamed {
		c.Owner = st.owner
	}
	st.asked = c
}

// onLocked is the claim as a node knows it.
func (st *claim) onLocked(i int) driver.Claim {
	c := st.asked
	c.Key, c.ID, c.Ticket = st.key, st.id, st.parts[i].ticket
	return c
}

// holds is the nodes whose grants count and were asked for at since or later.
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

// hopeless reports whether too few nodes are left that could vote for the claim.
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
// node: from then on its lock counts for no majority. It reports whether the request may
// be sent: not if a majority holds the lock.
func (st *claim) shortenLocked(i int) bool {
	if !st.held {
		st.parts[i].sent = time.Time{}
	}
	return !st.held
}

// end releases the claim on all nodes but those of keep, in the background.
func (s *Store) end(st *claim, keep set) {
	st.mu.Lock()
	if keep == 0 {
		st.gone, st.held, st.seq, st.head = true, false, -1, time.Time{}
	}
	var drop set
	for i := range st.parts {
		l := &st.parts[i]
		if !keep.has(i) && (l.has != nothing || l.underWay && keep != 0) {
			drop |= 1 << i // what is under way otherwise is released when it is answered
		}
	}
	st.mu.Unlock()
	for i := range s.nodes {
		if drop.has(i) {
			s.send(st, i, task{kind: release})
		}
	}
}
