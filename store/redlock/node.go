package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/quorum"
)

type node struct {
	index   int
	name    string
	open    func(context.Context) (OpenMember, error) // nil if it came open
	opening chan struct{}                             // held by the call that opens it
	inner   atomic.Pointer[inner]

	seen      atomic.Int64 // the highest token that its counter is known to have reached
	rtt       atomic.Int64 // the usual time of a request
	life      atomic.Pointer[string]
	votesFrom atomic.Pointer[time.Time] // when it will vote, if it does not yet
	duplicate atomic.Pointer[node]      // another name of the same server, which votes in its place
	underWay  atomic.Int32              // requests

	// A node that does not answer is skipped for a while, so that not every caller waits
	// for it.
	mu       sync.Mutex
	failed   int           // requests in a row
	pause    time.Duration // how long it is skipped; then one request is let through
	retry    time.Time
	answered time.Time
	pending  map[string]pendingRelease // releases without an answer
	repeats  bool                      // releasePending runs
	down     atomic.Bool               // retry counts
}

// inner is an open node.
type inner struct {
	Member
}

// pendingRelease is a claim to release when the node answers again. Unlike in
// sqlstore.Abandoned there are no timed retries.
type pendingRelease struct {
	claim driver.Claim
	until time.Time
}

const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second

	slow        = 200 * time.Millisecond // a failure that takes this long is enough
	maxFailed   = 3
	maxUnderWay = 256
	maxPending  = 1000
)

// fit checks whether m can be a node.
func (s *Store) fit(n *node, m Member) (*inner, error) {
	t := m.Traits()
	switch {
	case !t.Fencing || !t.Shared:
		return nil, &NodeError{n.name, fmt.Errorf("a %s store cannot be one of several: that needs readers and tokens", t.Store)}
	case t.MinTTL > minTTL || t.MaxTTL > 0 && t.MaxTTL < s.longest:
		return nil, &NodeError{n.name, fmt.Errorf("a %s store accepts TTLs from %v to %v, needed are %v to %v", t.Store, t.MinTTL, t.MaxTTL, minTTL, s.longest)}
	}
	return &inner{m}, nil
}

// reach returns the node, and opens it if necessary.
func (s *Store) reach(ctx context.Context, n *node) (*inner, error) {
	if in := n.inner.Load(); in != nil {
		return in, nil
	}
	select {
	case n.opening <- struct{}{}:
		defer func() { <-n.opening }()
	case <-ctx.Done():
		return nil, fmt.Errorf("redlock: %s: %w: %w", n.name, driver.ErrUnavailable, ctx.Err())
	}
	if in := n.inner.Load(); in != nil {
		return in, nil
	}
	l, err := n.open(ctx)
	if err != nil {
		return nil, &NodeError{n.name, err}
	}
	in, err := s.fit(n, l)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	// A node that could not be reached before is judged as the others were.
	life, err := in.Life(ctx)
	switch {
	case err != nil:
		err = &NodeError{n.name, err}
	case life.Replicas > 0 && !s.replicas:
		err = &ReplicatedError{n.name, life.Replicas}
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s.mayVote(n, life)
	n.inner.Store(in)
	return in, nil
}

// votes reports whether a grant that the node has just made counts: it is a different
// server from the others, and cannot have forgotten a held lock.
func (s *Store) votes(ctx context.Context, n *node, in *inner) bool {
	l, err := in.Life(ctx)
	if err != nil {
		return false
	}
	if id := n.life.Load(); id == nil || *id != l.Server {
		s.learn(n, l)
	}
	return s.mayVote(n, l) && n.duplicate.Load() == nil
}

// mayVote reports whether the server has been up longer than the longest TTL, so that it
// cannot have forgotten a held lock. If not, it notes when that will be.
func (s *Store) mayVote(n *node, l quorum.Life) bool {
	left := s.longest + drift(s.longest) - l.Age
	if s.durable || left <= 0 {
		return true
	}
	at := time.Now().Add(left)
	n.votesFrom.Store(&at)
	return false
}

// learn notes that a node's server has restarted, or is another one.
func (s *Store) learn(n *node, l quorum.Life) {
	s.learnedMu.Lock()
	defer s.learnedMu.Unlock()
	n.seen.Store(0)
	n.life.Store(&l.Server)
	var first *node
	for _, other := range s.nodes {
		if id := other.life.Load(); id == nil || *id != l.Server {
			if other.duplicate.Load() == n {
				other.duplicate.Store(nil)
			}
			continue
		}
		if first == nil {
			first = other
			other.duplicate.Store(nil)
		} else {
			other.duplicate.Store(first)
		}
	}
}

// reached notes that the node's counter is at token at least.
func (n *node) reached(token int64) {
	for {
		known := n.seen.Load()
		if token <= known || n.seen.CompareAndSwap(known, token) {
			return
		}
	}
}

// admits reports whether a request should be sent to the node. Pending releases alone do
// not make it skip the node.
func (n *node) admits() bool {
	down := n.down.Load()
	if !down && n.underWay.Load() < maxUnderWay {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if down && n.pause > 0 {
		if now.Before(n.retry) {
			return false
		}
		n.retry = now.Add(max(n.pause, nodeTimeout/4))
		return true
	}
	return n.underWay.Load() < maxUnderWay || now.Sub(n.answered) < slow
}

// account notes the outcome of a request to the node, which took d.
func (s *Store) account(n *node, err error, d time.Duration) {
	if err == nil || !unreachable(err) {
		usual := n.rtt.Load()
		n.rtt.Store(usual + (int64(d)-usual)/8)
		if d < slow && !n.down.Load() && n.underWay.Load() < maxUnderWay/2 {
			return // no state to change, and no mutex
		}
		n.mu.Lock()
		n.failed, n.pause, n.answered = 0, 0, time.Now()
		n.down.Store(false)
		repeat := len(n.pending) > 0 && !n.repeats
		n.repeats = n.repeats || repeat
		n.mu.Unlock()
		if repeat {
			s.workers.Go(func() { s.releasePending(n) })
		}
		return
	}
	if s.root.Err() != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed++
	if n.failed >= maxFailed || d >= slow {
		n.pause = min(max(2*n.pause, firstPause), lastPause)
		n.retry = time.Now().Add(n.pause)
		n.down.Store(true)
	}
}

// releaseLater notes a claim whose release failed.
func (n *node) releaseLater(c driver.Claim, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if len(n.pending) >= maxPending {
		for id, r := range n.pending {
			if now.After(r.until) {
				delete(n.pending, id)
			}
		}
		if len(n.pending) >= maxPending {
			return // the TTL ends it
		}
	}
	if n.pending == nil {
		n.pending = map[string]pendingRelease{}
	}
	n.pending[c.Key+"\x00"+c.ID] = pendingRelease{c, now.Add(d)}
	n.failed = max(n.failed, 1)
	n.down.Store(true) // so that the next answer is noticed
}

// releasePending makes the pending releases on a node that answers again.
func (s *Store) releasePending(n *node) {
	for {
		n.mu.Lock()
		var c driver.Claim
		var until time.Time
		for id, r := range n.pending {
			delete(n.pending, id)
			c, until = r.claim, r.until
			break
		}
		n.repeats = c.ID != ""
		n.mu.Unlock()
		if c.ID == "" {
			return
		}
		if left := time.Until(until); left > 0 {
			in, err := s.reach(s.detach(), n)
			if err == nil {
				err = in.Release(s.detach(), c)
			}
			if err != nil && unreachable(err) {
				n.mu.Lock()
				n.repeats = false
				n.mu.Unlock()
				n.releaseLater(c, left)
				return
			}
		}
	}
}
