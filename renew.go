package baton

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

const (
	// minPause is the floor under every pause: one that shrinks with the
	// time that is left would become a busy loop just before a loss.
	minPause = 5 * time.Millisecond

	maxPause = 500 * time.Millisecond

	// maxSleep bounds how late a machine's waking up is noticed.
	maxSleep = time.Second

	// pollAgain is how soon a waiter asks again beside a request that was not
	// answered. The request is not given up: a store that is far away answers
	// all, and a position in its queue, or a grant of its own, lives as long as
	// the requests arrive one after the other in time.
	pollAgain = 700 * time.Millisecond

	// pollPatience is when such a request is given up. An answer that took
	// longer would be about a position that is gone, or that a later request
	// has confirmed.
	pollPatience = driver.WaiterTTL + driver.ClaimTTL

	// maxInFlight bounds the requests about one claim at a time.
	maxInFlight = 5
)

// A renewer keeps all stakes of a Locker alive and ends those that it could
// not, in the order of their deadlines. It runs when something is due and
// never waits for the store, so that a renewal that hangs delays nobody's
// loss; between its runs it is a timer and no goroutine.
//
// Due times are rounded down, so that what falls due at about the same time
// goes in one request.
type renewer struct {
	locker *Locker
	base   time.Time // due times are rounded relative to it

	mu      sync.Mutex
	heap    entryHeap
	running bool
	timer   *time.Timer
	armed   bool
	wakeAt  time.Time // when the timer fires, if armed
}

// entry is a stake's place in the renewer's heap, guarded by renewer.mu.
type entry struct {
	due   time.Time
	index int // -1: not in the heap
}

func (r *renewer) init(l *Locker) { r.locker, r.base = l, bootclock.Coarse() }

// schedule has s looked at when due, whatever was planned before.
func (r *renewer) schedule(s *stake, due time.Time) { r.plan(s, due, false) }

// advance has s looked at when due, or before.
func (r *renewer) advance(s *stake, due time.Time) { r.plan(s, due, true) }

func (r *renewer) plan(s *stake, due time.Time, onlySooner bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.index < 0:
		s.due = due
		heap.Push(&r.heap, s)
	case onlySooner && s.due.Before(due):
		return
	default:
		s.due = due
		heap.Fix(&r.heap, s.index)
	}
	// A timer that is set too early is left alone: it costs one look.
	if !r.running && (!r.armed || due.Before(r.wakeAt)) {
		r.armLocked(due, bootclock.Coarse())
	}
}

func (r *renewer) remove(s *stake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.index >= 0 {
		heap.Remove(&r.heap, s.index)
	}
}

func (r *renewer) armLocked(due, now time.Time) {
	pause := min(max(due.Sub(now), 0), maxSleep)
	r.armed, r.wakeAt = true, now.Add(pause)
	if r.timer == nil {
		r.timer = time.AfterFunc(pause, r.run)
	} else {
		r.timer.Reset(pause)
	}
}

// batch rounds a due time down, so that what falls due within one quantum is
// looked at together.
func (r *renewer) batch(due time.Time, quantum time.Duration) time.Time {
	if quantum > 0 {
		due = due.Add(-(due.Sub(r.base) % quantum))
	}
	return due
}

// renewAt is when a grant of ttl is renewed: a third of it after it was asked
// for, a LockDelay not counted, or earlier. All leases are renewed at the same
// ticks, so that a period takes one request however many there are.
func (l *Locker) renewAt(sent time.Time, ttl time.Duration) time.Time {
	every := min(ttl, l.cfg.TTL) / 3
	return l.renewer.batch(sent.Add(every), every)
}

// run is called by the timer.
func (r *renewer) run() {
	r.mu.Lock()
	if r.running { // the one that runs looks again before it ends
		r.mu.Unlock()
		return
	}
	r.running = true
	for {
		now := bootclock.Now()
		var due []*stake
		for len(r.heap) > 0 && !now.Before(r.heap[0].due) {
			due = append(due, heap.Pop(&r.heap).(*stake))
		}
		if len(due) == 0 {
			r.running, r.armed = false, false
			if len(r.heap) > 0 {
				r.armLocked(r.heap[0].due, now)
			}
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		var jobs []renewal
		for _, s := range due {
			if j, ok := s.tick(now); ok {
				jobs = append(jobs, j)
			}
		}
		if len(jobs) > 0 {
			go r.renew(jobs)
		}
		r.mu.Lock()
	}
}

// renewal is one claim of a request that renews.
type renewal struct {
	stake    *stake
	epoch    int
	claim    driver.Claim
	state    stakeState    // when it was asked for
	patience time.Duration // for the answer
}

// tick looks at a stake that is due, and says if it is to be renewed.
func (s *stake) tick(now time.Time) (renewal, bool) {
	after := func() {}
	defer func() { after() }()
	s.mu.Lock()
	defer s.mu.Unlock()
	j := renewal{stake: s, epoch: s.epoch, claim: s.claim, state: s.state}
	next := now.Add(pollAgain)
	switch s.state {
	case held:
		end, cause := s.endLocked()
		if !now.Before(end) {
			after = s.loseLocked(cause)
			return j, false
		}
		// A request that is not answered is asked again beside it, not given up:
		// the store may have become slow or far away since the last one, and then
		// each that is given up costs a new connection, too.
		left := s.trust.Sub(now)
		again := max(min(left/2, s.locker.cfg.TTL/4), 2*minPause)
		j.patience = max(again, left*7/8)
		next = end
		if at := now.Add(again); j.patience > again && at.Before(end) {
			next = at
		}
	case waiting, asking:
		j.patience = pollPatience
	default:
		return j, false
	}
	s.locker.renewer.schedule(s, next)
	if s.frozen || s.inFlight >= maxInFlight {
		return j, false
	}
	s.inFlight++
	s.looked = now
	return j, true
}

// renew asks the store about a batch, once.
func (r *renewer) renew(jobs []renewal) {
	l := r.locker
	claims := make([]driver.Claim, len(jobs))
	patience := jobs[0].patience
	for i, j := range jobs {
		claims[i] = j.claim
		patience = min(patience, j.patience)
	}
	sent := bootclock.Now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	answers := l.store.Renew(ctx, claims, l.storeTTL())
	cancel()
	l.latency.saw(bootclock.Now().Sub(sent))

	failed := 0
	for i, j := range jobs {
		if answers[i].State == driver.Unknown {
			failed++
		}
		j.stake.renewed(sent, j, answers[i])
	}
	if f := l.cfg.Trace.Renewed; f != nil {
		f(len(jobs), failed, bootclock.Now().Sub(sent))
	}
	if failed > 0 {
		l.cfg.Logger.Warn("locks could not be renewed, will try again", "store", l.traits.Store, "failed", failed, "of", len(jobs), "error", firstError(answers))
	}
}

func firstError(answers []driver.Renewal) error {
	for _, a := range answers {
		if a.Err != nil {
			return a.Err
		}
	}
	return nil
}

// renewed takes the store's answer about s.
func (s *stake) renewed(sent time.Time, j renewal, r driver.Renewal) {
	after := func() {}
	defer func() { after() }()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != j.epoch {
		return // about another life
	}
	s.inFlight--
	rn := &s.locker.renewer
	now := bootclock.Now()

	trust := sent.Add(s.trustFor(r.Grant.TTL))
	switch least := s.trustFor(s.locker.storeTTL()) / 4; {
	case r.State == driver.Unknown:
		s.lastErr = blame(context.Background(), r.Err)
		s.retryLocked(sent, now)
		return
	case s.state == waiting && r.State == driver.Held && trust.Sub(now) < least:
		s.lastErr = fmt.Errorf("%w: its answer took %v, too long for a lease of %v", ErrUnavailable, now.Sub(sent).Round(time.Millisecond), s.locker.cfg.TTL)
		s.retryLocked(sent, now)
		return
	}
	if s.lastErr = nil; s.outage != nil {
		s.outage = nil
		s.front.answered()
	}
	switch s.state {
	case waiting:
		switch {
		case r.State == driver.Held:
			s.holdLocked(now, r.Grant, trust, s.locker.renewAt(sent, s.ttlFor(r.Grant.TTL)))
		case r.State == driver.Waiting:
			s.since, s.claim.Ticket = sent, r.Grant.Ticket
			s.pollLocked(r.Grant)
			s.kickedLocked()
		case j.state == asking: // it may have overtaken the request for the position
			rn.advance(s, now)
		default:
			after = s.loseLocked(Gone)
		}
	case held:
		if end, cause := s.endLocked(); !now.Before(end) {
			after = s.loseLocked(cause)
			return
		}
		if r.State != driver.Held {
			if j.state == held {
				after = s.loseLocked(Gone)
			} else if r.State == driver.Lost { // by the position that it was
				s.kickLocked()
			}
			return // the answer "waiting" is older than the grant
		}
		s.claim.Ticket = r.Grant.Ticket
		if trust.After(s.trust) {
			s.trust = trust
		}
		due := s.locker.renewAt(sent, s.ttlFor(r.Grant.TTL))
		if end, _ := s.endLocked(); end.Before(due) {
			due = end
		}
		rn.schedule(s, due)
		s.kickedLocked()
	}
}

// retryLocked plans another try after the store could not answer.
func (s *stake) retryLocked(sent, now time.Time) {
	l := s.locker
	switch s.state {
	case held:
		end, _ := s.endLocked()
		if at := now.Add(min(max(end.Sub(now)/8, minPause), maxPause)); at.Before(end) {
			end = at
		}
		l.renewer.schedule(s, end)
	case waiting:
		if s.outage == nil {
			s.outage = new(outage)
		}
		s.outage.failed(s.front, sent, s.lastErr)
		if s.outage.over(now, l.patience()) {
			s.settleLocked(outcome{err: s.lastErr})
			return
		}
		l.renewer.schedule(s, now.Add(pause(now.Sub(s.outage.since))))
	}
}

// again is how soon the place in line is to be confirmed.
func again(g driver.Grant) time.Duration {
	if g.Again > 0 {
		return min(max(g.Again, time.Millisecond), driver.RefreshEvery)
	}
	return driver.RefreshEvery
}

// entryHeap orders stakes by the time they are due.
type entryHeap []*stake

func (h entryHeap) Len() int           { return len(h) }
func (h entryHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h entryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index = i; h[j].index = j }
func (h *entryHeap) Push(x any)        { s := x.(*stake); s.index = len(*h); *h = append(*h, s) }
func (h *entryHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	s.index = -1
	return s
}
