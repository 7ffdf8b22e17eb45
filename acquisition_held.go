package baton

import (
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
)

// The events of an acquisition whose lock somebody has: leases, nested locks,
// unlocks, hand-overs, downgrades, and what comes from another process.

// attached takes the answer that a lease which another process had detached,
// with the token given, is now held here.
func (a *acquisition) attached(now, sent moment, g driver.Grant, token int64) effects {
	e := a.hold(now, g, sent.add(a.trustFor(g.TTL)), a.terms.renewAt(sent, a.capped(g.TTL)))
	a.token, a.issued = token/tokensPerGrant, token%tokensPerGrant
	return e
}

// attachFailed says that it is not. unsure says that it may have been moved to
// this ID all the same.
func (a *acquisition) attachFailed(unsure bool) effects {
	a.retry = unsure
	return a.quit()
}

// issue makes a lease of the grant, for the one goroutine that may have it. The
// time of a part of a LockAll begins later, with startLimit. If leased is false
// afterwards, the grant has been lost.
func (a *acquisition) issue(now moment, part bool) effects {
	if a.phase != held || now >= a.deadline {
		return a.lose(Expired) // nothing, if it was lost before
	}
	a.leased, a.refs, a.limit = true, 1, 0
	a.issued++
	if !part {
		a.startLimit(now)
	}
	return 0
}

// leaseToken is the token of the last lease that was issued.
func (a *acquisition) leaseToken() int64 { return a.token*tokensPerGrant + max(0, a.issued-1) }

// startLimit begins the time that the lease may be held.
func (a *acquisition) startLimit(now moment) {
	if a.terms.maxHold > 0 {
		a.limit = now.add(a.terms.maxHold)
		a.wakeBy(a.limit)
	}
}

// look ends the lease if its time is up, whether or not that was noticed before.
func (a *acquisition) look(now moment) effects {
	if !a.leased {
		return 0
	}
	if end, cause := a.believedUntil(); now >= end {
		return a.lose(cause)
	}
	return 0
}

// nest answers a lock on the same key that is asked for within the lease.
func (a *acquisition) nest(wanted *ask) error {
	switch {
	case !wanted.reentrant:
		return ErrNested
	case a.phase == downgrading:
		return errors.New("the lease that it would be nested in is being downgraded")
	case !a.claim.Exclusive() && (wanted.weight != a.claim.Weight || wanted.capacity != a.claim.Capacity):
		return fmt.Errorf("%w, but not what is asked for now: a lock cannot be widened while it is held", ErrNested)
	}
	a.refs++
	return nil
}

// extend asks whether the lock is still held, beside what is asked in the background.
// ok is false while nobody can tell.
func (a *acquisition) extend() (q question, ok bool) {
	if a.phase != held {
		return question{}, false
	}
	return question{claim: a.claim, phase: a.phase, round: a.round, beside: true}, true
}

// detachable reports whether nobody counts on the lease but its one holder.
func (a *acquisition) detachable() bool { return a.phase == held && a.refs == 1 }

// pin keeps the claim from being anybody else's after this lease.
func (a *acquisition) pin() { a.pinned = true }

// unlock takes one of the Unlocks of a lease. The last one of a lease that was
// not lost ends it: the lock is then to be handed over or released.
func (a *acquisition) unlock(now moment) effects {
	a.refs--
	e := a.look(now)
	switch {
	case a.refs > 0:
	case a.lost != nil:
		e |= a.leftBehind()
	default:
		a.leased = false
		e = endLease
		if a.fitToHandOver(now) {
			e |= mayHandOver
		}
	}
	return e
}

// fitToHandOver reports whether the lock may go to another goroutine of this
// process. Only the exclusive lock may: readers and permits leave the local
// queue at once. What happens to the grant after that is for its receiver to
// find out.
func (a *acquisition) fitToHandOver(now moment) bool {
	return a.phase == held && !a.pinned && a.claim.Exclusive() &&
		a.issued < maxHandOvers && now.sub(a.granted) < maxLocalTime &&
		a.deadline.sub(now) > min(a.terms.ttl, driver.ClaimTTL)/4
}

// leftBehind has the store forget what it may still have of a lease that was
// lost. Where a LockDelay is to pass after a loss, it does.
func (a *acquisition) leftBehind() effects {
	cause := a.lost.Cause
	switch {
	case a.terms.lockDelay > 0 && cause != Overheld:
		a.pending = nil
	case a.pending == nil && (cause == Expired || cause == Overheld):
		return releaseClaim
	}
	return releasePending
}

// downgrade begins to make the exclusive lock a read lock. Questions that are
// under way are about the kind that it was: their answers mean nothing any more.
func (a *acquisition) downgrade() error {
	switch {
	case a.phase == downgrading || a.refs > 1:
		return ErrCountedOn
	case !a.claim.Exclusive():
		return errors.New("it is not the exclusive lock")
	}
	a.phase = downgrading
	a.newRound()
	return nil
}

// downgraded takes the store's answer, which may come after the end.
func (a *acquisition) downgraded(sent moment, g driver.Grant) effects {
	a.claim.Weight, a.claim.Ticket = 1, g.Ticket
	if a.phase != downgrading {
		return a.owe(a.claim)
	}
	a.phase = held
	a.deadline = max(a.deadline, sent.add(a.trustFor(g.TTL)))
	a.wakeBy(a.terms.renewAt(sent, a.capped(g.TTL)))
	return leaveQueue // those behind may hold together with this one
}

// downgradeFailed takes the store's error. unsure says that the downgrade may
// have taken effect: then nobody can tell what the lease is.
func (a *acquisition) downgradeFailed(now moment, err error, unsure bool) (e effects) {
	valid := a.lost == nil && a.refs > 0
	if a.phase == downgrading {
		a.phase = held
	}
	switch {
	case valid && errors.Is(err, driver.ErrLost):
		return a.lose(Gone)
	case valid && !unsure:
		a.wake = now
	case valid:
		e = a.lose(Gone)
		a.lost.Err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if unsure {
		reader := a.claim
		reader.Weight = 1
		e |= a.owe(a.claim, reader)
	}
	return e
}

// owe has the store forget claims when the holder of a lost lease unlocks it, or
// at once if that has happened.
func (a *acquisition) owe(claims ...driver.Claim) effects {
	a.pending = append(a.pending, claims...)
	if a.refs > 0 {
		return 0
	}
	return releasePending
}
