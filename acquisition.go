package baton

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/leasemath"
)

// phase is the state of an acquisition. The diagram is in doc.go.
type phase uint8

const (
	requesting  phase = iota // Acquire is under way; nothing is known
	queued                   // a position in the queue, or a grant that cannot be believed in yet
	held                     // the lock
	downgrading              // held, while the store turns the exclusive lock into a read lock
	ended                    // released, given up, or lost: final, except that a waiter may restart it
)

// An acquisition is a process's way through one key under one ID: a request, a
// position in the store's queue, the lock, the end. It is a pure machine. An event
// is a method that takes the moment and what is new, and returns the effects that
// the caller, its keeper, performs. It has no mutex and no clock, and calls no
// store.
//
// After every event, wake says when to call due. The argument slow of some events
// is how long the store has lately taken to answer, if it is slow.
type acquisition struct {
	terms *terms
	claim driver.Claim
	most  int // Request.MaxWaiting
	phase phase
	wake  moment // zero: never

	// Requesting.
	requested bool         // an attempt with this ID has failed
	retry     bool         // it may have taken effect
	early     driver.Grant // pushed before the answer to the request that led to it
	outage    outage       // of the store; kept while queued, too

	// Queued: when the last request was sent that the store answered with "waiting"
	// for this position. A grant that the store then makes on its own is not older
	// than that.
	confirmed moment

	// Questions to the store whether the claim stands.
	inFlight int
	hinted   bool   // a hint came while a question was in flight; the answer may be older than the hint
	asked    moment // when the store was last asked
	round    int    // rises when the ID or the kind changes; answers to earlier rounds are ignored
	lastErr  error  // the last error, to explain a loss

	// Held.
	token     int64 // the store's, of this grant; a push with a lower one is of an earlier grant
	issued    int64 // how many leases were issued
	granted   moment
	deadline  moment        // the process does not believe in the grant from then on
	ttlCap    time.Duration // if not 0, a late renewal by an earlier holder may set a TTL this short
	leased    bool          // a goroutine has the lease; false during a hand-over
	refs      int           // how many Unlocks end the lease
	limit     moment        // the end of Config.MaxHold; zero: none
	keepUntil moment        // the end of MinHold; zero: none
	leaving   bool          // unlocked before that: the store is to keep the claim
	pinned    bool          // the user knows its claim: no other lease is issued

	// Ended.
	lost    *LostError     // if not nil, why it ended without an unlock or giving up
	pending []driver.Claim // claims that the store is to forget when the holder unlocks
}

// effects are a set of what follows from an event. Their details are in the
// acquisition.
type effects uint16

const (
	grantWaiter    effects = 1 << iota // a lease can be issued to the goroutine that waits
	startAgain                         // its position or grant is lost: restart, and request again
	failWaiter                         // the waiter gets lastErr: the store is out of reach
	retryRequest                       // repeat the request after a pause
	askStore                           // put the question that came with it to the store
	noteOutage                         // tell the local queue about outage, or that there is none
	endLease                           // end the lease's contexts and close its done channel
	leaveQueue                         // the next goroutine of the local queue becomes its front
	mayHandOver                        // the lock may go to the next goroutine of the local queue
	stopWatching                       // for hints
	reportLoss                         // to the Events and the Logger
	releaseClaim                       // make the store forget claim
	releasePending                     // make the store forget the claims in pending
)

// request begins an attempt and returns what to send. wait asks for a position.
func (a *acquisition) request(now moment, wait bool, slow time.Duration) driver.Request {
	if wait && slow > pollAgain {
		// The first renewal of the position cannot wait for the answer.
		a.wake = now.add(pollAgain)
	}
	return driver.Request{Claim: a.claim, TTL: a.terms.storeTTL(), Queue: wait, MaxWaiting: a.most, Retry: a.retry}
}

// requestFailed takes the store's error. patient says that the caller still wants
// the lock.
func (a *acquisition) requestFailed(now, sent moment, err error, patient bool) effects {
	if a.requested && errors.Is(err, driver.ErrLost) {
		return a.end() | startAgain // the store has ended that attempt
	}
	a.requested, a.retry = true, a.retry || unknown(err)
	switch {
	case final(err):
		return a.storeAnswers()
	case !patient:
		return 0
	case a.outage.failed(sent, err).over(now, a.terms.patience()):
		return noteOutage
	}
	return noteOutage | retryRequest
}

// answered takes the store's answer to a request.
func (a *acquisition) answered(now, sent moment, g driver.Grant, slow time.Duration) effects {
	e := a.storeAnswers()
	early := a.early
	a.early, a.retry = driver.Grant{}, false
	a.phase, a.claim.Ticket = queued, g.Ticket
	a.confirmed, a.asked = sent, sent
	switch {
	case !g.Waiting:
		deadline := sent.add(a.trustFor(g.TTL))
		if deadline.sub(now) < a.trustFor(a.terms.storeTTL())/2 {
			// The answer took so long that the grant must be renewed before use.
			a.token, a.wake = g.Token, now
			break
		}
		e |= a.hold(now, g, deadline, a.terms.renewAt(sent, a.capped(g.TTL)))
	case early.Token >= g.Ticket && early.Token > 0:
		e |= a.pushed(now, early, slow)
	default:
		a.pollNext(g, slow)
	}
	a.lookAfterHint()
	return e
}

// hint takes the store's "look again", which may carry a grant that the store has
// made on its own.
func (a *acquisition) hint(now moment, h driver.Hint, slow time.Duration) effects {
	switch a.phase {
	case requesting:
		if !h.Granted {
			a.hinted = true
		} else if h.Grant.Token > a.early.Token {
			a.early = h.Grant
		}
	case queued:
		// A grant below the ticket belongs to an earlier position: see driver.Grant.
		if !h.Granted || h.Grant.Token < max(a.claim.Ticket, a.token) {
			a.lookSoon()
			return 0
		}
		a.hinted = false
		return a.pushed(now, h.Grant, slow)
	case held, downgrading:
		if !h.Granted { // it says that the lock may be lost
			a.lookSoon()
		}
	}
	return 0
}

// pushed takes a short grant that the store made on its own. Trust in it counts
// from when the last request was sent that renewed the position.
//
// If enough of the grant is left to renew it in time, the acquisition holds the
// lock; it renews at once if there is no time to lose. Otherwise the grant is only
// a hint: the acquisition asks the store, which says "held", however late; until
// then the process does not believe in the grant.
func (a *acquisition) pushed(now moment, g driver.Grant, slow time.Duration) effects {
	deadline := a.confirmed.add(g.TTL - leasemath.Margin(g.TTL))
	left := deadline.sub(now)
	if left < max(g.TTL/3, 2*slow) || !a.terms.shortClaims() {
		a.token, a.wake = g.Token, now
		return 0
	}
	renewAt := now
	if left/3 > 2*slow {
		renewAt = now.add(left / 3) // a short critical section ends before that
	}
	return a.hold(now, g, deadline, renewAt)
}

// hold begins to believe in a grant.
func (a *acquisition) hold(now moment, g driver.Grant, deadline, renewAt moment) effects {
	a.phase, a.claim.Ticket = held, g.Ticket
	a.token, a.issued = g.Token, 0
	a.granted, a.deadline, a.wake = now, deadline, renewAt
	return a.storeAnswers() | grantWaiter
}

// due is called when wake has come. With askStore the caller puts the question to
// the store.
func (a *acquisition) due(now moment) (question, effects) {
	if a.wake == 0 || now < a.wake {
		return question{}, 0 // another event has changed wake
	}
	a.wake = 0
	q := question{claim: a.claim, phase: a.phase, round: a.round, ttl: a.terms.storeTTL(), patience: pollPatience}
	next := now.add(pollAgain)
	switch a.phase {
	case held, downgrading:
		end, cause := a.believedUntil()
		if now >= end {
			return q, a.lose(cause)
		}
		q.deadline = a.deadline
		// A request without an answer is not given up; another one is sent beside
		// it. The store may have become slow or far away since its last answer, and
		// every request that is given up then costs a new connection, too.
		left := a.deadline.sub(now)
		again := max(min(left/2, a.terms.ttl/4), 2*minPause)
		q.patience = max(again, left*7/8)
		next = end
		if q.patience > again {
			next = min(end, now.add(again))
		}
	case ended:
		return q, 0
	}
	a.wake = next
	if a.phase == downgrading || a.inFlight >= maxInFlight {
		return q, 0
	}
	a.inFlight++
	a.asked = now
	return q, askStore
}

// renewed takes the store's answer to a question that was sent at the moment sent.
func (a *acquisition) renewed(now, sent moment, q question, r driver.Renewal, slow time.Duration) effects {
	if a.round != q.round {
		return 0
	}
	if !q.beside {
		a.inFlight--
	}
	if a.phase == ended || q.beside && r.State == driver.Unknown {
		return 0
	}
	deadline := sent.add(a.trustFor(r.Grant.TTL))
	switch least := a.trustFor(a.terms.storeTTL()) / 4; {
	case r.State == driver.Unknown:
		return a.unanswered(now, sent, blame(context.Background(), r.Err))
	case a.phase == queued && r.State == driver.Held && deadline.sub(now) < least:
		return a.unanswered(now, sent, fmt.Errorf("%w: its answer took %v, too long for a lease of %v", ErrUnavailable, now.sub(sent).Round(time.Millisecond), a.terms.ttl))
	}
	a.lastErr = nil
	switch a.phase {
	case queued:
		return a.storeAnswers() | a.renewedQueued(now, sent, q, r, slow)
	case held:
		return a.renewedHeld(now, sent, q, r)
	}
	return 0
}

func (a *acquisition) renewedQueued(now, sent moment, q question, r driver.Renewal, slow time.Duration) effects {
	switch {
	case r.State == driver.Held:
		return a.hold(now, r.Grant, sent.add(a.trustFor(r.Grant.TTL)), a.terms.renewAt(sent, a.capped(r.Grant.TTL)))
	case r.State == driver.Waiting:
		a.confirmed, a.claim.Ticket = sent, r.Grant.Ticket
		a.pollNext(r.Grant, slow)
		a.lookAfterHint()
	case q.phase == requesting: // the question may have overtaken the request for the position
		a.wakeBy(now)
	default:
		return a.lose(Gone)
	}
	return 0
}

func (a *acquisition) renewedHeld(now, sent moment, q question, r driver.Renewal) effects {
	if end, cause := a.believedUntil(); now >= end {
		return a.lose(cause)
	}
	switch {
	case r.State == driver.Held:
		a.claim.Ticket = r.Grant.Ticket
		a.deadline = max(a.deadline, sent.add(a.trustFor(r.Grant.TTL)))
		end, _ := a.believedUntil()
		a.wake = min(end, a.terms.renewAt(sent, a.capped(r.Grant.TTL)))
		a.lookAfterHint()
	case q.phase == held:
		return a.lose(Gone)
	case r.State == driver.Lost: // the answer is about the position that led to the grant
		a.lookSoon()
	} // "waiting" was true before the grant
	return 0
}

// unanswered plans another question after the store could not answer one.
func (a *acquisition) unanswered(now, sent moment, err error) effects {
	a.lastErr = err
	switch a.phase {
	case held:
		end, _ := a.believedUntil()
		again := min(max(end.sub(now)/8, minPause), maxPause)
		a.wake = min(end, now.add(again))
	case queued:
		if a.outage.failed(sent, err).over(now, a.terms.patience()) {
			return noteOutage | failWaiter
		}
		a.wake = now.add(a.terms.pause(now.sub(a.outage.since)))
		return noteOutage
	}
	return 0
}

// passOn takes note that another goroutine of the process, which joined the local queue
// at came, waits for it now in place of the one that did: the store learns nothing. It
// reports whether there is anything to wait for: a position in the store's queue, or
// perhaps there.
func (a *acquisition) passOn(came moment) bool {
	if a.phase != queued && !(a.phase == requesting && a.retry) {
		return false
	}
	a.outage = a.outage.asSeenBy(came)
	return true
}

// quit ends an acquisition that is neither waited for nor held any more. With
// releaseClaim the store may still know it and is to forget it.
func (a *acquisition) quit() effects {
	if a.phase == ended {
		return 0
	}
	known := a.phase != requesting || a.retry
	e := a.end()
	if known {
		e |= releaseClaim
	}
	return e
}

// lose ends an acquisition whose lease or position ended without an unlock.
func (a *acquisition) lose(cause Cause) effects {
	if a.phase == ended {
		return 0
	}
	a.lost = &LostError{Key: a.claim.Key, Token: a.leaseToken(), Cause: cause}
	if cause == Expired {
		a.lost.Err = a.lastErr
	}
	e := a.end() | startAgain
	switch {
	case !a.leased && cause == Expired:
		// No lease was issued for it, so that no holder's end has to be awaited.
		return e | releaseClaim
	case !a.leased:
		return e
	}
	a.leased = false
	if cause != Detached {
		e |= reportLoss
	}
	return e | endLease | leaveQueue
}

func (a *acquisition) end() effects {
	a.phase, a.wake = ended, 0
	return stopWatching
}

// restart turns the acquisition of a waiter that has lost its position into a new
// one. The new ID separates it from requests for the old one that are still under
// way.
func (a *acquisition) restart(id string) {
	a.claim.ID, a.claim.Ticket = id, 0
	a.phase, a.lost = requesting, nil
	a.requested, a.retry, a.early = false, false, driver.Grant{}
	a.lastErr, a.token = nil, 0
	a.hinted = false
	a.newRound()
}

func (a *acquisition) newRound() {
	a.round++
	a.inFlight = 0
}

// storeAnswers ends an outage.
func (a *acquisition) storeAnswers() effects {
	if a.outage.tries == 0 {
		return 0
	}
	a.outage = outage{}
	return noteOutage
}

// wakeBy plans a call of due at the moment given, or before.
func (a *acquisition) wakeBy(m moment) {
	if a.wake == 0 || m < a.wake {
		a.wake = m
	}
}

// lookSoon plans a question to the store: now, or minPause after the last one. If
// one is in flight, it only notes the hint.
func (a *acquisition) lookSoon() {
	if a.inFlight > 0 {
		a.hinted = true
		return
	}
	a.wakeBy(a.asked.add(minPause))
}

// lookAfterHint handles a hint that came while an answer was in flight.
func (a *acquisition) lookAfterHint() {
	if a.hinted {
		a.hinted = false
		a.lookSoon()
	}
}

// pollNext plans the next renewal of the position in the store's queue. The time
// counts from when the last question was sent, because its answer may have been
// long under way. The slower the store, the more positions share a request: the
// process has few connections to it.
func (a *acquisition) pollNext(g driver.Grant, slow time.Duration) {
	every := pollEvery(g)
	a.wake = a.asked.add(max(every, min(slow, pollAgain))).floor(max(every/10, min(slow, every)))
}

// believedUntil is when the process stops believing in the grant, and why.
func (a *acquisition) believedUntil() (moment, Cause) {
	if a.leased && a.limit > 0 && a.limit < a.deadline {
		return a.limit, Overheld
	}
	return a.deadline, Expired
}

// capped is how much of a granted ttl counts. If the lock was attached under the ID
// that it had, a late renewal by the earlier holder may still set the end that the
// earlier holder asked for.
func (a *acquisition) capped(ttl time.Duration) time.Duration {
	if a.ttlCap > 0 {
		return min(ttl, a.ttlCap)
	}
	return ttl
}

func (a *acquisition) trustFor(ttl time.Duration) time.Duration {
	return a.terms.trustFor(a.capped(ttl))
}
