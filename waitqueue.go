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
	"github.com/batonhq/baton/internal/acquire"
)

// A waitQueue is a local queue: the goroutines of this process that want one key, first
// come, first served. Its front deals with the store: it requests, waits in the store's
// queue, or holds the exclusive lock. The queue exists as long as it has a front.
type waitQueue struct {
	shard *queueShard
	key   string

	holder  atomic.Pointer[keeper] // the last keeper that the front held exclusively, if any
	waiting atomic.Int32           // it and the fields below are changed under the shard's mutex

	first, last *caller

	outage atomic.Pointer[acquire.Outage] // as seen by the front; nil if the store answers
}

// caller is a goroutine behind the front.
type caller struct {
	ask        ask
	came       acquire.Moment // zero if the store answered the front at that moment
	turn       chan *keeper   // cap 1: a lock or a position to take over; nil: begin as the front
	failed     error          // if not nil, turn does not count: the store is out of reach
	prev, next *caller
	queued     bool
}

type queueShard struct {
	sync.Mutex
	queues map[string]*waitQueue
	_      [48]byte // shards do not share a cache line
}

// add makes the queue of key, with the caller as its front. The caller has locked the
// shard.
func (sh *queueShard) add(key string) *waitQueue {
	q := &waitQueue{shard: sh, key: key}
	sh.queues[key] = q
	return q
}

func (l *Locker) shard(key string) *queueShard {
	return &l.queues[maphash.String(l.seed, key)%uint64(len(l.queues))]
}

// enter joins the queue of key and returns when the caller is its front. It returns the
// lock or the position that the earlier front handed over, if any. It refuses if as many
// callers as a allows are behind the front.
func (l *Locker) enter(ctx context.Context, key string, a *ask, o *observed) (*waitQueue, *keeper, error) {
	sh := l.shard(key)
	sh.Lock()
	q := sh.queues[key]
	if q == nil {
		q = sh.add(key)
		sh.Unlock()
		return q, nil, nil
	}
	if n := int(q.waiting.Load()); a.maxWaiting > 0 && n >= a.maxWaiting {
		sh.Unlock()
		return nil, nil, &QueueFullError{Key: key, Waiting: n, Local: true}
	}
	c, _ := l.callers.Get().(*caller)
	if c == nil {
		c = &caller{turn: make(chan *keeper, 1)}
	}
	c.ask, c.came, c.failed = *a, 0, nil
	if q.outage.Load() != nil {
		c.came = l.clock.Now()
	}
	q.push(c)
	sh.Unlock()

	o.waiting(true, func() { l.stepOut(q, c) })
	select {
	case k := <-c.turn:
		err := c.failed
		l.callers.Put(c)
		if err != nil {
			return nil, nil, err
		}
		return q, k, nil
	case <-ctx.Done():
	}
	l.stepOut(q, c)
	err := whyEnded(ctx)
	if k := q.holder.Load(); k != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		if held := k.heldError(q); held != nil {
			err = fmt.Errorf("%w: %w", err, held)
		}
	}
	if o := q.outage.Load(); o != nil {
		err = explain(ctx, err, o.Err)
	}
	return nil, nil, fail("lock", key, err)
}

// stepOut removes a caller that no longer waits from q.
func (l *Locker) stepOut(q *waitQueue, c *caller) {
	q.shard.Lock()
	queued := c.queued
	if queued {
		q.remove(c)
	}
	q.shard.Unlock()
	if !queued {
		// Another goroutine has just made this one the front or handed it the lock. The
		// next caller must get that.
		if k := <-c.turn; c.failed == nil {
			l.passToNext(q, k)
		}
	}
	l.callers.Put(c)
}

// tryEnter makes the caller the front if there is none. If there is one, tryEnter refuses
// if this process is known to hold the lock exclusively. Else it returns nil, nil: the
// caller is in no queue, and the store decides.
func (l *Locker) tryEnter(key string) (*waitQueue, *HeldError) {
	sh := l.shard(key)
	sh.Lock()
	defer sh.Unlock()
	q := sh.queues[key]
	if q == nil {
		return sh.add(key), nil
	}
	if k := q.holder.Load(); k != nil {
		return nil, k.heldError(q)
	}
	return nil, nil
}

// tryFront makes the caller the front of the queues of all keys, if all are empty.
func (l *Locker) tryFront(keys []string) (queues []*waitQueue, ok bool) {
	for _, key := range keys {
		sh := l.shard(key)
		sh.Lock()
		if sh.queues[key] != nil {
			sh.Unlock()
			for _, q := range queues {
				q.leave()
			}
			return nil, false
		}
		queues = append(queues, sh.add(key))
		sh.Unlock()
	}
	return queues, true
}

// occupiedBy is q if a lease of a remains the front of q, else nil: callers behind a read
// lock or permits may hold together with it.
func (q *waitQueue) occupiedBy(a *ask) *waitQueue {
	if a.weight != driver.Whole {
		return nil
	}
	return q
}

// handOver gives k, which is fit for it, to the caller behind its holder. It returns
// false if there is none, or if that caller wants another kind of lock, owner, TTL or
// MinHold.
func (q *waitQueue) handOver(k *keeper) bool {
	if q == nil || q.waiting.Load() == 0 {
		return false // if a caller comes now, leave makes it the front
	}
	q.shard.Lock()
	defer q.shard.Unlock()
	c := q.first
	if c == nil {
		return false
	}
	k.mu.Lock()
	fit := k.suits(c)
	k.mu.Unlock()
	if fit {
		q.advance(c, k)
	}
	return fit
}

// passOn gives the store position of k to the caller behind a front that no longer waits,
// without a request to the store. It returns false if there is no such caller, if that
// caller asks for something else or another MaxWaiting, or if the wait has an outcome
// already.
func (q *waitQueue) passOn(k *keeper) bool {
	if q == nil || q.waiting.Load() == 0 {
		return false
	}
	q.shard.Lock()
	defer q.shard.Unlock()
	c := q.first
	if c == nil {
		return false
	}
	k.mu.Lock()
	passed := k.suits(c) && c.ask.maxWaiting == k.acq.MaxWaiting() && len(k.waiter) == 0 && k.acq.PassOn(c.came)
	k.mu.Unlock()
	if passed {
		q.advance(c, k)
	}
	return passed
}

// takenOver tries handOver, then passOn, and reports whether one succeeded.
func (q *waitQueue) takenOver(k *keeper) bool {
	return k.fitToHandOver() && q.handOver(k) || q.passOn(k)
}

// passToNext hands k, which its receiver did not use, over to the next caller, or
// releases it. A nil k says that the receiver was made the front without a lock or
// position.
func (l *Locker) passToNext(q *waitQueue, k *keeper) {
	if k != nil {
		if q.takenOver(k) {
			return
		}
		l.giveUp(k)
	}
	q.leave()
}

// leave makes the next caller the front, or ends the queue. q is nil for a caller in no
// queue.
func (q *waitQueue) leave() {
	if q == nil {
		return
	}
	sh := q.shard
	sh.Lock()
	defer sh.Unlock()
	q.holder.Store(nil)
	if c := q.first; c != nil {
		q.advance(c, nil)
		return
	}
	delete(sh.queues, q.key)
}

// advance makes c, the first caller behind the front, the front. k, if not nil, goes to
// c. The caller has locked the shard's mutex.
func (q *waitQueue) advance(c *caller, k *keeper) {
	q.remove(c)
	if o := q.outage.Load(); o != nil {
		seen := o.AsSeenBy(c.came)
		q.outage.CompareAndSwap(o, &seen) // not if the outage has just ended
	}
	c.turn <- k
}

// note keeps what the front knows of an outage, for the next front.
func (q *waitQueue) note(o acquire.Outage) {
	switch {
	case q == nil:
	case o.Tries == 0:
		q.outage.Store(nil)
	default:
		q.outage.Store(&o)
	}
}

// failBehind fails each caller behind the front that has waited through the outage as
// long as it would have waited as the front.
func (l *Locker) failBehind(q *waitQueue) {
	if q == nil {
		return
	}
	o, now := q.outage.Load(), l.clock.Now()
	if o == nil {
		return
	}
	sh := q.shard
	sh.Lock()
	defer sh.Unlock()
	for c := q.first; c != nil; {
		next := c.next
		if seen := o.AsSeenBy(c.came); seen.Over(now, c.ask.terms.Patience()) {
			q.remove(c)
			c.failed = fail("lock", q.key, fmt.Errorf("store %s has been out of reach for %v, also for those before in the queue of this process: %w; try again when it answers (baton doctor tells)",
				l.traits.Store, now.Sub(seen.Since).Round(time.Second), seen.Err))
			c.turn <- nil
		}
		c = next
	}
}

func (q *waitQueue) push(c *caller) {
	c.queued, c.prev, c.next = true, q.last, nil
	if q.last != nil {
		q.last.next = c
	} else {
		q.first = c
	}
	q.last = c
	q.waiting.Add(1)
}

func (q *waitQueue) remove(c *caller) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		q.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		q.last = c.prev
	}
	c.queued, c.prev, c.next = false, nil, nil
	q.waiting.Add(-1)
}
