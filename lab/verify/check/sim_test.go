package check

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

const (
	ms     = int64(time.Millisecond)
	simTTL = 200 * ms
	margin = simTTL / 10
)

var simRules = Rules{
	TTL: time.Duration(simTTL), Bound: 200 * time.Millisecond,
	Limits: map[string]Limit{"limit": {Most: 5, Window: 100 * time.Millisecond}},
}

// defects are those of a sim.
type defects struct {
	earlyGrant     bool // the store expires a hold 1 ms before its holder stops trusting it
	tokenReset     bool // the counter of tokens starts again without a holder
	twoWriters     bool // every tenth request is granted, even if the lock is held
	readersIgnored bool // writers ignore readers
	extraPermit    bool // one permit too many
	blindRelease   bool // a release frees the lock, even if another claim holds it
	lostPlace      bool // every fifth waiter is never woken
	renewalFromEnd bool // a lease is trusted from the answer of a renewal, not from its request
	leak           bool // the permits of a killed client stay taken
	noExpiry       bool // holds do not expire
	extraAdmit     bool // the limiter admits one too many
	openRegister   bool // accepts every write
	noClock        bool // a client that was stopped trusts its lease until it is told of the loss
	deafRelease    bool // a release that is reported as done is not done
}

// A sim is a lock store in virtual time, correct unless it has defects, with clients that are
// killed and stopped and lose answers. The seed decides all random choices.
type sim struct {
	bad      defects
	rand     *rand.Rand
	now      int64
	events   events
	order    int
	h        *history.History
	fifo     bool // waiters are granted in order; otherwise in any order
	tickets  bool // tokens are drawn when a claim joins the queue, not when it is granted
	token    int64
	locks    map[string]*simLock
	register map[string]history.Write
	admitted []int64
	clients  []*simClient
	working  int
	numbers  int
	healed   bool
	draining bool
}

type simLock struct {
	holders, waiters []*claim
}

// A claim is an attempt, at the store and in the client.
type claim struct {
	hold    int // index in the history
	client  *simClient
	mode    history.Mode
	weight  int64
	of      int64
	waits   bool
	token   int64
	expires int64 // in the store; also that of a dead waiter
	believe int64 // until then the client trusts the lease
	over    bool  // in the client
	granted func()
}

type simClient struct {
	number  int
	dead    bool
	stopped int64 // until then it does nothing
	op      int64
}

type event struct {
	at    int64
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func (s *sim) after(d int64, do func()) {
	s.order++
	heap.Push(&s.events, event{s.now + d, s.order, do})
}

// on runs do when the client can run it: not while it is stopped, and never after its death.
func (s *sim) on(c *simClient, d int64, do func()) {
	s.after(d, func() {
		switch {
		case c.dead:
		case c.stopped > s.now:
			s.on(c, c.stopped-s.now, do)
		default:
			do()
		}
	})
}

// chance is true once in n times.
func (s *sim) chance(n int) bool { return s.rand.IntN(n) == 0 }

// wire is the delay of a message.
func (s *sim) wire() int64 {
	if !s.healed && s.chance(30) {
		return s.rand.Int64N(simTTL)
	}
	return s.rand.Int64N(2*ms) + 1
}

func (s *sim) mark(what history.MarkWhat, client int) {
	s.h.Marks = append(s.h.Marks, history.Mark{At: s.now, What: what, Client: client})
}

// simulate runs clients for a time, half of it with faults.
func simulate(seed uint64, bad defects, clients int, d int64) *history.History {
	s := &sim{
		bad: bad, rand: rand.New(rand.NewPCG(seed, 7)), now: int64(time.Hour), h: &history.History{},
		locks: make(map[string]*simLock), register: make(map[string]history.Write), token: 1000,
	}
	s.fifo, s.tickets = simOrder(seed), s.chance(2)
	s.fifo = s.fifo || s.tickets
	s.mark(history.Begins, 0)
	for range clients {
		s.start()
	}
	for range clients / 2 {
		s.after(s.rand.Int64N(d/2), s.kill)
		s.after(s.rand.Int64N(d/2), func() { s.clients[s.rand.IntN(len(s.clients))].stopped = s.now + s.rand.Int64N(3*simTTL) })
	}
	s.after(d/2, func() { s.healed = true })
	s.after(d/2+3*simTTL, func() { s.mark(history.Healed, 0) })
	s.after(d+3*simTTL, func() {
		s.draining = true
		s.mark(history.Drains, 0)
		s.after(0, s.drained)
	})
	for deadline := s.now + 20*d; len(s.events) > 0 && s.now < deadline; {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
	}
	if s.h.Mark(history.Ends) == 0 {
		s.mark(history.Ends, 0)
	}
	s.h.Sort()
	return s.h
}

// simOrder reports whether a seed's store is first come, first served.
func simOrder(seed uint64) bool { return seed%3 != 0 }

func (s *sim) start() {
	s.numbers++
	c := &simClient{number: s.numbers}
	s.clients = append(s.clients, c)
	s.working++
	s.on(c, s.rand.Int64N(20*ms), func() { s.work(c) })
}

func (s *sim) kill() {
	c := s.clients[s.rand.IntN(len(s.clients))]
	if holders := s.at("permits").holders; len(holders) > 0 && s.chance(2) {
		c = holders[0].client
	}
	if c.dead {
		return
	}
	c.dead = true
	s.working--
	s.mark(history.Killed, c.number)
	s.start()
}

// work does the client's operations, one after the other.
func (s *sim) work(c *simClient) {
	again := func() { s.on(c, s.rand.Int64N(20*ms), func() { s.work(c) }) }
	if s.draining {
		s.working--
		return
	}
	switch s.rand.IntN(8) {
	case 0:
		s.ask(c, again)
	case 1, 2:
		s.lock(c, "rw", &claim{mode: history.Shared, waits: true}, again)
	case 3:
		s.lock(c, "rw", &claim{mode: history.Exclusive, waits: true}, again)
	case 4, 5:
		s.lock(c, "permits", &claim{mode: history.Permits, weight: 1 + s.rand.Int64N(2), of: 3, waits: true}, again)
	case 6:
		s.lock(c, "a", &claim{mode: history.Exclusive}, again)
	default:
		s.lock(c, "a", &claim{mode: history.Exclusive, waits: true}, again)
	}
}

// drained counts the permits when all clients are done.
func (s *sim) drained() {
	if s.working > 0 {
		s.after(10*ms, s.drained)
		return
	}
	s.numbers++
	c := &simClient{number: s.numbers}
	var taken []*claim
	var next func()
	next = func() {
		if len(taken) < 3 {
			x := &claim{mode: history.Permits, weight: 1, of: 3, waits: true}
			taken = append(taken, x)
			s.attempt(c, "permits", x, func(history.Result) { s.see(x); s.on(c, 1, next) })
			return
		}
		x := &claim{mode: history.Permits, weight: 1, of: 3}
		s.attempt(c, "permits", x, func(r history.Result) {
			if r == history.Granted {
				taken = append(taken, x)
			}
			for i, x := range taken {
				s.see(x)
				s.on(c, int64(i)+1, func() { s.release(c, "permits", x, func() {}) })
			}
			s.after(20*ms, func() { s.mark(history.Ends, 0); s.events = nil })
		})
	}
	next()
}

// attempt requests a lock and calls done with the client's result.
func (s *sim) attempt(c *simClient, key string, x *claim, done func(history.Result)) {
	c.op++
	x.client, x.hold = c, len(s.h.Holds)
	s.h.Holds = append(s.h.Holds, history.Hold{
		Op: history.Op{Client: c.number, Number: c.op}, Key: key, Mode: x.mode, Weight: x.weight, Of: x.of, Waits: x.waits,
		Called: s.now, Result: history.Unknown,
	})
	lost := !s.healed && s.chance(15)
	told := false
	tell := func(r history.Result) {
		if !told {
			told = true
			o := &s.h.Holds[x.hold]
			o.Returned, o.Result = s.now, r
			if r == history.Granted {
				o.Token = x.token
			}
			done(r)
		}
	}
	x.granted = func() {
		if x.believe = s.now + simTTL - margin; !lost {
			s.renew(c, key, x)
			s.on(c, s.wire(), func() { tell(history.Granted) })
		}
	}
	if lost {
		s.on(c, s.rand.Int64N(2*simTTL), func() {
			x.over = true
			tell(history.Unknown)
			s.after(s.wire(), func() { s.remove(key, x) }) // the caller does not know that it was removed
		})
	}
	s.after(s.wire(), func() {
		if !s.acquire(key, x) && !lost {
			s.on(c, s.wire(), func() { tell(history.Refused) })
		}
	})
}

// lock takes a lock, holds it for a while and releases it.
func (s *sim) lock(c *simClient, key string, x *claim, done func()) {
	s.attempt(c, key, x, func(r history.Result) {
		if r != history.Granted {
			done()
			return
		}
		until := s.now + s.rand.Int64N(30*ms)
		if s.chance(40) {
			until += s.rand.Int64N(4 * simTTL)
		}
		s.see(x)
		if x.mode == history.Exclusive {
			s.write(x)
		}
		var hold func()
		hold = func() {
			switch {
			case !s.see(x):
				x.over = true
				s.h.Holds[x.hold].LostAt = s.now
				done()
			case s.now < until:
				s.on(c, s.rand.Int64N(5*ms)+1, hold)
			default:
				s.release(c, key, x, done)
			}
		}
		// A client that was stopped looks at the last moment.
		if stop := x.believe - ms/2 - s.now; !s.healed && s.chance(20) && stop > 0 {
			x.over = true // no more renewals
			s.on(c, stop, hold)
			return
		}
		hold()
	})
}

// see logs that the client trusts the lease, if it does.
func (s *sim) see(x *claim) bool {
	if s.now >= x.believe && !s.bad.noClock {
		return false
	}
	o := &s.h.Holds[x.hold]
	if o.SureFrom == 0 {
		o.SureFrom = s.now
	}
	o.SureTo = s.now
	return true
}

func (s *sim) renew(c *simClient, key string, x *claim) {
	s.on(c, simTTL/3, func() {
		if x.over || s.now >= x.believe && !s.bad.noClock {
			return
		}
		sent := s.now
		s.renew(c, key, x)
		if !s.healed && s.chance(3) {
			return // lost
		}
		s.after(s.wire(), func() {
			if !slices.Contains(s.at(key).holders, x) {
				s.on(c, s.wire(), func() { x.believe = min(x.believe, s.now) })
				return
			}
			x.expires = max(x.expires, s.now+simTTL)
			s.on(c, s.wire(), func() {
				switch {
				case s.bad.renewalFromEnd:
					x.believe = max(x.believe, s.now+simTTL)
				case s.now < x.believe:
					x.believe = max(x.believe, sent+simTTL-margin)
				}
			})
		})
	})
}

func (s *sim) release(c *simClient, key string, x *claim, done func()) {
	o := &s.h.Holds[x.hold]
	o.ReleaseCalled = s.now
	x.over, x.believe = true, s.now
	lost := !s.healed && s.chance(15)
	tell := func(r history.Result) {
		o := &s.h.Holds[x.hold]
		o.ReleaseReturned, o.Released = s.now, r
		done()
	}
	s.after(s.wire(), func() {
		was := s.bad.deafRelease && s.chance(10) || s.remove(key, x)
		s.on(c, s.wire(), func() {
			switch {
			case lost:
				tell(history.Unknown)
			case was:
				tell(history.Granted)
			default:
				tell(history.Failed)
			}
		})
	})
}

func (s *sim) at(key string) *simLock {
	if s.locks[key] == nil {
		s.locks[key] = &simLock{}
	}
	return s.locks[key]
}

// acquire is the store's part of an attempt. It reports whether the claim holds or waits.
func (s *sim) acquire(key string, x *claim) bool {
	l := s.at(key)
	s.sweep(l)
	if s.tickets {
		s.token += 1 + s.rand.Int64N(3)
		x.token = s.token
	}
	switch {
	case len(l.waiters) == 0 && s.fits(l, x) || s.bad.twoWriters && s.chance(10):
		s.grant(key, l, x)
	case x.waits:
		if s.bad.lostPlace && s.chance(5) {
			return true
		}
		l.waiters = append(l.waiters, x)
	default:
		return false
	}
	return true
}

func (s *sim) fits(l *simLock, x *claim) bool {
	sum := x.weight
	for _, a := range l.holders {
		if a.mode == history.Exclusive || a.mode != x.mode && !(s.bad.readersIgnored && x.mode == history.Exclusive) {
			return false
		}
		if x.mode == history.Exclusive && !s.bad.readersIgnored {
			return false
		}
		sum += a.weight
	}
	if s.bad.extraPermit {
		sum--
	}
	return x.mode != history.Permits || sum <= x.of
}

func (s *sim) grant(key string, l *simLock, x *claim) {
	if s.bad.tokenReset && len(l.holders) == 0 && s.chance(5) {
		s.token = 0
	}
	if !s.tickets {
		s.token += 1 + s.rand.Int64N(3)
		x.token = s.token
	}
	l.holders = append(l.holders, x)
	x.expires = s.now + simTTL
	x.granted()
	s.expire(key, x)
}

// expire ends a hold that is not renewed.
func (s *sim) expire(key string, x *claim) {
	at := x.expires
	if s.bad.earlyGrant {
		at = x.believe - ms
	}
	s.after(max(at-s.now, 0), func() {
		l := s.at(key)
		switch {
		case !slices.Contains(l.holders, x), s.bad.noExpiry, s.bad.leak && x.client.dead && x.mode == history.Permits:
		case s.bad.earlyGrant && x.believe-ms > s.now, !s.bad.earlyGrant && x.expires > s.now:
			s.expire(key, x)
		default:
			s.remove(key, x)
		}
	})
}

// remove ends a claim and grants waiters that fit now.
func (s *sim) remove(key string, x *claim) bool {
	l := s.at(key)
	i := slices.Index(l.holders, x)
	switch {
	case i >= 0:
		l.holders = slices.Delete(l.holders, i, i+1)
	case s.bad.blindRelease && len(l.holders) > 0:
		l.holders = l.holders[1:]
	default:
		l.waiters = slices.DeleteFunc(l.waiters, func(w *claim) bool { return w == x })
	}
	s.sweep(l)
	for len(l.waiters) > 0 {
		n := 0
		if !s.fifo {
			n = s.rand.IntN(len(l.waiters))
		}
		w := l.waiters[n]
		if !s.fits(l, w) {
			break
		}
		l.waiters = slices.Delete(l.waiters, n, n+1)
		s.grant(key, l, w)
	}
	return i >= 0
}

// sweep removes the waiters of dead clients from the queue.
func (s *sim) sweep(l *simLock) {
	l.waiters = slices.DeleteFunc(l.waiters, func(w *claim) bool { return w.client.dead })
}

// write sends a write to the register, where it may arrive late.
func (s *sim) write(x *claim) {
	o := s.h.Holds[x.hold]
	d := s.wire()
	if !s.healed && s.chance(5) {
		d += 2 * simTTL
	}
	s.after(d, func() {
		last, ok := s.register[o.Key]
		stale := ok && (x.token < last.Token || x.token == last.Token && o.Op != last.Op)
		w := history.Write{Op: o.Op, Key: o.Key, Token: x.token, At: s.now, Accepted: !stale || s.bad.openRegister, Stale: stale}
		if !stale {
			s.register[o.Key] = w
		}
		s.h.Writes = append(s.h.Writes, w)
	})
}

// ask asks the limiter, which keeps a log.
func (s *sim) ask(c *simClient, done func()) {
	c.op++
	i := len(s.h.Decisions)
	s.h.Decisions = append(s.h.Decisions, history.Decision{
		Op: history.Op{Client: c.number, Number: c.op}, Key: "limit", N: 1 + s.rand.Int64N(2), Called: s.now, Result: history.Unknown,
	})
	lost := !s.healed && s.chance(15)
	s.after(s.wire(), func() {
		most := 5
		if s.bad.extraAdmit {
			most++
		}
		s.admitted = slices.DeleteFunc(s.admitted, func(at int64) bool { return at <= s.now-100*ms })
		r := history.Refused
		if n := int(s.h.Decisions[i].N); len(s.admitted)+n <= most {
			for range n {
				s.admitted = append(s.admitted, s.now)
			}
			r = history.Granted
		}
		s.on(c, s.wire(), func() {
			if d := &s.h.Decisions[i]; lost {
				d.Returned = s.now
			} else {
				d.Returned, d.Result = s.now, r
			}
			done()
		})
	})
}

// clone copies a history, to be changed.
func clone(h *history.History) *history.History {
	return &history.History{
		Holds: slices.Clone(h.Holds), Decisions: slices.Clone(h.Decisions), Writes: slices.Clone(h.Writes), Marks: slices.Clone(h.Marks),
	}
}

// grants returns the positions of granted and trusted holds, in the order in which the trust began.
func grants(h *history.History, ok func(*history.Hold) bool) []int {
	var at []int
	for i := range h.Holds {
		if o := &h.Holds[i]; o.Result == history.Granted && o.Sure() && ok(o) {
			at = append(at, i)
		}
	}
	slices.SortFunc(at, func(a, b int) int { return cmp.Compare(h.Holds[a].SureFrom, h.Holds[b].SureFrom) })
	return at
}
