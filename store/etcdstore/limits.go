package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/rate"
)

var _ limits.Store = (*Store)(nil)

const (
	maxNames = 100    // in one transaction: the server allows 128 operations
	maxCalls = 1000   // decided together
	bigTxn   = 20_000 // a larger transaction goes alone: maxBatch of them would be too large
)

// limiter decides the calls of this process about limits. Calls for a key that come while
// a transaction about it is under way share the next one.
type limiter struct {
	wall     func() int64 // µs since 1970; tests replace it
	requests rate.Known

	mu     sync.Mutex
	keys   map[string]*keyCalls // keys of the present calls
	cache  pageCache
	leases map[int64]*limitLease // by TTL in seconds
}

func newLimiter() *limiter {
	return &limiter{
		wall:   func() int64 { return time.Now().UnixMicro() },
		keys:   map[string]*keyCalls{},
		leases: map[int64]*limitLease{},
	}
}

// keyCalls are the calls about one key. Guarded by limiter.mu.
type keyCalls struct {
	round *round  // the transaction under way
	queue []*call // waiting for the next transaction, in the order of arrival
}

// A call is one call of Take.
type call struct {
	r  *rate.Request
	id string // the name of the memory of the call's ID; "": none

	round     *round // guarded by limiter.mu; nil while the call waits
	abandoned bool   // the caller has left; guarded by limiter.mu

	// The result of the present attempt.
	decided limits.Taken
	refused error
	writes  bool

	unresolved bool // an attempt that wrote got no answer

	done chan struct{} // closed when d and err are set
	d    limits.Taken
	err  error
}

// A round is a transaction about some calls, repeated until its states are those of the
// server. It is no send of a batch.Batcher: between two attempts, which had no effect,
// calls may leave and others may join.
type round struct {
	calls []*call
	names int              // an upper bound of its names
	keys  []string         // of all calls that were ever part of it
	known map[string]*page // by name, the last known state of the server
}

// Take implements limits.Store. The calling process decides, and writes the decision on
// the condition that the states have not changed. That takes one transaction if this
// process was the last to change them, and one more for each time that another process
// was faster; many concurrent calls of one process share one. Processes that compete for
// one key have no order. If the answer to a transaction is lost, Take asks once for its
// outcome by the request's ID. Without an ID the error is driver.ErrUnknown.
//
// Each write is a revision of etcd; a look and a refusal write nothing. A server keeps
// all revisions until they are compacted: with limits it needs
// --auto-compaction-retention, or millions of decisions use up its quota. A state has
// about 20 bytes for each number: a full log of 10 000 has 200 kB, which every decision
// sends. A request of more than the server's --max-request-bytes fails with
// driver.ErrUnavailable. An unused state stays for up to four times as long as it has an
// effect, or 8 s.
//
// etcd has no clock for clients, so each caller's clock decides, and limits are exact
// only as far as the clocks agree. Each state has the newest time that it has seen, and
// no process decides by an earlier one:
//
//   - A clock that is behind, or goes back, gives nothing twice. The process continues
//     from the time in the state at half the speed until its own clock has caught up; its
//     waits take up to twice as long meanwhile.
//   - A clock that is ahead by d gives back what other processes took up to d early,
//     once: from then on its time is that of the limit. Within a time t at most the
//     limit's amount for t+d is allowed, where d is the difference between the fastest
//     and the slowest clock. This can happen once more when the key was idle long enough
//     to be forgotten.
//   - A request's ID is forgotten d early by a clock that is ahead by d.
//
// Differences are not refused or reported: which clock is wrong is unknown. Set the
// clocks by NTP; half a second matters to a limit per second and not to one per hour.
// Taken.At is the time of the decision.
// Taken.At shows by which time a decision was made.
func (s *Store) Take(ctx context.Context, t limits.Request) (limits.Taken, error) {
	r, err := s.limits.requests.NewRequest(t)
	if err != nil {
		return limits.Taken{}, err
	}
	if err := s.ready(ctx); err != nil {
		return limits.Taken{}, err
	}
	c := &call{r: r, done: make(chan struct{})}
	if r.ID != "" {
		c.id = s.memoryName(r.Takes[0].Key, r.ID)
	}
	l := s.limits
	l.mu.Lock()
	for _, t := range r.Takes {
		k := l.keys[t.Key]
		if k == nil {
			k = new(keyCalls)
			l.keys[t.Key] = k
		}
		k.queue = append(k.queue, c)
	}
	s.startLocked(r.Takes[0].Key)
	l.mu.Unlock()

	select {
	case <-c.done:
		return c.d, c.err
	case <-ctx.Done():
		return s.leave(ctx, c)
	}
}

// leave returns the result of a call whose context has ended.
func (s *Store) leave(ctx context.Context, c *call) (limits.Taken, error) {
	l := s.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-c.done: // it was just answered
		return c.d, c.err
	default:
	}
	c.abandoned = true
	if c.round == nil {
		for _, t := range c.r.Takes {
			k := l.keys[t.Key]
			k.queue = slices.DeleteFunc(k.queue, func(other *call) bool { return other == c })
		}
		for _, t := range c.r.Takes { // calls may have waited behind this one
			s.startLocked(t.Key)
			l.idleLocked(t.Key)
		}
		return limits.Taken{}, ctx.Err()
	}
	if changesNothing(c.r) {
		return limits.Taken{}, ctx.Err()
	}
	return limits.Taken{}, failure(ctx, ctx.Err())
}

// changesNothing reports whether a request can never change a state.
func changesNothing(r *rate.Request) bool {
	return r.Mode <= limits.TakeAnyway && !slices.ContainsFunc(r.Takes, func(t limits.Take) bool { return t.Cost > 0 })
}

// startLocked begins a round with the calls that wait for a key, if they can go.
func (s *Store) startLocked(key string) {
	if k := s.limits.keys[key]; k == nil || k.round != nil {
		return
	}
	f := &round{known: map[string]*page{}}
	if s.limits.gatherLocked(f, key); len(f.calls) > 0 {
		go s.runRound(f)
	}
}

// gatherLocked adds to a round the calls that wait for a key, and for the other keys of
// those calls. A call joins only if it is the first in the queues of all its keys. So the
// oldest call goes as soon as its keys are free, and calls do not deadlock.
func (l *limiter) gatherLocked(f *round, keys ...string) {
	for len(keys) > 0 {
		k := l.keys[keys[0]]
		keys = keys[1:]
		for k != nil && len(k.queue) > 0 && f.names < maxNames-limits.MaxTakes && len(f.calls) < maxCalls {
			c := k.queue[0]
			free := func(t limits.Take) bool {
				k := l.keys[t.Key]
				return k.queue[0] == c && (k.round == nil || k.round == f)
			}
			if slices.ContainsFunc(c.r.Takes, func(t limits.Take) bool { return !free(t) }) {
				break
			}
			c.round = f
			f.calls = append(f.calls, c)
			if c.id != "" {
				f.names++
			}
			for _, t := range c.r.Takes {
				k := l.keys[t.Key]
				k.queue = k.queue[1:]
				if k.round == nil {
					k.round = f
					f.names++
					f.keys, keys = append(f.keys, t.Key), append(keys, t.Key)
				}
			}
		}
	}
}

// idleLocked forgets a key without calls.
func (l *limiter) idleLocked(key string) {
	if k := l.keys[key]; k != nil && k.round == nil && len(k.queue) == 0 {
		delete(l.keys, key)
	}
}

func (s *Store) runRound(f *round) {
	l := s.limits
	lost, leaseless := false, 0
	for s.joinRound(f) {
		a := f.decide(s)
		it, size, err := s.transaction(f, a)
		if s.ctx.Err() != nil {
			err = driver.ErrClosed
		} else if err == nil {
			err = s.commit(it, size)
		}
		switch {
		case err == nil && it.resp.Succeeded:
			for name, p := range a.pages {
				if p.changed {
					p.rev, p.changed = it.rev, false
				}
				f.known[name] = p
			}
			f.answer(func(c *call) (bool, limits.Taken, error) { return true, c.decided, c.refused })
		case err == nil: // another process was faster: the answer has the present state
			f.read(it)
		case errors.Is(err, rpctypes.ErrLeaseNotFound) && leaseless < 2:
			leaseless++
			s.forgetLeases(a)
		case errors.Is(err, driver.ErrUnknown) && !lost:
			// A call with an ID can still ask for its outcome.
			lost = true
			f.answer(func(c *call) (bool, limits.Taken, error) {
				c.unresolved = c.writes
				return c.unresolved && c.id == "", limits.Taken{}, err
			})
		default:
			f.answer(func(c *call) (bool, limits.Taken, error) { return true, limits.Taken{}, s.failed(c, err) })
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range f.keys {
		l.keys[key].round = nil
		name := s.stateName(key)
		l.cache.set(name, f.known[name])
	}
	for _, key := range f.keys {
		s.startLocked(key)
		l.idleLocked(key)
	}
}

// failed is the error of a call whose transaction failed with err.
func (s *Store) failed(c *call, err error) error {
	switch unknown := errors.Is(err, driver.ErrUnknown); {
	case c.unresolved && !unknown:
		return fmt.Errorf("etcd: %w: there was no answer, and then: %v", driver.ErrUnknown, err)
	case s.ctx.Err() != nil && !(unknown && c.writes):
		return driver.ErrClosed
	case unknown && !c.writes && !c.unresolved:
		return unavailable(errors.New("there was no answer"))
	}
	return err
}

// answer ends the calls for which with returns true, with its results.
func (f *round) answer(with func(*call) (bool, limits.Taken, error)) {
	f.calls = slices.DeleteFunc(f.calls, func(c *call) bool {
		done, d, err := with(c)
		if done {
			c.d, c.err = d, err
			close(c.done)
		}
		return done
	})
}

// joinRound drops the calls whose callers have left, and adds calls for the same keys. It
// reports whether any call is left.
func (s *Store) joinRound(f *round) bool {
	l := s.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	f.calls = slices.DeleteFunc(f.calls, func(c *call) bool { return c.abandoned })
	if len(f.calls) == 0 {
		return false
	}
	l.gatherLocked(f, slices.Clone(f.keys)...)
	for _, key := range f.keys {
		name := s.stateName(key)
		if f.known[name] == nil {
			f.known[name] = l.cache.get(name)
		}
	}
	return true
}

// A proposal is what a round wants to write.
type proposal struct {
	names []string // in the order of the transaction
	pages map[string]*page
	boot  time.Time
}

// page returns the proposal's copy of a page, for the caller to change.
func (a *proposal) page(f *round, name string) *page {
	p := a.pages[name]
	if p == nil {
		p = new(page)
		if known := f.known[name]; known != nil {
			*p = *known
		}
		a.names, a.pages[name] = append(a.names, name), p
	}
	return p
}

// decide decides all calls, one after the other, by one clock.
func (f *round) decide(s *Store) *proposal {
	a := &proposal{pages: make(map[string]*page, len(f.keys)+len(f.calls)), boot: bootclock.Now()}
	wall := s.limits.wall()
	for _, c := range f.calls {
		f.decideOne(s, a, c, wall)
	}
	return a
}

func (f *round) decideOne(s *Store, a *proposal, c *call, wall int64) {
	r := c.r
	c.decided, c.refused, c.writes = limits.Taken{}, nil, false
	pages := make([]*page, len(r.Takes))
	states := make([]rate.State, len(r.Takes))
	now := wall
	for i, t := range r.Takes {
		pages[i] = a.page(f, s.stateName(t.Key))
		states[i] = pages[i].state()
		now = max(now, pages[i].time(a.boot))
	}
	if r.Now != 0 {
		now = r.Now
	}
	var memory *page
	if c.id != "" {
		memory = a.page(f, c.id)
		if at, wait, ok := memory.remembered(wall); ok {
			c.decided = r.Repeated(states, now, at, wait)
			return
		}
		if c.unresolved {
			// Prevent the attempt without an answer: it fails if the name for its outcome
			// exists.
			memory.write(a.boot, unresolvedTime, rate.State{0})
			c.writes = true
		}
	}
	if ahead, outside := r.Outside(now); outside {
		c.refused = &limits.ClockError{Store: traits.Store, Ahead: ahead}
		return
	}
	d, changed := r.Decide(states, now)
	c.decided = d
	if !changed {
		return
	}
	c.writes = true
	for i, p := range pages {
		at := now
		if r.Now != 0 { // a time of the caller's is not the clock's
			at = p.at()
		}
		if len(states[i]) == 0 {
			p.write(a.boot, 0, nil)
		} else {
			p.write(a.boot, r.Keep(d.Limits[i].Reset), append(rate.State{at}, states[i]...))
		}
	}
	if memory != nil && d.OK {
		keep := r.Keep(r.Request.Keep)
		memory.write(a.boot, keep, rate.State{d.At, d.Wait.Microseconds(), wall + keep.Microseconds()})
	}
}

// transaction writes the proposal if the server's states are unchanged, and otherwise
// reads them.
func (s *Store) transaction(f *round, a *proposal) (it *item, size int, err error) {
	txn := &pb.TxnRequest{}
	for _, name := range a.names {
		p := a.pages[name]
		size += 3*len(name) + 100
		txn.Compare = append(txn.Compare, modRev(name, p.rev))
		txn.Failure = append(txn.Failure, get(name))
		switch {
		case !p.changed || p.rev == 0 && len(p.numbers) == 0:
			p.changed = false
		case len(p.numbers) == 0:
			txn.Success = append(txn.Success, remove(name))
		default:
			if err := s.leasePage(p, a.boot); err != nil {
				return nil, 0, err
			}
			text := p.numbers.Text()
			size += len(text)
			txn.Success = append(txn.Success, put(name, text, p.lease))
		}
	}
	return &item{Item: batch.NewItem(), name: s.stateName(f.keys[0]), once: true, txn: txn}, size, nil
}

// commit sends a transaction, with other waiting ones unless it is big.
func (s *Store) commit(it *item, size int) error {
	if size < bigTxn {
		return s.do(s.ctx, it)
	}
	s.sendAlone(it)
	return it.err
}

// read notes the states that the server has instead of the expected ones.
func (f *round) read(it *item) {
	seen := bootclock.Now()
	for i, r := range it.resp.Responses {
		name := string(it.txn.Compare[i].Key)
		p := &page{seen: seen}
		for _, kv := range rangeOf(r).Kvs {
			p.rev, p.lease, p.numbers = kv.ModRevision, kv.Lease, rate.Parse(string(kv.Value))
		}
		f.known[name] = p
	}
}
