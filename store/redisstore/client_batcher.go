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

// batcher merges the requests of many goroutines into few script calls while they wait
// for the server. Starting a script costs the server more than the work of most scripts,
// so merging doubles its throughput. A request that comes while few calls are under way
// goes alone: a batch of one costs more than its own script.
//
// In Cluster it merges nothing, because the keys of a call share a slot.
//
// It is no batch.Batcher: a request that goes alone runs on its caller's goroutine, the
// number of concurrent calls follows how many requests waited lately, and equal decisions
// are made in one step.
type batcher struct {
	off  bool // each request goes alone
	far  bool // as many calls go alone as with a distant server
	one  func(context.Context, *operation) (any, error)
	many func(context.Context, []*operation) // sets the answers and errors of two or more

	mu      sync.Mutex
	calls   int           // under way, single or combined
	busy    bool          // requests are merged
	usual   float64       // moving average of the requests that waited when a call ended
	waiting []*operation  // only while the maximum of calls is under way
	wants   int           // callers of waiting
	trip    time.Duration // the shortest time of a call

	// By ID, acquires that were sent and whose callers have given up.
	abandoned map[string]*operation
}

const (
	// Up to idleCalls calls go alone to a distant server, where waiting for another call
	// costs a round trip. If calls take less than nearTrip, the client's work dominates,
	// and only busyCalls go alone.
	idleCalls = 16
	nearTrip  = 400 * time.Microsecond

	// busyCalls are under way while requests are merged: one at the server, one on its
	// way to it, and one on its way back.
	busyCalls = 3

	// Merging begins when beginAt requests wait, and ends when fewer than endBelow do on
	// average.
	beginAt, endBelow = 8, 2

	// A call of maxCombined requests occupies the server for some 150 µs.
	maxCombined = 32
)

// operation is an acquire for acquire.lua, a release for release.lua, or a decision for
// simple.lua.
type operation struct {
	n       lockNames
	id      string
	acquire bool
	key     string // of an acquire, as is ttl
	ttl     time.Duration
	args    [3]string // the lock's value before the token, the ttl in ms, and the value after it; of a release the beginning of the value
	keys    [4]string // memory for a call of its own
	ask     question  // of a decision

	done   chan struct{} // closed when answer, or each, and err are set
	sent   bool          // guarded by batcher.mu
	times  int           // callers that share it; guarded by batcher.mu until it is sent
	answer any
	each   []limits.Taken // answers to a decision, one for each caller
	given  atomic.Int32   // how many of each were handed out
	err    error
}

// question is a decision to make.
type question struct {
	limit *knownLimit
	key   string
	cost  int64
}

// do runs o, alone or merged, and returns the answer of its script.
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

// decide is do for decisions. Callers that wait for the same decision share one
// operation.
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

// begins reports whether a call for one request may begin, and then counts the call. c.mu
// is held.
func (c *batcher) begins() bool {
	if c.calls >= c.limit() {
		return false
	}
	c.calls++
	return true
}

// waits queues o for a call. c.mu is held.
func (c *batcher) waits(o *operation) {
	o.done, o.times = make(chan struct{}), 1
	c.waiting = append(c.waiting, o)
	c.wants++
}

// alike finds the same decision among the last waiting operations. c.mu is held.
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
	if o.sent { // the call has other callers, too, and does not end with this context
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
	if o.times--; o.times > 0 { // other callers share it
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

// await returns when the abandoned acquire with this ID, if any, has ended: a later
// request must not overtake it.
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

// answered tells callers that their operations have ended. They soon lock the mutex, so
// it is not held meanwhile. A caller that gives up before that has noted its operation as
// abandoned by now.
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

// limit is the greatest number of concurrent calls. c.mu is held.
func (c *batcher) limit() int {
	if c.busy || !c.far && c.trip < nearTrip {
		return busyCalls
	}
	return idleCalls
}

// finished replaces an ended call by one for the waiting requests, if any.
func (c *batcher) finished(began time.Time) {
	if batch := c.next(time.Since(began)); batch != nil {
		go c.drain(batch)
	}
}

// drain runs batches until no request waits.
func (c *batcher) drain(batch []*operation) {
	for ; batch != nil; batch = c.next(0) {
		c.combined(batch)
		runtime.Gosched() // answered callers often have the next request
	}
}

// next takes the operations of the next call. If there are none, it counts one call less.
// took is the time of the last call if it went alone, else 0.
func (c *batcher) next(took time.Duration) []*operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if took > 0 && took < c.trip {
		c.trip = took
	} else if took > 0 { // slowly: most calls wait for others at the server, and the distance does not change so soon
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

// combined runs a batch. Its call belongs to several callers, so no single caller's
// context ends it.
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

// notTheirs hides the end of the call's own context: it is not the callers'.
func notTheirs(err error) error {
	if contextError(err) != nil {
		return fmt.Errorf("redis: %w: no answer within %v", driver.ErrUnknown, checkTimeout)
	}
	return err
}
