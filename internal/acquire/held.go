package acquire

import (
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/leasemath"
)

// The events of a held acquisition: leases, nested locks, unlocks, hand-overs, renames,
// downgrades, and leases from another process.

// Attached takes the store's answer to a successful Attach. token is that of the detached
// lease.
func (a *Machine) Attached(now, sent Moment, g driver.Grant, token int64) Effects {
	e := a.hold(now, g, sent.Add(a.trustFor(g.TTL)), a.terms.renewAt(sent, a.Capped(g.TTL)))
	a.token, a.issued = token/leasemath.TokensPerGrant, token%leasemath.TokensPerGrant
	return e
}

// AttachFailed takes the failure of an Attach. unsure says that the store may have moved
// the claim to this ID.
func (a *Machine) AttachFailed(unsure bool) Effects {
	a.retry = unsure
	return a.Quit()
}

// Issue makes a lease of the grant, for one goroutine. If Leased is false afterwards, the
// grant was lost before. part is set for LockAll: StartLimit starts MaxHold and MinHold
// then.
func (a *Machine) Issue(now Moment, part bool) Effects {
	if a.phase != held || now >= a.deadline {
		return a.Lose(Expired) // no effects if it was lost before
	}
	a.leased, a.refs, a.limit, a.keepUntil = true, 1, 0, 0
	a.issued++
	if !part {
		a.StartLimit(now)
	}
	return 0
}

// StartLimit starts the time of MaxHold and MinHold.
func (a *Machine) StartLimit(now Moment) {
	if a.terms.MaxHold > 0 {
		a.limit = now.Add(a.terms.MaxHold)
		a.wakeBy(a.limit)
	}
	if a.terms.MinHold > 0 {
		a.keepUntil = now.Add(a.terms.MinHold)
	}
}

// Look ends the lease if its time is up.
func (a *Machine) Look(now Moment) Effects {
	if !a.leased {
		return 0
	}
	if end, why := a.ValidUntil(); now >= end {
		return a.Lose(why)
	}
	return 0
}

// Nest checks a request for the same key from within the lease.
func (a *Machine) Nest(reentrant bool, weight, capacity int64) error {
	switch {
	case !reentrant:
		return ErrNested
	case a.phase == downgrading:
		return errors.New("the lease that it would be nested in is being downgraded")
	case !a.claim.Exclusive() && (weight != a.claim.Weight || capacity != a.claim.Capacity):
		return fmt.Errorf("%w, but not what is asked for now: a lock cannot be widened while it is held", ErrNested)
	}
	a.refs++
	return nil
}

// Extend returns a question by which the holder renews the lock. ok is false if the lock
// is not held, or is being downgraded.
func (a *Machine) Extend() (q Question, ok bool) {
	if a.phase != held {
		return Question{}, false
	}
	return Question{Claim: a.claim, phase: a.phase, round: a.round, beside: true}, true
}

func (a *Machine) Detachable() bool { return a.phase == held && a.refs == 1 }

// Pin prevents hand-overs: no later lease gets the claim.
func (a *Machine) Pin() { a.pinned = true }

// Renamed takes the store's answer. It may come after the end of the lease.
func (a *Machine) Renamed(now Moment, owner string, err error) Effects {
	switch {
	case err == nil:
		a.claim.Owner = owner
	case errors.Is(err, driver.ErrLost):
		return a.gone(now)
	}
	return 0
}

// gone ends an acquisition that the store no longer knows. After the deadline the cause
// is not Gone: the claim may have expired on the way.
func (a *Machine) gone(now Moment) Effects {
	if end, why := a.ValidUntil(); now >= end {
		return a.Lose(why)
	}
	return a.Lose(Gone)
}

// Unlock counts one Unlock of a lease. The last one ends a valid lease: the lock is then
// handed over or released.
func (a *Machine) Unlock(now Moment) Effects {
	a.refs--
	e := a.Look(now)
	switch {
	case a.refs > 0:
	case a.lost != nil:
		e |= a.leftBehind()
	default:
		a.leased, a.leaving = false, now < a.keepUntil
		e = EndLease
		if a.FitToHandOver(now) && now >= a.keepUntil {
			e |= MayHandOver
		}
	}
	return e
}

// FitToHandOver reports whether the lock may go to another goroutine of this process. It
// may not for readers and permits: they leave the local queue at once. If the grant is
// lost afterwards, Issue tells the goroutine that receives it.
func (a *Machine) FitToHandOver(now Moment) bool {
	return a.phase == held && !a.pinned && a.claim.Exclusive() &&
		a.issued < maxHandOvers && now.Sub(a.granted) < maxLocalTime &&
		a.deadline.Sub(now) > min(a.terms.TTL, driver.ClaimTTL)/4
}

// leftBehind makes the store forget the claim of a lost lease, unless a LockDelay must
// pass after the loss.
func (a *Machine) leftBehind() Effects {
	why := a.lost.Cause
	switch {
	case a.terms.LockDelay > 0 && why != Overheld:
		a.pending = nil
	case a.pending == nil && (why == Expired || why == Overheld):
		return ReleaseClaim
	}
	return ReleasePending
}

// Downgrade begins to turn the exclusive lock into a read lock. Answers to earlier
// questions, which are about the exclusive lock, will be ignored.
func (a *Machine) Downgrade() error {
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

// Downgraded takes the store's answer. It may come after the end of the lease.
func (a *Machine) Downgraded(sent Moment, g driver.Grant) Effects {
	a.claim.Weight, a.claim.Ticket = 1, g.Ticket
	switch {
	case a.leaving && a.lost == nil: // the store is to keep the claim, of either kind
		return 0
	case a.phase != downgrading:
		return a.owe(a.claim)
	}
	a.phase = held
	a.deadline = max(a.deadline, sent.Add(a.trustFor(g.TTL)))
	a.wakeBy(a.terms.renewAt(sent, a.Capped(g.TTL)))
	return LeaveQueue // callers behind may hold together with this one
}

// Unanswered notes why the store has not downgraded the lock so far.
func (a *Machine) Unanswered(err error) { a.lastErr = err }

// DowngradeFailed takes the store's error. unsure says that the downgrade may have taken
// effect: then the kind of the lock is unknown, and the lease is lost.
func (a *Machine) DowngradeFailed(now Moment, err error, unsure bool) (e Effects) {
	valid := a.lost == nil && a.refs > 0
	if a.phase == downgrading {
		a.phase = held
	}
	switch {
	case valid && errors.Is(err, driver.ErrLost):
		return a.gone(now)
	case valid && !unsure:
		a.wake = now
	case valid:
		e = a.Lose(Gone)
		a.lost.Err = fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	if unsure && !(a.leaving && a.lost == nil) {
		reader := a.claim
		reader.Weight = 1
		e |= a.owe(a.claim, reader)
	}
	return e
}

// owe makes the store forget claims when the holder of a lost lease unlocks it, or now if
// it has.
func (a *Machine) owe(claims ...driver.Claim) Effects {
	a.pending = append(a.pending, claims...)
	if a.refs > 0 {
		return 0
	}
	return ReleasePending
}
