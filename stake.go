package baton

import (
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

type stakeState uint8

const (
	asking  stakeState = iota // Acquire is under way; nothing is known
	waiting                   // a place in the store's line
	held                      // the lock
	gone                      // released, given up, or lost: final, except that a waiter asks anew
)

// A stake is what this process has in the store under one ID: a question, a
// place in line, the lock. Leases are lent from it, one after the other.
//
// Three parties move it: the goroutine that contends or holds, the renewer,
// and the store's hints. mu orders them. Mutexes are taken in the order line's
// shard, stake, renewer, and none is held during a call to the store or to the
// user.
type stake struct {
	locker *Locker

	mu        sync.Mutex
	stopWatch func()
	outcome   chan outcome // for the goroutine that waits, cap 1; nil before it does
	claim     driver.Claim
	state     stakeState
	lost      *LostError // why it is gone
	start     time.Time  // when the answer came that it is held
	token     int64      // the store's, of this grant; a push with a lower one is of an earlier
	lent      int64      // how many leases were lent from it
	trust     time.Time  // held: nobody believes in it from then on
	tenure    *Lease     // held: who has it now, nil while it changes hands
	line      *line      // the line that the tenant fronts, if any
	first     Lease      // memory for the first that is lent

	// While waiting. since is when the last request that the store answered
	// with "waiting" for this place was sent: a grant that the store then
	// makes on its own is not older.
	since  time.Time
	front  *line        // that it is asked for from the front of, if any
	outage *outage      // of the store, if there is one
	early  driver.Grant // pushed before the answer that it belongs behind

	// Renewal.
	inFlight int            // requests
	kicked   bool           // a hint came while in flight: the answer may be older
	looked   time.Time      // when the store was last asked
	frozen   bool           // not to be renewed: it changes its kind
	shown    bool           // its claim was told to the user: not to be lent again
	shortest time.Duration  // not 0: an earlier holder may renew it for so short a time
	epoch    int            // raised when its ID or its kind changes; older answers are void
	lastErr  error          // the last trouble, to explain a loss
	owed     []driver.Claim // what else the store may have of it

	entry // the renewer's
}

// outcome is what became of a place in the store's line.
type outcome struct {
	granted bool
	err     error // final; neither: the place is lost, ask anew
}

func newStake(l *Locker, key string, a ask) *stake {
	s := &stake{locker: l}
	s.claim = driver.Claim{Key: key, ID: driver.NewID(), Owner: l.ownerOf(a), Weight: a.weight, Capacity: a.capacity}
	s.entry.index = -1
	s.watch()
	return s
}

// watch begins to listen to the store's hints. Until the stake is asked for
// only hint knows of it, which does not look at stopWatch.
func (s *stake) watch() {
	if w := s.locker.watcher; w != nil {
		s.stopWatch = w.Watch(s.claim, s.hint)
	}
}

// answered takes the store's answer to Acquire, sent at the time given. It
// reports whether the stake is settled: held, and fit to be lent.
func (s *stake) answered(sent time.Time, g driver.Grant) (settled bool) {
	now := bootclock.Coarse()
	s.locker.latency.saw(now.Sub(sent))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claim.Ticket = g.Ticket
	s.state, s.since, s.looked = waiting, sent, sent
	switch early := s.early; {
	case !g.Waiting:
		if trust := sent.Add(s.trustFor(g.TTL)); trust.Sub(now) >= s.trustFor(s.locker.storeTTL())/2 {
			s.holdLocked(now, g, trust, s.locker.renewAt(sent, s.ttlFor(g.TTL)))
			break
		}
		// The answer was so long under way that the grant is to be confirmed.
		s.token = g.Token
		s.locker.renewer.schedule(s, now)
	case early.Token >= g.Ticket && early.Token > 0:
		s.pushedLocked(now, early)
	default:
		s.pollLocked(g)
	}
	s.early = driver.Grant{}
	s.kickedLocked()
	settled = s.state == held
	if !settled {
		s.outcome = make(chan outcome, 1)
	}
	return settled
}

// pushedLocked takes a grant that the store made on its own, for a short claim,
// which may be trusted from s.since on.
//
// It is relied on if so much of it is left that it can be renewed in time, and
// renewed at once if there is no time to lose. Otherwise it is a hint: the store
// is asked, and says "held", however late; nobody believes in it until then.
// That is so, too, if more time than usual is wanted to stop working, or if a
// crash is to leave the lock taken for LockDelay.
func (s *stake) pushedLocked(now time.Time, g driver.Grant) {
	l := s.locker
	trust := s.since.Add(g.TTL - defaultMargin(g.TTL))
	left, twice := trust.Sub(now), 2*l.latency.last()
	if left < max(g.TTL/3, twice) || l.cfg.LockDelay > 0 || l.cfg.Margin > defaultMargin(l.cfg.TTL) {
		s.token = g.Token
		l.renewer.schedule(s, now)
		return
	}
	due := now
	if left/3 > twice {
		due = now.Add(left / 3) // a short section is over before that
	}
	s.holdLocked(now, g, trust, due)
}

// holdLocked makes the stake held, to be believed in until trust and renewed
// when due.
func (s *stake) holdLocked(now time.Time, g driver.Grant, trust, due time.Time) {
	s.state, s.start, s.trust = held, now, trust
	s.outage = nil
	s.token, s.lent = g.Token, 0
	s.claim.Ticket = g.Ticket
	s.locker.renewer.schedule(s, due)
	s.settleLocked(outcome{granted: true})
}

// pollLocked plans when the position in the queue is confirmed next, after an
// answer that says when the store wants that. It counts from the last request,
// not from its answer, which may have been long under way. The slower the store,
// the more positions share a request: connections to it are few.
func (s *stake) pollLocked(g driver.Grant) {
	rn, every, slow := &s.locker.renewer, again(g), s.locker.latency.last()
	due := s.looked.Add(max(every, min(slow, pollAgain)))
	rn.schedule(s, rn.batch(due, max(every/10, min(slow, every))))
}

// ttlFor is how much of a ttl that the store has granted counts. Where a stake
// was taken over under the ID that it had, a renewal by the one before may be
// late, and set the end that it was meant to.
func (s *stake) ttlFor(ttl time.Duration) time.Duration {
	if s.shortest > 0 {
		return min(ttl, s.shortest)
	}
	return ttl
}

func (s *stake) trustFor(ttl time.Duration) time.Duration {
	return s.locker.trustFor(s.ttlFor(ttl))
}

// hint is called by the store, from any goroutine.
func (s *stake) hint(h driver.Hint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case asking:
		if !h.Granted {
			s.kicked = true
		} else if h.Grant.Token > s.early.Token {
			s.early = h.Grant
		}
	case waiting:
		// A grant below the ticket belongs to an earlier life in the queue.
		if !h.Granted || h.Grant.Token < max(s.claim.Ticket, s.token) {
			s.kickLocked()
			return
		}
		s.kicked = false
		s.pushedLocked(bootclock.Coarse(), h.Grant)
	case held:
		if !h.Granted { // the news is that it may be lost
			s.kickLocked()
		}
	}
}

// kickLocked has the store asked at once, unless it was just now.
func (s *stake) kickLocked() {
	if s.inFlight > 0 {
		s.kicked = true
		return
	}
	s.locker.renewer.advance(s, s.looked.Add(minPause))
}

// kickedLocked makes good for a hint that came while an answer was under way.
func (s *stake) kickedLocked() {
	if s.kicked {
		s.kicked = false
		s.kickLocked()
	}
}

func (s *stake) settleLocked(o outcome) {
	select {
	case s.outcome <- o:
	default: // nobody waits any more
	}
}

// rejoin makes the stake of a waiter that lost its place a new one. The new
// ID keeps whatever is still under way for the old one from being taken for
// its own.
func (s *stake) rejoin() {
	s.mu.Lock()
	s.claim.ID, s.claim.Ticket = driver.NewID(), 0
	s.state, s.lost = asking, nil
	s.early, s.lastErr, s.token = driver.Grant{}, nil, 0
	s.outage = nil
	s.kicked, s.inFlight = false, 0
	s.epoch++
	s.mu.Unlock()
	s.watch()
}

// quit ends a stake that nobody contends for or holds any more, and returns
// the claim for the store to forget. ok is false if it was gone already.
func (s *stake) quit() (c driver.Claim, ok bool) {
	s.mu.Lock()
	if s.state == gone {
		s.mu.Unlock()
		return c, false
	}
	s.state = gone
	c = s.claim
	stop := s.stopWatch
	s.stopWatch = nil
	s.locker.renewer.remove(s)
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	return c, true
}

// lend makes a lease of the stake for the one goroutine that was given it.
// ln is the line that the caller fronts and goes on fronting. The time of a
// part begins later, by limitFrom. It returns nil if the stake has been lost.
func (s *stake) lend(ln *line, part bool) *Lease {
	now := bootclock.Coarse()
	s.mu.Lock()
	if s.state != held || !now.Before(s.trust) {
		after := s.loseLocked(Expired) // nothing, if it was lost before
		s.mu.Unlock()
		after()
		return nil
	}
	t := &s.first
	if s.lent > 0 {
		t = new(Lease)
	} else if ln != nil {
		ln.holder.Store(s)
	}
	*t = Lease{stake: s, since: now, token: s.token*tokensPerGrant + s.lent, depth: 1}
	s.lent++
	s.tenure, s.line = t, ln
	if !part {
		t.limitLocked(now)
	}
	s.mu.Unlock()
	return t
}

// limitFrom begins the time that the lease may be held. That of a nested lease
// began with its outer one.
func (l *Lease) limitFrom(now time.Time) {
	l.stake.mu.Lock()
	defer l.stake.mu.Unlock()
	if l.outer == nil && l.stake.tenure == l {
		l.limitLocked(now)
	}
}

func (l *Lease) limitLocked(now time.Time) {
	if lk := l.stake.locker; lk.cfg.MaxHold > 0 {
		l.limit = now.Add(lk.cfg.MaxHold)
		lk.renewer.advance(l.stake, l.limit)
	}
}

// endLocked is when the belief in the stake ends, and why.
func (s *stake) endLocked() (time.Time, Cause) {
	if t := s.tenure; t != nil && !t.limit.IsZero() && t.limit.Before(s.trust) {
		return t.limit, Overheld
	}
	return s.trust, Expired
}

// loseLocked ends the stake. The caller runs what it returns after unlocking.
func (s *stake) loseLocked(cause Cause) (after func()) {
	if s.state == gone {
		return func() {}
	}
	s.state = gone
	t, ln := s.tenure, s.line
	s.tenure, s.line = nil, nil
	stop := s.stopWatch
	s.stopWatch = nil
	s.locker.renewer.remove(s)
	s.lost = &LostError{Key: s.claim.Key, Token: s.token*tokensPerGrant + max(0, s.lent-1), Cause: cause}
	if cause == Expired {
		s.lost.Err = s.lastErr
	}
	var open contexts
	if t != nil {
		open = t.closeLocked(s.lost)
	}
	s.settleLocked(outcome{})
	lost, c := s.lost, s.claim
	return func() {
		open.end(lost)
		ln.leave()
		if stop != nil {
			stop()
		}
		l := s.locker
		switch {
		case t == nil && cause == Expired:
			// Nobody had a lease of it, so nobody else need wait for its end.
			l.abandon(c)
			return
		case t == nil || cause == Detached:
			return
		}
		// The user's code must not delay the losses of others.
		go func() {
			if f := l.cfg.Trace.Lost; f != nil {
				f(lost)
			}
			l.cfg.Logger.Error("lock lost", l.logLock(lost.Key, lost.Token), "cause", cause.String(), "error", lost.Err)
		}()
	}
}

// lostError says why the stake is gone.
func (s *stake) lostError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		return nil
	}
	return s.lost
}

// heldError describes the holder of the line ln to one who tries. It is nil
// if that is not s, or not any more.
func (s *stake) heldError(ln *line) *HeldError {
	now := bootclock.Coarse()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != ln {
		return nil
	}
	return &HeldError{
		Key: s.claim.Key, Owner: s.claim.Owner, Waiting: int(ln.waiting.Load()),
		Age: now.Sub(s.tenure.since), Remaining: s.trust.Sub(now),
	}
}
