package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// combiner sends what many goroutines ask for in few script calls when the server
// is what they wait for. Running a script costs the server more than what most
// of them do, so that several in one call double what it can serve. Whoever comes
// while few calls are under way goes alone: a call for one in a batch would cost
// more than its own script.
//
// Not in Cluster, where the keys of a call lie on one slot.
type combiner struct {
	off  bool // each goes alone
	one  func(context.Context, *operation) (any, error)
	many func(context.Context, []*operation) // two or more; sets their answers and errors

	mu      sync.Mutex
	calls   int          // under way, single or combined
	busy    bool         // combining
	usual   float64      // how many waited lately when a call ended
	waiting []*operation // only while calls are at their limit

	// Acquires that were sent, and whose callers are gone, by ID.
	abandoned map[string]*operation
}

const (
	// Up to so many calls go alone. With less to do at once, waiting for
	// each other costs more than it spares.
	idleCalls = 16

	// So many are under way while calls are combined: one that the server
	// works on, one on its way to it, and one on its way back.
	busyCalls = 3

	// Combining begins when so many wait, and ends when usually fewer than so
	// many do.
	beginAt, endBelow = 8, 2

	// A call holds up the server for some 150 µs at most.
	maxCombined = 32
)

// operation is an acquire or a release that acquire.lua or release.lua can do, or
// a decision that simple.lua can make.
type operation struct {
	n       lockNames
	id      string
	acquire bool
	args    [2]string // the lock's value and the ttl in ms; or how the value begins, and ""; or what simple.lua is told
	keys    [4]string // memory for a call for it alone; or the limit's state
	limit   *knownLimit
	cost    int64

	done   chan struct{} // closed when answer and err are set
	sent   bool          // guarded by combiner.mu
	answer any
	err    error
}

// do runs o, alone or with others, and answers what its script did.
func (c *combiner) do(ctx context.Context, o *operation) (any, error) {
	if c.off {
		return c.one(ctx, o)
	}
	c.mu.Lock()
	if c.calls < c.limit() {
		c.calls++
		c.mu.Unlock()
		defer c.finished()
		return c.one(ctx, o)
	}
	o.done = make(chan struct{})
	c.waiting = append(c.waiting, o)
	c.mu.Unlock()

	select {
	case <-o.done:
		return o.answer, o.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.sent { // others' calls do not end with our context
		select {
		case <-o.done:
		default:
			if o.acquire {
				if c.abandoned == nil {
					c.abandoned = map[string]*operation{}
				}
				c.abandoned[o.id] = o
			}
		}
		return nil, failure(ctx.Err())
	}
	for i, other := range c.waiting {
		if other == o {
			c.waiting = append(c.waiting[:i], c.waiting[i+1:]...)
			break
		}
	}
	return nil, ctx.Err()
}

// await returns when an acquire with this ID that was abandoned has ended: what
// comes after it must not overtake it.
func (c *combiner) await(ctx context.Context, id string) error {
	c.mu.Lock()
	o := c.abandoned[id]
	c.mu.Unlock()
	if o == nil {
		return nil
	}
	select {
	case <-o.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answered tells callers that their operations have ended. Whoever is woken
// soon wants the mutex, so it is not held meanwhile; a caller that goes away
// before its operation has ended has noted it as abandoned by the time we look.
func (c *combiner) answered(batch []*operation) {
	for _, o := range batch {
		close(o.done)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.abandoned) == 0 {
		return
	}
	for _, o := range batch {
		if c.abandoned[o.id] == o {
			delete(c.abandoned, o.id)
		}
	}
}

// limit is how many calls may be under way. c.mu is held.
func (c *combiner) limit() int {
	if c.busy {
		return busyCalls
	}
	return idleCalls
}

// finished passes the turn of a call that has ended to those who wait.
func (c *combiner) finished() {
	if batch := c.next(); batch != nil {
		go c.drain(batch)
	}
}

// drain runs batches for as long as there are any.
func (c *combiner) drain(batch []*operation) {
	for ; batch != nil; batch = c.next() {
		c.combined(batch)
		runtime.Gosched() // those who were answered often have the next to ask
	}
}

// next takes the operations of the next call, or gives the turn back.
func (c *combiner) next() []*operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.waiting), maxCombined)
	c.usual += (float64(n) - c.usual) / 16
	if n >= beginAt && !c.busy {
		c.busy, c.usual = true, float64(n)
	} else if c.usual < endBelow {
		c.busy = false
	}
	if n == 0 || c.calls > c.limit() {
		c.calls--
		return nil
	}
	batch := append([]*operation(nil), c.waiting[:n]...)
	c.waiting = append(c.waiting[:0], c.waiting[n:]...)
	clear(c.waiting[len(c.waiting):cap(c.waiting)][:n])
	for _, o := range batch {
		o.sent = true
	}
	return batch
}

// combined runs a batch. Its call belongs to several callers, so no context of
// theirs ends it.
func (c *combiner) combined(batch []*operation) {
	defer c.answered(batch)
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	if len(batch) == 1 {
		answer, err := c.one(ctx, batch[0])
		batch[0].answer, batch[0].err = answer, notTheirs(err)
		return
	}
	c.many(ctx, batch)
}

// single runs an acquire or a release that goes alone.
func (s *Store) single(ctx context.Context, o *operation) (any, error) {
	if o.acquire {
		o.keys = [4]string{o.n.lock, o.n.counter, o.n.high, o.n.queue()}
		return s.run(ctx, acquireScript, o.keys[:], o.args[:])
	}
	o.keys = [4]string{o.n.lock, o.n.counter, o.n.queue()}
	return s.run(ctx, releaseScript, o.keys[:3], o.args[:1])
}

// several runs acquires and releases in one call.
func (s *Store) several(ctx context.Context, batch []*operation) {
	keys := append(make([]string, 0, 2+2*len(batch)), s.names.counter, s.names.high)
	args := make([]string, 0, 2*len(batch))
	for _, o := range batch {
		keys = append(keys, o.n.lock, o.n.queue())
		args = append(args, o.args[0], o.args[1])
	}
	answer, err := s.run(ctx, combinedScript, keys, args)
	answers := list(answer)
	if err == nil && len(answers) != len(batch) {
		err = strange(combinedScript, answer)
	}
	for i, o := range batch {
		if err != nil {
			o.err = notTheirs(err)
		} else if o.answer = answers[i]; text(o.answer) != "" {
			o.err = fmt.Errorf("redis: %w: %w", driver.ErrUnknown, &wire.ServerError{Text: text(o.answer)})
		}
	}
}

// notTheirs hides that a call's own context ended: the callers' did not.
func notTheirs(err error) error {
	if contextError(err) != nil {
		return fmt.Errorf("redis: %w: no answer within %v", driver.ErrUnknown, checkTimeout)
	}
	return err
}
