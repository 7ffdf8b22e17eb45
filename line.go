package baton

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// How long a lease may be handed on inside a process before others get their
// turn, whichever comes first. The store's token is multiplied by
// tokensPerGrant to leave room for the hand-overs' own tokens.
const (
	maxHandOvers   = 32
	maxLineTime    = 250 * time.Millisecond
	tokensPerGrant = 64
)

// A line is all that happens to one key inside this process while somebody
// is at it. Its front is the one goroutine that deals with the store: it
// attempts, waits in the store's line, or holds the exclusive lock. The
// others stand behind it, first come, first served.
type line struct {
	shard *lineShard
	key   string

	holder  atomic.Pointer[stake] // the last one that the front held exclusively, if any
	waiting atomic.Int32          // changed under the shard's mutex, as is what follows

	first, last *caller

	outage atomic.Pointer[outage] // of the store, to the front; nil if it answers
}

// outage is how long the store has not answered those who fronted a line, one
// after the other. It is waited out once for all of them.
type outage struct {
	since time.Time // zero: it answers
	tries int       // without an answer: this process may have stood still meanwhile
	err   error     // the store's last one
}

// failed notes a request of a line's front, if it is one, that was not answered.
func (o *outage) failed(front *line, sent time.Time, err error) {
	if o.since.IsZero() {
		o.since = sent
	}
	o.tries++
	o.err = err
	if front != nil {
		known := *o
		front.outage.Store(&known)
	}
}

// answered notes that the store answers the front. A nil line is nobody's.
func (ln *line) answered() {
	if ln != nil && ln.outage.Load() != nil {
		ln.outage.Store(nil)
	}
}

// of is the outage as one has met it who stood in the line.
func (o outage) of(c *caller) outage {
	if c.came.After(o.since) {
		o.since = c.came
	}
	return o
}

// over reports that a store that failed for so long is not waited for any
// longer.
func (o outage) over(now time.Time, patience time.Duration) bool {
	return now.Sub(o.since) >= patience && o.tries >= minTries
}

// caller is a goroutine that stands in a line.
type caller struct {
	ask        ask
	came       time.Time   // if the store did not answer the front then
	turn       chan *stake // cap 1: a stake to take over, or nil to become the front
	failed     error       // not nil: the turn is none, the store is out of reach
	prev, next *caller
	queued     bool
}

type lineShard struct {
	sync.Mutex
	lines map[string]*line
	_     [48]byte // shards do not share a cache line
}

// add makes the line of key. The caller, who has locked the shard, is its
// front.
func (sh *lineShard) add(key string) *line {
	ln := &line{shard: sh, key: key}
	sh.lines[key] = ln
	return ln
}

func (l *Locker) shard(key string) *lineShard {
	return &l.lines[maphash.String(l.seed, key)%uint64(len(l.lines))]
}

// enter joins the line of key and returns when the caller is its front,
// with the stake that the front before it handed over, if any.
func (l *Locker) enter(ctx context.Context, key string, a ask) (*line, *stake, error) {
	sh := l.shard(key)
	sh.Lock()
	ln := sh.lines[key]
	if ln == nil {
		ln = sh.add(key)
		sh.Unlock()
		return ln, nil, nil
	}
	c, _ := l.callers.Get().(*caller)
	if c == nil {
		c = &caller{turn: make(chan *stake, 1)}
	}
	c.ask, c.came, c.failed = a, time.Time{}, nil
	if ln.outage.Load() != nil {
		c.came = bootclock.Coarse()
	}
	ln.push(c)
	sh.Unlock()

	if f := l.cfg.Trace.Waiting; f != nil {
		f(key, true)
	}
	select {
	case s := <-c.turn:
		err := c.failed
		l.callers.Put(c)
		if err != nil {
			return nil, nil, err
		}
		return ln, s, nil
	case <-ctx.Done():
	}
	sh.Lock()
	queued := c.queued
	if queued {
		ln.remove(c)
	}
	sh.Unlock()
	if !queued {
		// The turn came at the same time. It must not be lost.
		if s := <-c.turn; c.failed == nil {
			l.passOn(ln, s)
		}
	}
	l.callers.Put(c)
	err := ended(ctx)
	if s := ln.holder.Load(); s != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		if held := s.heldError(ln); held != nil {
			err = fmt.Errorf("%w: %w", err, held)
		}
	}
	return nil, nil, fail("lock", key, err)
}

// tryEnter becomes the front if nobody is. Otherwise it refuses if this
// process is known to hold the lock exclusively; if not, the store must
// decide, without a place in the line (nil, nil).
func (l *Locker) tryEnter(key string) (*line, *HeldError) {
	sh := l.shard(key)
	sh.Lock()
	defer sh.Unlock()
	ln := sh.lines[key]
	if ln == nil {
		return sh.add(key), nil
	}
	if s := ln.holder.Load(); s != nil {
		return nil, s.heldError(ln)
	}
	return nil, nil
}

// tryFront makes the caller the front of the lines of all keys, if nobody is at
// any of them.
func (l *Locker) tryFront(keys []string) (lines []*line, ok bool) {
	for _, key := range keys {
		sh := l.shard(key)
		sh.Lock()
		if sh.lines[key] != nil {
			sh.Unlock()
			for _, ln := range lines {
				ln.leave()
			}
			return nil, false
		}
		lines = append(lines, sh.add(key))
		sh.Unlock()
	}
	return lines, true
}

// handOver gives s, which may pass, to the caller behind its holder, unless
// there is none or that one wants something else.
func (ln *line) handOver(s *stake) bool {
	if ln.waiting.Load() == 0 {
		return false // one who comes now is let to the front by leave
	}
	ln.shard.Lock()
	defer ln.shard.Unlock()
	c := ln.first
	if c == nil || c.ask.weight != driver.Whole || s.locker.ownerOf(c.ask) != s.claim.Owner {
		return false
	}
	ln.remove(c)
	c.turn <- s
	return true
}

// leave makes the next caller the front of the line, or ends the line. A nil
// line is nobody's.
func (ln *line) leave() {
	if ln == nil {
		return
	}
	sh := ln.shard
	sh.Lock()
	defer sh.Unlock()
	ln.holder.Store(nil)
	if c := ln.first; c != nil {
		ln.remove(c)
		if o := ln.outage.Load(); o != nil {
			own := o.of(c)
			ln.outage.Store(&own)
		}
		c.turn <- nil
		return
	}
	delete(sh.lines, ln.key)
}

// failBehind ends the waiting of those who have stood behind the front for as
// long as it has waited for a store that is out of reach.
func (l *Locker) failBehind(ln *line) {
	if ln == nil {
		return
	}
	o, now := ln.outage.Load(), bootclock.Coarse()
	if o == nil {
		return
	}
	sh := ln.shard
	sh.Lock()
	defer sh.Unlock()
	for c := ln.first; c != nil; {
		next := c.next
		if own := o.of(c); own.over(now, l.patience()) {
			ln.remove(c)
			c.failed = fail("lock", ln.key, fmt.Errorf("store %s has been out of reach for %v, also for those before in the queue of this process: %w; try again when it answers (baton doctor tells)",
				l.traits.Store, now.Sub(own.since).Round(time.Second), own.err))
			c.turn <- nil
		}
		c = next
	}
}

func (ln *line) push(c *caller) {
	c.queued, c.prev, c.next = true, ln.last, nil
	if ln.last != nil {
		ln.last.next = c
	} else {
		ln.first = c
	}
	ln.last = c
	ln.waiting.Add(1)
}

func (ln *line) remove(c *caller) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		ln.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		ln.last = c.prev
	}
	c.queued, c.prev, c.next = false, nil, nil
	ln.waiting.Add(-1)
}

// mayPassLocked reports whether s may be handed on inside the process. Only
// the exclusive lock may: readers and permits leave the line at once. What
// happens to s after that is for its receiver to find out, who must ask anyway.
func (s *stake) mayPassLocked(now time.Time) bool {
	return s.state == held && !s.frozen && !s.shown && s.claim.Exclusive() &&
		s.lent < maxHandOvers && now.Sub(s.start) < maxLineTime &&
		s.trust.Sub(now) > min(s.locker.cfg.TTL, driver.ClaimTTL)/4
}

// passOn gives s, which its holder did not use, to the next in line, or back
// to the store. s is nil if the turn came without a stake.
func (l *Locker) passOn(ln *line, s *stake) {
	if s != nil {
		s.mu.Lock()
		pass := s.mayPassLocked(bootclock.Coarse())
		s.mu.Unlock()
		if pass && ln.handOver(s) {
			return
		}
		if c, ok := s.quit(); ok {
			l.giveUp(c)
		}
	}
	ln.leave()
}
