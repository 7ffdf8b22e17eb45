package acquire

import (
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/leasemath"
)

// A phase is the state of a Machine.
type phase uint8

const (
	requesting  phase = iota // Acquire is under way
	queued                   // a position in the queue, or a grant that is not certain yet
	held                     // the lock
	downgrading              // held, while the store turns the exclusive lock into a read lock
	ended                    // released, given up, or lost: final, but a waiter may restart it
)

// A Machine is one acquisition: one ID for one key, from the first request over a
// position in the store's queue and the lock to the end. An event is a method that takes
// the moment and the news, and returns the effects that the caller performs. After every
// event, Wake is when to call Due. The argument slow of some events is the Latency of the
// store.
type Machine struct {
	terms      *Terms
	claim      driver.Claim
	maxWaiting int // Request.MaxWaiting
	phase      phase
	wake       Moment // zero: never

	// Requesting.
	requested bool         // an attempt with this ID has failed
	retry     bool         // that attempt may have taken effect
	early     driver.Grant // a grant pushed before the answer to the request that led to it
	outage    Outage       // kept while queued, too

	// Queued: when the last request was sent that the store answered with "waiting" for
	// this position. A grant that the store makes afterwards counts from then.
	confirmed Moment

	// Questions: requests that renew the claim.
	inFlight int
	hinted   bool   // a hint came while a question was in flight; its answer may be older than the hint
	asked    Moment // when the store was last asked
	round    int    // rises when the ID or the kind changes; answers of earlier rounds are ignored
	lastErr  error  // the last error, to explain a loss

	// Held.
	token     int64 // the store's, of this grant; a push with a lower one is of an earlier grant
	issued    int64 // how many leases were issued
	granted   Moment
	deadline  Moment        // the process does not rely on the grant from then on
	ttlCap    time.Duration // if not 0: the TTL that a late renewal of an earlier holder may set
	leased    bool          // a goroutine has the lease; false during a hand-over
	refs      int           // how many Unlocks end the lease
	limit     Moment        // the end of Config.MaxHold; zero: none
	keepUntil Moment        // the end of MinHold; zero: none
	leaving   bool          // unlocked before keepUntil: the store is to keep the claim
	pinned    bool          // the user knows the claim: no other lease is issued

	// Ended.
	lost    *Loss          // why it ended, if it was lost
	pending []driver.Claim // for the store to forget when the holder unlocks
}

// New makes the acquisition of claim. maxWaiting is Request.MaxWaiting. ttlCap is 0
// unless an earlier holder of the claim may still renew it; then it is the shortest TTL
// of such a renewal. outage is the present outage of the store.
func New(terms *Terms, claim driver.Claim, maxWaiting int, ttlCap time.Duration, outage Outage) Machine {
	return Machine{terms: terms, claim: claim, maxWaiting: maxWaiting, ttlCap: ttlCap, outage: outage}
}

// Getters, named like their fields.

// Key is constant, as are Terms and MaxWaiting.
func (a *Machine) Key() string { return a.claim.Key }

func (a *Machine) Terms() *Terms       { return a.terms }
func (a *Machine) MaxWaiting() int     { return a.maxWaiting }
func (a *Machine) Claim() driver.Claim { return a.claim }
func (a *Machine) Wake() Moment        { return a.wake }
func (a *Machine) Outage() Outage      { return a.outage }
func (a *Machine) LastErr() error      { return a.lastErr }
func (a *Machine) Deadline() Moment    { return a.deadline }
func (a *Machine) KeepUntil() Moment   { return a.keepUntil }
func (a *Machine) Leased() bool        { return a.leased }
func (a *Machine) IsHeld() bool        { return a.phase == held }

// Lost returns the same pointer for the same loss.
func (a *Machine) Lost() *Loss { return a.lost }

// LeaseToken is the token of the last issued lease.
func (a *Machine) LeaseToken() int64 { return a.token*leasemath.TokensPerGrant + max(0, a.issued-1) }

// Unissued reports whether there is no grant, or one of which no lease was issued.
// requests says that a request must be sent before there can be one.
func (a *Machine) Unissued() (unissued, requests bool) {
	return a.issued == 0, a.phase == requesting
}

// Counts reports whether q was about the present ID and kind of the lock.
func (a *Machine) Counts(q Question) bool { return a.round == q.round }

// Suits reports whether a caller with these wishes would make the same acquisition.
func (a *Machine) Suits(owner string, weight, capacity int64, terms *Terms) bool {
	c := &a.claim
	return weight == c.Weight && capacity == c.Capacity && terms.Same(a.terms) && owner == c.Owner
}

// TakePending returns and clears the claims that the store is to forget.
func (a *Machine) TakePending() []driver.Claim {
	claims := a.pending
	a.pending = nil
	return claims
}

// A Question renews a claim, and so asks whether it is valid.
type Question struct {
	Claim    driver.Claim
	phase    phase // when it was made
	round    int
	Deadline Moment        // the end of the lease without a renewal; zero for a position
	beside   bool          // the holder's (Extend): inFlight does not count it
	TTL      time.Duration // that the store is to grant
	Patience time.Duration // how long to wait for the answer
}

// Effects are the set of what the caller must do after an event. The Machine has their
// details.
type Effects uint16

const (
	GrantWaiter    Effects = 1 << iota // issue a lease to the goroutine that waits
	StartAgain                         // the position or grant is lost: restart, and request again
	FailWaiter                         // the waiter gets LastErr: the store is out of reach
	RetryRequest                       // repeat the request after a pause
	AskStore                           // send the question that Due returned
	NoteOutage                         // tell the local queue of Outage; it may be over
	EndLease                           // end the lease's contexts and close its done channel
	LeaveQueue                         // the next goroutine of the local queue becomes its front
	MayHandOver                        // hand the lock to the next goroutine of the local queue, if there is one
	StopWatching                       // end the subscription to hints
	ReportLoss                         // to the Events and the Logger
	ReleaseClaim                       // make the store forget Claim
	ReleasePending                     // make the store forget the claims of TakePending
)

// Request begins an attempt and returns the request to send. wait asks for a position.
func (a *Machine) Request(now Moment, wait bool, slow time.Duration) driver.Request {
	if wait && slow > pollAgain {
		// The first renewal of the position cannot wait for the answer.
		a.wake = now.Add(pollAgain)
	}
	return driver.Request{Claim: a.claim, TTL: a.terms.StoreTTL(), Queue: wait, MaxWaiting: a.maxWaiting, Retry: a.retry}
}

// RequestFailed takes the store's error. patient says that the caller continues to wait.
func (a *Machine) RequestFailed(now, sent Moment, err error, patient bool) Effects {
	if a.requested && errors.Is(err, driver.ErrLost) {
		return a.end() | StartAgain // the store has ended that attempt
	}
	a.requested, a.retry = true, a.retry || Unknown(err)
	switch {
	case Final(err):
		return a.storeAnswers()
	case !patient:
		return 0
	case a.outage.failed(sent, err).Over(now, a.terms.Patience()):
		return NoteOutage
	}
	return NoteOutage | RetryRequest
}

// Answered takes the store's answer to a request.
func (a *Machine) Answered(now, sent Moment, g driver.Grant, slow time.Duration) Effects {
	e := a.storeAnswers()
	early := a.early
	a.early, a.retry = driver.Grant{}, false
	a.phase, a.claim.Ticket = queued, g.Ticket
	a.confirmed, a.asked = sent, sent
	switch {
	case !g.Waiting:
		deadline := sent.Add(a.trustFor(g.TTL))
		if deadline.Sub(now) < a.trustFor(a.terms.StoreTTL())/2 {
			// The answer took so long that the grant must be renewed before use.
			a.token, a.wake = g.Token, now
			break
		}
		e |= a.hold(now, g, deadline, a.terms.renewAt(sent, a.Capped(g.TTL)))
	case early.Token >= g.Ticket && early.Token > 0:
		e |= a.pushed(now, early, slow)
	default:
		a.pollNext(g, slow)
	}
	a.lookAfterHint()
	return e
}

// Hint takes a hint, which may carry a grant that the store has made on its own.
func (a *Machine) Hint(now Moment, h driver.Hint, slow time.Duration) Effects {
	switch a.phase {
	case requesting:
		if !h.Granted {
			a.hinted = true
		} else if h.Grant.Token > a.early.Token {
			a.early = h.Grant
		}
	case queued:
		// See driver.Grant.Ticket: such a grant is of an earlier position.
		if !h.Granted || h.Grant.Token < max(a.claim.Ticket, a.token) {
			a.lookSoon()
			return 0
		}
		a.hinted = false
		return a.pushed(now, h.Grant, slow)
	case held, downgrading:
		if !h.Granted { // the lock may be lost
			a.lookSoon()
		}
	}
	return 0
}

// pushed takes a short grant that the store made on its own. It counts from when the last
// request was sent that renewed the position.
//
// If enough of the grant is left to renew it in time, the acquisition holds the lock, and
// renews at once if little is left. Otherwise the grant is only a hint: the acquisition
// asks the store and holds the lock when the store answers "held".
func (a *Machine) pushed(now Moment, g driver.Grant, slow time.Duration) Effects {
	deadline := a.confirmed.Add(g.TTL - leasemath.Margin(g.TTL))
	left := deadline.Sub(now)
	if left < max(g.TTL/3, 2*slow) || !a.terms.shortClaims() {
		a.token, a.wake = g.Token, now
		return 0
	}
	renewAt := now
	if left/3 > 2*slow {
		renewAt = now.Add(left / 3) // a short critical section ends before that
	}
	return a.hold(now, g, deadline, renewAt)
}

// hold takes the lock by a grant that ends for this process at deadline.
func (a *Machine) hold(now Moment, g driver.Grant, deadline, renewAt Moment) Effects {
	a.phase, a.claim.Ticket = held, g.Ticket
	a.token, a.issued = g.Token, 0
	a.granted, a.deadline, a.wake = now, deadline, renewAt
	return a.storeAnswers() | GrantWaiter
}

// Due is called at the moment Wake. It returns the question to send, with AskStore.
func (a *Machine) Due(now Moment) (Question, Effects) {
	if a.wake == 0 || now < a.wake {
		return Question{}, 0 // another event has changed it
	}
	a.wake = 0
	q := Question{Claim: a.claim, phase: a.phase, round: a.round, TTL: a.terms.StoreTTL(), Patience: pollPatience}
	next := now.Add(pollAgain)
	switch a.phase {
	case held, downgrading:
		end, why := a.ValidUntil()
		if now >= end {
			return q, a.Lose(why)
		}
		q.Deadline = a.deadline
		// The process continues to wait for the first question and sends another one
		// beside it: the store may have become slow, and every abandoned request costs a
		// new connection.
		left := a.deadline.Sub(now)
		again := max(min(left/2, a.terms.TTL/4), 2*MinPause)
		q.Patience = max(again, left*7/8)
		next = end
		if q.Patience > again {
			next = min(end, now.Add(again))
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
	return q, AskStore
}

// Renewed takes the store's answer to a question that was sent at the moment sent.
func (a *Machine) Renewed(now, sent Moment, q Question, r driver.Renewal, slow time.Duration) Effects {
	if a.round != q.round {
		return 0
	}
	if !q.beside {
		a.inFlight--
	}
	if a.phase == ended || q.beside && r.State == driver.Unknown {
		return 0
	}
	deadline := sent.Add(a.trustFor(r.Grant.TTL))
	switch least := a.trustFor(a.terms.StoreTTL()) / 4; {
	case r.State == driver.Unknown:
		return a.unanswered(now, sent, r.Err)
	case a.phase == queued && r.State == driver.Held && deadline.Sub(now) < least:
		return a.unanswered(now, sent, fmt.Errorf("%w: its answer took %v, too long for a lease of %v", driver.ErrUnavailable, now.Sub(sent).Round(time.Millisecond), a.terms.TTL))
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

func (a *Machine) renewedQueued(now, sent Moment, q Question, r driver.Renewal, slow time.Duration) Effects {
	switch {
	case r.State == driver.Held:
		return a.hold(now, r.Grant, sent.Add(a.trustFor(r.Grant.TTL)), a.terms.renewAt(sent, a.Capped(r.Grant.TTL)))
	case r.State == driver.Waiting:
		a.confirmed, a.claim.Ticket = sent, r.Grant.Ticket
		a.pollNext(r.Grant, slow)
		a.lookAfterHint()
	case q.phase == requesting: // the question may have overtaken the request for the position
		a.wakeBy(now)
	default:
		return a.Lose(Gone)
	}
	return 0
}

func (a *Machine) renewedHeld(now, sent Moment, q Question, r driver.Renewal) Effects {
	if end, why := a.ValidUntil(); now >= end {
		return a.Lose(why)
	}
	switch {
	case r.State == driver.Held && r.Grant.Token > a.token && q.phase == held:
		// A late attempt has made another grant; the store has lost this one.
		e := a.Lose(Gone)
		a.claim.Ticket = r.Grant.Ticket
		return e | a.owe(a.claim)
	case r.State == driver.Held:
		a.claim.Ticket = r.Grant.Ticket
		a.deadline = max(a.deadline, sent.Add(a.trustFor(r.Grant.TTL)))
		end, _ := a.ValidUntil()
		a.wake = min(end, a.terms.renewAt(sent, a.Capped(r.Grant.TTL)))
		a.lookAfterHint()
	case q.phase == held:
		return a.Lose(Gone)
	case r.State == driver.Lost: // about the position that led to the grant
		a.lookSoon()
	} // "waiting" was true before the grant
	return 0
}

func (a *Machine) unanswered(now, sent Moment, err error) Effects {
	a.lastErr = err
	switch a.phase {
	case held:
		end, _ := a.ValidUntil()
		again := min(max(end.Sub(now)/8, MinPause), maxPause)
		a.wake = min(end, now.Add(again))
	case queued:
		if Final(err) {
			return FailWaiter
		}
		if a.outage.failed(sent, err).Over(now, a.terms.Patience()) {
			return NoteOutage | FailWaiter
		}
		a.wake = now.Add(a.terms.Pause(now.Sub(a.outage.Since)))
		return NoteOutage
	}
	return 0
}

// PassOn lets another goroutine of the process, which joined the local queue at came,
// take over the wait. The store sees no change. The result is false if there is no
// position in the store's queue, and no request that may have made one.
func (a *Machine) PassOn(came Moment) bool {
	if a.phase != queued && !(a.phase == requesting && a.retry) {
		return false
	}
	a.outage = a.outage.AsSeenBy(came)
	return true
}

// Quit ends an acquisition that no goroutine waits for or holds. With ReleaseClaim the
// store may still have the claim and must forget it.
func (a *Machine) Quit() Effects {
	if a.phase == ended {
		return 0
	}
	known := a.phase != requesting || a.retry
	e := a.end()
	if known {
		e |= ReleaseClaim
	}
	return e
}

// Lose ends an acquisition whose lease or position ended without an unlock.
func (a *Machine) Lose(why Cause) Effects {
	if a.phase == ended {
		return 0
	}
	a.lost = &Loss{Token: a.LeaseToken(), Cause: why}
	if why == Expired {
		a.lost.Err = a.lastErr
	}
	e := a.end() | StartAgain
	switch {
	case !a.leased && why == Expired:
		// No lease was issued, so no holder has to stop first.
		return e | ReleaseClaim
	case !a.leased:
		return e
	}
	a.leased = false
	if why != Detached {
		e |= ReportLoss
	}
	return e | EndLease | LeaveQueue
}

func (a *Machine) end() Effects {
	a.phase, a.wake = ended, 0
	return StopWatching
}

// Restart makes a new acquisition of one whose position is lost. The new ID separates it
// from late requests for the old one.
func (a *Machine) Restart(id string) {
	a.claim.ID, a.claim.Ticket = id, 0
	a.phase, a.lost = requesting, nil
	a.requested, a.retry, a.early = false, false, driver.Grant{}
	a.lastErr, a.token = nil, 0
	a.hinted = false
	a.newRound()
}

func (a *Machine) newRound() {
	a.round++
	a.inFlight = 0
}

// storeAnswers ends an outage.
func (a *Machine) storeAnswers() Effects {
	if a.outage.Tries == 0 {
		return 0
	}
	a.outage = Outage{}
	return NoteOutage
}

// wakeBy plans a call of Due at m or before.
func (a *Machine) wakeBy(m Moment) {
	if a.wake == 0 || m < a.wake {
		a.wake = m
	}
}

// lookSoon plans a question, MinPause after the last one at the earliest. While one is in
// flight, it only notes the hint.
func (a *Machine) lookSoon() {
	if a.inFlight > 0 {
		a.hinted = true
		return
	}
	a.wakeBy(a.asked.Add(MinPause))
}

// lookAfterHint plans a question if a hint came during the last one.
func (a *Machine) lookAfterHint() {
	if a.hinted {
		a.hinted = false
		a.lookSoon()
	}
}

// pollNext plans the next renewal of the position. The time counts from when the last
// question was sent, because its answer may have taken long. The slower the store, the
// more positions share a request: the process has few connections.
func (a *Machine) pollNext(g driver.Grant, slow time.Duration) {
	every := pollEvery(g)
	a.wake = a.asked.Add(max(every, min(slow, pollAgain))).floor(max(every/10, min(slow, every)))
}

// ValidUntil is when the lease ends for this process unless it is renewed, and why.
func (a *Machine) ValidUntil() (Moment, Cause) {
	if a.leased && a.limit > 0 && a.limit < a.deadline {
		return a.limit, Overheld
	}
	return a.deadline, Expired
}

// Capped is the part of a granted ttl that counts: a late renewal by an earlier holder of
// the same ID may set a shorter one.
func (a *Machine) Capped(ttl time.Duration) time.Duration {
	if a.ttlCap > 0 {
		return min(ttl, a.ttlCap)
	}
	return ttl
}

func (a *Machine) trustFor(ttl time.Duration) time.Duration {
	return a.terms.TrustFor(a.Capped(ttl))
}
