package baton

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
	"github.com/batonhq/baton/internal/leasemath"
)

// A Lease is a lock that is held. It is renewed in the background until it is
// unlocked or lost. All methods are safe for concurrent use.
type Lease struct {
	keeper *keeper
	token  int64
	since  acquire.Moment
	outer  *Lease          // of a nested lease: the lease that it is nested in
	call   context.Context // that an Acquired event had or will have, if Events are to learn of the end

	// Guarded by keeper.mu.
	unlocked bool  // by its holder
	failed   error // the result of Unlock
	done     chan struct{}
	asked    chan string
	contexts contexts
}

// Key is the name of the lock.
func (l *Lease) Key() string { return l.keeper.key() }

// Token is the fencing token: positive, and higher than that of every earlier
// lease on the key. It never changes. Pass it to what the lock protects. It
// may exceed 2⁵³: in JSON and JavaScript it must be a string.
//
// It is no secret, and gives no right to the lock: Detach and Attach continue a lease
// in another process.
func (l *Lease) Token() int64 { return l.token }

// Err is nil as long as the process may believe in the lease. Otherwise it is a
// *LostError. It looks at the clock, not only at what was noticed before: a process
// that was stopped learns of the loss from its first call.
func (l *Lease) Err() error {
	k := l.keeper
	now := k.locker.clock.Now()
	k.mu.Lock()
	var e acquire.Effects
	if k.lease == l.root() {
		e = k.acq.Look(now)
	}
	err := l.ended()
	k.commit(e)
	return err
}

// Deadline is when the lease ends unless it is renewed before. For a lease that has
// ended it is not later than now.
func (l *Lease) Deadline() time.Time {
	k := l.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.ended() != nil {
		return time.Now()
	}
	end, _ := k.acq.ValidUntil()
	return time.Now().Add(end.Sub(k.locker.clock.Now()))
}

// Done is closed when the lease ends: lost, detached, or unlocked. A lease and the
// leases nested in it end together, with the last Unlock.
func (l *Lease) Done() <-chan struct{} {
	t := l.root()
	k := l.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		if t.over() {
			close(t.done)
		}
	}
	return t.done
}

// Context returns a copy of parent that ends when the lease does. If the lease was
// lost, context.Cause returns the *LostError. The context's Err looks at the clock,
// as Lease.Err does. A Lock call with this context knows that it is nested in the
// lease.
//
// The lease keeps each context until parent or the lease ends. Contexts of parents
// that never end, such as context.Background(), cost the lease nothing: they all
// share one.
func (l *Lease) Context(parent context.Context) context.Context {
	t := l.root()
	c := &leaseContext{lease: t}
	c.outer, _ = parent.Value(nestKey{}).(*leaseContext)

	t.keeper.mu.Lock()
	defer t.keeper.mu.Unlock()
	err := l.ended()
	if err == nil && t.contexts == nil {
		t.contexts = make(contexts)
	}
	if err == nil && parent.Done() == nil {
		shared := t.contexts[nil]
		if shared == nil {
			shared = &leaseContext{}
			shared.Context, shared.cancel = context.WithCancelCause(context.Background())
			t.contexts[nil] = shared
		}
		c.Context, c.cancel = &endless{shared.Context, parent}, shared.cancel
		return c
	}
	c.Context, c.cancel = context.WithCancelCause(parent)
	if err != nil {
		c.cancel(contextCause(err))
		return c
	}
	t.contexts[c] = c
	c.forget = context.AfterFunc(c.Context, func() { // a lease may outlive many contexts
		t.keeper.mu.Lock()
		delete(t.contexts, c)
		t.keeper.mu.Unlock()
	})
	return c
}

// Claim is what the store knows the lease by. The ID in it is a secret: a program
// that has it can end the lease. After the Unlock the next lease of this process
// may have the same claim: see Pin. The error is a *LostError if the lease has
// ended.
func (l *Lease) Claim() (driver.Claim, error) { return l.claim(false) }

// Pin is Claim for callers that use the claim beside the lease, such as "InTx" of
// the SQL stores, which lets a transaction commit only while the lease stands. From
// now on the process does not hand the lease over to another goroutine, so that the
// store knows no later lease by the same claim.
func (l *Lease) Pin() (driver.Claim, error) { return l.claim(true) }

// Extend renews the lease now and waits for the store's answer. The Locker renews
// leases without it: it is for a holder that wants the whole TTL before a step that
// must not be cut short. It returns until when the lease lasts at least, which
// Config.MaxHold may bound.
//
// A *LostError says that the lease has ended. Other errors, the context's and those
// that wrap ErrUnavailable or ErrUnknown, leave the lease as it was.
func (l *Lease) Extend(ctx context.Context) (until time.Time, err error) {
	k := l.keeper
	lk := k.locker
	if err := ctx.Err(); err != nil {
		return until, fail("extend", l.Key(), err)
	}
	_, err = lk.insist(ctx, k.acq.Terms(), func(call context.Context, sent acquire.Moment) error {
		if err := l.Err(); err != nil {
			return err
		}
		k.mu.Lock()
		q, ok := k.acq.Extend()
		if ok {
			k.underWay++
		}
		k.commit(0)
		if !ok {
			return fmt.Errorf("%w: a downgrade is under way", ErrUnavailable)
		}
		r := lk.store.Renew(call, []driver.Claim{q.Claim}, k.acq.Terms().StoreTTL())[0]
		switch counts := k.renewed(sent, q, r); {
		case r.State == driver.Unknown:
			return r.Err
		case !counts: // it is about the kind that the lock had before
			return fmt.Errorf("%w: a downgrade came between", ErrUnavailable)
		}
		return l.Err()
	})
	if lost := l.Err(); lost != nil {
		return time.Time{}, lost
	}
	if err != nil {
		return time.Time{}, fail("extend", l.Key(), blame(ctx, err))
	}
	return l.Deadline(), nil
}

func (l *Lease) claim(pin bool) (driver.Claim, error) {
	if err := l.Err(); err != nil {
		return driver.Claim{}, err
	}
	k := l.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := l.ended(); err != nil {
		return driver.Claim{}, err
	}
	if pin {
		k.acq.Pin()
	}
	return k.acq.Claim(), nil
}

// Unlock releases the lock, or hands it over to the next goroutine of this process.
// It needs no context: if the store does not answer it continues to try for the
// TTL, at least 1s and at most about 5s. A second call does nothing and returns the
// same error, or nil while the first call is under way.
//
// Its error is a *LostError if the lease ended first; another holder may have had
// the lock since. An error that is ErrUnknown or ErrUnavailable says that the store
// did not answer: the Locker continues to ask in the background, and the lock
// expires within the TTL, or at the end of its MinHold if that is later.
func (l *Lease) Unlock() error {
	k := l.keeper
	lk := k.locker
	now := lk.clock.Coarse()
	k.mu.Lock()
	if l.unlocked {
		defer k.mu.Unlock()
		return l.failed
	}
	l.unlocked = true
	e := k.acq.Unlock(now)
	switch {
	case k.acq.Lost() != nil:
		return l.unlockLost(e)
	case e&acquire.EndLease == 0: // nested leases count on it
		k.mu.Unlock()
		return nil
	}
	q, open := k.queue, k.lease.close()
	k.queue, k.lease = nil, nil
	k.mu.Unlock()
	open.end(nil)

	local := e&acquire.MayHandOver != 0 && q.handOver(k)
	var err error
	if !local {
		err = l.giveBack(now)
		q.leave()
	}
	lk.released(l, now, local, err)
	if err != nil {
		k.mu.Lock()
		l.failed = err
		k.mu.Unlock()
	}
	return err
}

// unlockLost finishes an Unlock, with its effects, of a lease that was already
// lost. The keeper's mutex is locked.
func (l *Lease) unlockLost(e acquire.Effects) error {
	k := l.keeper
	l.failed = k.lost()
	left := k.toForget(e)
	k.commit(e &^ (acquire.ReleaseClaim | acquire.ReleasePending))
	for _, c := range left {
		k.locker.forget(c, k.acq.Terms())
	}
	return l.failed
}

// giveBack releases the lock in the store, or leaves it taken until the end of its
// MinHold.
func (l *Lease) giveBack(now acquire.Moment) error {
	k := l.keeper
	lk, t := k.locker, k.acq.Terms()
	c, keep, known := k.quit()
	if !known {
		return k.lostError()
	}
	within, patience := t.StoreTTL(), min(max(t.TTL, time.Second), 5*time.Second)
	var leave func(began acquire.Moment, d time.Duration) error // until the end of a MinHold
	var err error
	if keep > now {
		if !lk.moves() { // requests under way would set the end that the holder has asked for
			c = k.awaitAnswers(t.Releasing())
		}
		within = max(within, keep.Sub(now))
		leave = lk.leaving(c, t, keep)
		err = leave(now, patience)
	} else {
		err = lk.release(c, t, now, patience)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, driver.ErrLost):
		return &LostError{Key: c.Key, Token: l.token, Cause: Gone}
	case acquire.Final(err):
	case leave != nil:
		lk.later(c.Key, t, leave)
	default:
		lk.abandon(c, t)
	}
	return fmt.Errorf("baton: unlock %q: %w; it will be free within %v", c.Key, err, within.Round(time.Millisecond))
}

// limitFrom starts the time of MaxHold. For a nested lease it started with the
// outer one.
func (l *Lease) limitFrom(now acquire.Moment) {
	k := l.keeper
	k.mu.Lock()
	if k.lease == l && k.acq.Leased() {
		k.acq.StartLimit(now)
	}
	k.commit(0)
}

// handedOver reports whether the lease came from another goroutine of this process, and
// not from the store.
func (l *Lease) handedOver() bool { return l.token%leasemath.TokensPerGrant > 0 }

// root is the issued lease: for a nested lease its outer one.
func (l *Lease) root() *Lease {
	if l.outer != nil {
		return l.outer
	}
	return l
}

// The methods below are called with the keeper's mutex locked.

// ended says why the lease is not valid, as far as that was noticed.
func (l *Lease) ended() error {
	switch k := l.keeper; {
	case k.lease == l.root() && k.acq.Lost() != nil:
		return k.lost()
	case l.unlocked:
		return &LostError{Key: l.Key(), Token: l.token, Cause: Released}
	}
	return nil
}

// over reports whether a root lease has ended, and so all that are nested in it.
func (t *Lease) over() bool { return t.keeper.lease != t || t.keeper.acq.Lost() != nil }

// close closes the done channel of a root lease and returns its contexts, which the
// caller ends after unlocking the mutex.
func (t *Lease) close() contexts {
	if t.done != nil {
		close(t.done)
	}
	open := t.contexts
	t.contexts = nil
	return open
}

// contextCause is what context.Cause returns after the end of a lease.
func contextCause(err error) error {
	var lost *LostError
	if errors.As(err, &lost) && lost.Cause == Released {
		return nil
	}
	return err
}
