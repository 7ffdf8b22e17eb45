package baton

import (
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/leasemath"
)

// The events of an acquisition that is held: leases, nested locks, unlocks,
// hand-overs, renames, downgrades, and what comes from another process.

// attached takes the answer that this process now holds a lease that another
// process had detached with the given token.
func (a *acquisition) attached(now, sent moment, g driver.Grant, token int64) effects {
	e := a.hold(now, g, sent.add(a.trustFor(g.TTL)), a.terms.renewAt(sent, a.capped(g.TTL)))
	a.token, a.issued = token/leasemath.TokensPerGrant, token%leasemath.TokensPerGrant
	return e
}

// attachFailed takes the failure of an Attach. unsure says that the store may have
// moved the claim to this ID all the same.
func (a *acquisition) attachFailed(unsure bool) effects {
	a.retry = unsure
	return a.quit()
}

// issue makes a lease of the grant, for one goroutine. For a part of a LockAll
// MaxHold and MinHold start later, with startLimit. If leased is false afterwards, the grant
// has been lost.
func (a *acquisition) issue(now moment, part bool) effects {
	if a.phase != held || now >= a.deadline {
		return a.lose(Expired) // nothing, if it was lost before
	}
	a.leased, a.refs, a.limit, a.keepUntil = true, 1, 0, 0
	a.issued++
	if !part {
		a.startLimit(now)
	}
	return 0
}

// leaseToken is the token of the last issued lease.
func (a *acquisition) leaseToken() int64 {
	return a.token*leasemath.TokensPerGrant + max(0, a.issued-1)
}

// startLimit starts the time of MaxHold and MinHold.
func (a *acquisition) startLimit(now moment) {
	if a.terms.maxHold > 0 {
		a.limit = now.add(a.terms.maxHold)
		a.wakeBy(a.limit)
	}
	if a.terms.minHold > 0 {
		a.keepUntil = now.add(a.terms.minHold)
	}
}

// look ends the lease if its time is up, even if that was not noticed before.
func (a *acquisition) look(now moment) effects {
	if !a.leased {
		return 0
	}
	if end, cause := a.believedUntil(); now >= end {
		return a.lose(cause)
	}
	return 0
}

// nest answers a request for the same key from within the lease.
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

// extend returns a question whether the lock is still held, beside those of the
// background. ok is false if the acquisition is not held, or is being downgraded.
func (a *acquisition) extend() (q question, ok bool) {
	if a.phase != held {
		return question{}, false
	}
	return question{claim: a.claim, phase: a.phase, round: a.round, beside: true}, true
}

// detachable reports whether the lease has one holder and no nested leases.
func (a *acquisition) detachable() bool { return a.phase == held && a.refs == 1 }

// pin keeps every later lease from having this claim.
func (a *acquisition) pin() { a.pinned = true }

// renamed takes the store's answer, which may come after the lease has ended.
func (a *acquisition) renamed(owner string, err error) effects {
	switch {
	case err == nil:
		a.claim.Owner = owner
	case errors.Is(err, driver.ErrLost):
		return a.lose(Gone)
	}
	return 0
}

// unlock counts one Unlock of a lease. The last one ends the lease if it was not
// lost: the lock is then handed over or released.
func (a *acquisition) unlock(now moment) effects {
	a.refs--
	e := a.look(now)
	switch {
	case a.refs > 0:
	case a.lost != nil:
		e |= a.leftBehind()
	default:
		a.leased, a.leaving = false, now < a.keepUntil
		e = endLease
		if a.fitToHandOver(now) && now >= a.keepUntil {
			e |= mayHandOver
		}
	}
	return e
}

// fitToHandOver reports whether the lock may go to another goroutine of this
// process. Only the exclusive lock may: readers and permits leave the local queue
// at once. If the grant is lost after that, the goroutine that receives it finds
// out.
func (a *acquisition) fitToHandOver(now moment) bool {
	return a.phase == held && !a.pinned && a.claim.Exclusive() &&
		a.issued < maxHandOvers && now.sub(a.granted) < maxLocalTime &&
		a.deadline.sub(now) > min(a.terms.ttl, driver.ClaimTTL)/4
}

// leftBehind makes the store forget what it may still have of a lost lease, unless
// a LockDelay must pass after the loss.
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

// downgrade begins to turn the exclusive lock into a read lock. Questions under way
// are about the exclusive lock, and their answers are ignored.
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

// downgraded takes the store's answer, which may come after the lease has ended.
func (a *acquisition) downgraded(sent moment, g driver.Grant) effects {
	a.claim.Weight, a.claim.Ticket = 1, g.Ticket
	switch {
	case a.leaving && a.lost == nil: // the store is to keep the claim, of either kind
		return 0
	case a.phase != downgrading:
		return a.owe(a.claim)
	}
	a.phase = held
	a.deadline = max(a.deadline, sent.add(a.trustFor(g.TTL)))
	a.wakeBy(a.terms.renewAt(sent, a.capped(g.TTL)))
	return leaveQueue // callers behind may hold together with this one
}

// downgradeFailed takes the store's error. unsure says that the downgrade may have
// taken effect: the kind of the lock is then unknown, and the lease is lost.
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
	if unsure && !(a.leaving && a.lost == nil) {
		reader := a.claim
		reader.Weight = 1
		e |= a.owe(a.claim, reader)
	}
	return e
}

// owe makes the store forget claims when the holder of a lost lease unlocks it, or
// at once if it has.
func (a *acquisition) owe(claims ...driver.Claim) effects {
	a.pending = append(a.pending, claims...)
	if a.refs > 0 {
		return 0
	}
	return releasePending
}
