package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// batcher merges the requests of many goroutines into few script calls when they wait
// for the server. To run a script costs the server more than what most scripts do, so
// merging doubles what it can serve. A request that comes while few calls are under way
// goes alone: a batch of one costs more than its own script.
//
// It merges nothing in Cluster, where the keys of a call lie on one slot.
//
// It is not a batch.Batcher because a request that goes alone runs on its caller's
// goroutine, the number of calls under way follows how many requests waited lately, and
// equal decisions are made in one step.
type batcher struct {
	off  bool // each request goes alone
	far  bool // as many calls go alone as for a server that is far
	one  func(context.Context, *operation) (any, error)
	many func(context.Context, []*operation) // two or more; sets their answers and errors

	mu      sync.Mutex
	calls   int           // under way, single or combined
	busy    bool          // requests are merged
	usual   float64       // how many waited lately when a call ended
	waiting []*operation  // only while calls are at their limit
	wants   int           // how many callers wait for these
	trip    time.Duration // how long a call takes at best

	// By ID, acquires that were sent and whose callers have given up.
	abandoned map[string]*operation
}

const (
	// Up to idleCalls calls go alone where the server is far: waiting for each other
	// costs a round trip there. Where calls take less than nearTrip, the client's work for
	// a call is the dearer one, and busyCalls go alone.
	idleCalls = 16
	nearTrip  = 400 * time.Microsecond

	// busyCalls are under way while requests are merged: one that the server works on,
	// one on its way to it, and one on its way back.
	busyCalls = 3

	// Merging begins when beginAt requests wait, and ends when usually fewer than
	// endBelow do.
	beginAt, endBelow = 8, 2

	// A call of maxCombined requests holds up the server for some 150 µs.
	maxCombined = 32
)

// operation is an acquire or a release that acquire.lua or release.lua can do, or
// a decision that simple.lua can make.
type operation struct {
	n       lockNames
	id      string
	acquire bool
	key     string // of an acquire, as is ttl
	ttl     time.Duration
	args    [3]string // the lock's value before the token, the ttl in ms, and the value after it; or how it begins
	keys    [4]string // memory for a call for it alone
	ask     question  // of a decision

	done   chan struct{} // closed when answer, or each, and err are set
	sent   bool          // guarded by batcher.mu
	times  int           // how many callers want it; guarded by batcher.mu until it is sent
	answer any
	each   []limits.Taken // the answers to as many decisions
	given  atomic.Int32   // how many of them
	err    error
}

// question is what is to be decided.
type question struct {
	limit *knownLimit
	key   string
	cost  int64
}

// do runs o, alone or with others, and answers what its script did.
func (c *batcher) do(ctx context.Context, o *operation) (any, error) {
	if c.off {
		return c.one(ctx, o)
	}
	c.mu.Lock()
	if c.begins() {
		c.mu.Unlock()
		defer c.finished(time.Now())
		return c.one(ctx, o)
	}
	c.waits(o)
	c.mu.Unlock()
	return c.answer(ctx, o)
}

// decide is do for decisions. Callers that wait for the same decision share it.
func (c *batcher) decide(ctx context.Context, q question) (any, error) {
	if c.off {
		return c.one(ctx, &operation{ask: q})
	}
	c.mu.Lock()
	if c.begins() {
		c.mu.Unlock()
		defer c.finished(time.Now())
		return c.one(ctx, &operation{ask: q})
	}
	o := c.alike(q)
	if o == nil {
		o = &operation{ask: q}
		c.waits(o)
	} else {
		o.times++
		c.wants++
	}
	c.mu.Unlock()
	return c.answer(ctx, o)
}

// begins reports whether a call for one request may begin, and then counts it. c.mu is
// held.
func (c *batcher) begins() bool {
	if c.calls >= c.limit() {
		return false
	}
	c.calls++
	return true
}

// waits lets o wait for a call. c.mu is held.
func (c *batcher) waits(o *operation) {
	o.done, o.times = make(chan struct{}), 1
	c.waiting = append(c.waiting, o)
	c.wants++
}

// alike finds the same decision among the last ones that wait. c.mu is held.
func (c *batcher) alike(q question) *operation {
	for i := len(c.waiting) - 1; i >= max(0, len(c.waiting)-maxCombined); i-- {
		if o := c.waiting[i]; o.ask == q && o.times < maxCombined {
			return o
		}
	}
	return nil
}

// answer waits for the answer to o.
func (c *batcher) answer(ctx context.Context, o *operation) (any, error) {
	select {
	case <-o.done:
		if o.each != nil {
			return &o.each[o.given.Add(1)-1], nil
		}
		return o.answer, o.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.sent { // the call has other callers, too, and does not end with our context
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
	c.wants--
	if o.times--; o.times > 0 { // other callers want it
		return nil, ctx.Err()
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
func (c *batcher) await(ctx context.Context, id string) error {
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

// answered tells callers that their operations have ended. These soon want the mutex,
// so it is not held meanwhile. A caller that gives up before its operation has ended
// has noted it as abandoned by the time we look.
func (c *batcher) answered(batch []*operation) {
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
func (c *batcher) limit() int {
	if c.busy || !c.far && c.trip < nearTrip {
		return busyCalls
	}
	return idleCalls
}

// finished starts a call for the requests that wait, in place of one that has ended.
func (c *batcher) finished(began time.Time) {
	if batch := c.next(time.Since(began)); batch != nil {
		go c.drain(batch)
	}
}

// drain runs batches for as long as there are any.
func (c *batcher) drain(batch []*operation) {
	for ; batch != nil; batch = c.next(0) {
		c.combined(batch)
		runtime.Gosched() // callers that were answered often have the next request
	}
}

// next takes the operations of the next call. If it begins none, it counts one call
// less. took is how long the last one took that went alone, 0 if it did not.
func (c *batcher) next(took time.Duration) []*operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if took > 0 && took < c.trip {
		c.trip = took
	} else if took > 0 { // most calls wait for others at the server; the way does not become longer so soon
		c.trip += min(took-c.trip, nearTrip) / 256
	}
	n, wants := 0, 0
	for n < len(c.waiting) && wants+c.waiting[n].times <= maxCombined {
		wants += c.waiting[n].times
		n++
	}
	c.usual += (float64(wants) - c.usual) / 16
	if wants >= beginAt && !c.busy {
		c.busy, c.usual = true, float64(wants)
	} else if c.usual < endBelow {
		c.busy = false
	}
	if n == 0 || c.calls > c.limit() {
		c.calls--
		return nil
	}
	c.wants -= wants
	batch := append([]*operation(nil), c.waiting[:n]...)
	c.waiting = append(c.waiting[:0], c.waiting[n:]...)
	clear(c.waiting[len(c.waiting):cap(c.waiting)][:n])
	for _, o := range batch {
		o.sent = true
	}
	return batch
}

// combined runs a batch. Its call belongs to several callers, so the context of none of
// them ends it.
func (c *batcher) combined(batch []*operation) {
	defer c.answered(batch)
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	if len(batch) == 1 && batch[0].times == 1 {
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
		call := wire.Call{Script: acquireScript, Keys: o.keys[:], Args: o.args[:], Acks: s.replicas.ask(o.ttl)}
		answer, err := s.runCall(ctx, call)
		if err == nil && number(answer) > 0 {
			err = s.replicas.missing(call.Acks, o.key)
		}
		return answer, err
	}
	o.keys = [4]string{o.n.lock, o.n.counter, o.n.queue()}
	return s.run(ctx, releaseScript, o.keys[:3], o.args[:1])
}

// several runs acquires and releases in one call.
func (s *Store) several(ctx context.Context, batch []*operation) {
	keys := append(make([]string, 0, 2+2*len(batch)), s.names.counter, s.names.high)
	args := make([]string, 0, len(operation{}.args)*len(batch))
	locks := make([]string, len(batch))
	var acks *wire.Acks
	for i, o := range batch {
		if o.acquire && (acks == nil || o.ttl/4 < acks.Within) {
			acks = s.replicas.ask(o.ttl)
		}
		locks[i] = o.n.lock
		keys = append(keys, o.n.lock, o.n.queue())
		args = append(args, o.args[:]...)
	}
	answer, err := s.runCall(ctx, wire.Call{Script: combinedScript, Keys: keys, Args: args, Locks: locks, Acks: acks})
	answers := list(answer)
	if err == nil && len(answers) != len(batch) {
		err = strange(combinedScript, answer)
	}
	for i, o := range batch {
		if err != nil {
			o.err = notTheirs(err)
		} else if o.answer = answers[i]; text(o.answer) != "" {
			o.err = failure(&wire.ServerError{Text: text(o.answer)})
		} else if o.acquire && number(o.answer) > 0 {
			o.err = s.replicas.missing(acks, o.key)
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
