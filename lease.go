package baton

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// A Lease is a lock that is held. It is renewed in the background until it is
// unlocked or lost. All methods are safe for concurrent use.
type Lease struct {
	stake *stake
	token int64
	since time.Time
	outer *Lease // of a nested lease: the one that it counts on

	// Guarded by stake.mu.
	limit    time.Time  // the end of MaxHold; zero: none
	depth    int        // an outer lease: how many Unlocks it takes
	unlocked bool       // by its holder
	failed   error      // what Unlock had to say
	lost     *LostError // why it ended before that
	done     chan struct{}
	contexts contexts
}

// Key is the name of the lock.
func (l *Lease) Key() string { return l.stake.claim.Key }

// Token is the fencing token: positive, and higher than that of every earlier
// lease on the key. It never changes. Pass it to what the lock protects. It
// may exceed 2⁵³: in JSON and JavaScript it must be a string.
func (l *Lease) Token() int64 { return l.token }

// Err is nil as long as the lease may be believed in. Otherwise it is a
// *LostError. It looks at the clock, not only at what has been noticed: a
// process that was stopped learns from its first call.
func (l *Lease) Err() error {
	now := bootclock.Now()
	s := l.stake
	s.mu.Lock()
	after := func() {}
	if s.state == held && s.tenure == l.tenant() {
		if end, cause := s.endLocked(); !now.Before(end) {
			after = s.loseLocked(cause)
		}
	}
	err := l.errLocked()
	s.mu.Unlock()
	after()
	return err
}

// Deadline is when the lease ends unless it is renewed before. Of a lease that
// has ended it is not later than now.
func (l *Lease) Deadline() time.Time {
	s := l.stake
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.errLocked() != nil {
		return time.Now()
	}
	end, _ := s.endLocked()
	return time.Now().Add(end.Sub(bootclock.Now()))
}

// Done is closed when the lease ends: lost, detached, or unlocked. Those of
// nested leases and their outer one end together, with the last Unlock.
func (l *Lease) Done() <-chan struct{} {
	t := l.tenant()
	t.stake.mu.Lock()
	defer t.stake.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		if t.overLocked() {
			close(t.done)
		}
	}
	return t.done
}

// Context returns a copy of parent that ends when the lease does. If the
// lease was lost, context.Cause returns the *LostError. Its Err looks at the
// clock, as Lease.Err does. Locks that are asked for with it know that they
// are nested.
//
// The lease keeps a context until parent ends or the lease does. Those of parents
// that never end, such as context.Background(), cost it nothing: one serves them
// all.
func (l *Lease) Context(parent context.Context) context.Context {
	t := l.tenant()
	c := &leaseContext{lease: t}
	c.outer, _ = parent.Value(nestKey{}).(*leaseContext)

	t.stake.mu.Lock()
	defer t.stake.mu.Unlock()
	err := l.errLocked()
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
		t.stake.mu.Lock()
		delete(t.contexts, c)
		t.stake.mu.Unlock()
	})
	return c
}

// Claim is what the store knows the lease by, for what the store itself can
// do with it: "InTx" of the SQL stores, which lets a transaction commit only
// while the lease stands. The ID in it is a secret: whoever has it can end the
// lease. From now on the lease is not handed on inside this process, so that
// no later lease is known to the store by the same claim. The error is a
// *LostError if the lease has ended.
func (l *Lease) Claim() (driver.Claim, error) {
	if err := l.Err(); err != nil {
		return driver.Claim{}, err
	}
	s := l.stake
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.errLocked(); err != nil {
		return driver.Claim{}, err
	}
	s.shown = true
	return s.claim, nil
}

// Unlock releases the lock, or hands it to the next in line of this process.
// It needs no context: if the store does not answer it goes on trying for the
// TTL, at least 1s and at most about 5s. Called again it does nothing and says
// the same again, or nil while the first call is under way.
//
// Its error is a *LostError if the lease ended first; then somebody else may
// have held the lock meanwhile. An error that is ErrUnknown or ErrUnavailable
// says that the store did not confirm: it is asked on in the background, and
// the lock ends by itself within the TTL.
func (l *Lease) Unlock() error {
	t := l.tenant()
	s := t.stake
	now := bootclock.Coarse()
	s.mu.Lock()
	if l.unlocked {
		defer s.mu.Unlock()
		return l.failed
	}
	l.unlocked = true
	t.depth--
	after := func() {}
	if t.lost == nil {
		if end, cause := s.endLocked(); !now.Before(end) {
			after = s.loseLocked(cause)
		}
	}
	if t.lost != nil {
		l.failed = t.lost
		var left []driver.Claim
		if t.depth == 0 {
			left, s.owed = s.leftLocked(t.lost.Cause), nil
		}
		s.mu.Unlock()
		after()
		for _, c := range left {
			s.locker.giveUp(c)
		}
		return l.failed
	}
	if t.depth > 0 {
		s.mu.Unlock()
		return nil
	}
	ln := s.line
	s.tenure, s.line = nil, nil
	local := ln != nil && s.mayPassLocked(now)
	open := t.closeLocked(nil)
	s.mu.Unlock()
	open.end(nil)

	lk := s.locker
	local = local && ln.handOver(s)
	var err error
	if !local {
		err = l.release(now)
		ln.leave()
	}
	if f := lk.cfg.Trace.Released; f != nil {
		f(l.Key(), l.token, now.Sub(t.since), local)
	}
	if lk.debug(context.Background()) {
		lk.cfg.Logger.Debug("lock released", lk.logLock(l.Key(), l.token), "local", local, "error", err)
	}
	if err != nil {
		s.mu.Lock()
		l.failed = err
		s.mu.Unlock()
	}
	return err
}

// leftLocked is what the store may still have of a stake that was lost, and that
// its last holder unlocks. Where a LockDelay is to pass behind a loss, it does.
func (s *stake) leftLocked(cause Cause) []driver.Claim {
	switch {
	case s.locker.cfg.LockDelay > 0 && cause != Overheld:
		return nil
	case s.owed == nil && (cause == Expired || cause == Overheld):
		return []driver.Claim{s.claim}
	}
	return s.owed
}

// oweLocked has the store forget what it may have of a lost stake, its claim
// and others, when the holder unlocks it, or at once if that has done so.
func (s *stake) oweLocked(t *Lease, claims ...driver.Claim) {
	if t.depth > 0 {
		s.owed = append(s.owed, claims...)
		return
	}
	for _, c := range claims {
		s.locker.abandon(c)
	}
}

// release gives the stake back to the store.
func (l *Lease) release(now time.Time) error {
	c, ok := l.stake.quit()
	if !ok {
		return l.stake.lostError()
	}
	lk := l.stake.locker
	err := lk.releaseClaim(c, now, min(max(lk.cfg.TTL, time.Second), 5*time.Second))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, driver.ErrLost):
		return &LostError{Key: c.Key, Token: l.token, Cause: Gone}
	case !final(err):
		lk.abandon(c)
	}
	return fmt.Errorf("baton: unlock %q: %w; it will be free within %v", c.Key, err, lk.storeTTL())
}

// Downgrade turns the exclusive lock into a read lock without a gap: nobody
// else writes in between. The token stays. ctx bounds the call.
//
// Errors: ErrUnsupported if the store cannot, a *LostError if the lease has
// ended, ErrCountedOn and no effect if nested locks count on the lease. If ctx
// ended or the store failed before it was sure what had happened, the lease
// is lost with ErrUnknown, because nobody can tell what it is.
func (l *Lease) Downgrade(ctx context.Context) error {
	s := l.stake
	lk := s.locker
	d, ok := lk.store.(driver.Downgrader)
	if !ok || !lk.traits.Shared {
		return fmt.Errorf("baton: store %s has no read locks to downgrade to: %w", lk.traits.Store, ErrUnsupported)
	}
	if err := l.Err(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fail("downgrade", l.Key(), ended(ctx))
	}
	c, end, err := l.freeze()
	if err != nil {
		return err
	}
	unsure := false // an earlier attempt may have taken effect
	for {
		sent := bootclock.Coarse()
		call, cancel := context.WithTimeout(ctx, min(end.Sub(sent), lk.cfg.TTL/4))
		g, err := d.Downgrade(call, c, lk.storeTTL())
		cancel()
		if err == nil {
			return l.downgraded(sent, g)
		}
		unsure = unsure || unknown(err)
		if !final(err) && ctx.Err() == nil && bootclock.Now().Before(end) && sleep(ctx, minPause) == nil {
			continue
		}
		return l.notDowngraded(blame(ctx, err), unsure)
	}
}

// freeze keeps the stake from being renewed, handed on, or nested in while it
// changes its kind.
func (l *Lease) freeze() (c driver.Claim, end time.Time, err error) {
	s := l.stake
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.errLocked(); err != nil {
		return c, end, err
	}
	switch {
	case s.frozen || l.tenant().depth > 1:
		err = ErrCountedOn
	case !s.claim.Exclusive():
		err = errors.New("it is not the exclusive lock")
	default:
		// Renewals that are under way ask about the old kind; their answers
		// mean nothing once the kind has changed.
		s.frozen, s.inFlight = true, 0
		s.epoch++
		return s.claim, s.trust, nil
	}
	return c, end, fail("downgrade", s.claim.Key, err)
}

func (l *Lease) downgraded(sent time.Time, g driver.Grant) error {
	s := l.stake
	s.mu.Lock()
	s.frozen = false
	s.claim.Weight, s.claim.Ticket = 1, g.Ticket
	err := l.errLocked() // it may have ended meanwhile
	if s.state != held {
		s.oweLocked(l.tenant(), s.claim)
		s.mu.Unlock()
		return err
	}
	if trust := sent.Add(s.trustFor(g.TTL)); trust.After(s.trust) {
		s.trust = trust
	}
	s.locker.renewer.advance(s, s.locker.renewAt(sent, s.ttlFor(g.TTL)))
	ln := s.line
	s.line = nil // those behind may hold together with us
	s.mu.Unlock()
	ln.leave()
	return err
}

func (l *Lease) notDowngraded(err error, unsure bool) error {
	s := l.stake
	after := func() {}
	defer func() { after() }()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = false
	ended := l.errLocked()
	switch {
	case ended == nil && errors.Is(err, driver.ErrLost):
		after = s.loseLocked(Gone)
		return s.lost
	case ended == nil && !unsure:
		s.locker.renewer.schedule(s, bootclock.Coarse())
		return fail("downgrade", s.claim.Key, err)
	case ended == nil:
		after = s.loseLocked(Gone)
		s.lost.Err = fmt.Errorf("%w: %w", ErrUnknown, err)
		ended = s.lost
	}
	if unsure { // either kind is to be forgotten
		reader := s.claim
		reader.Weight = 1
		s.oweLocked(l.tenant(), s.claim, reader)
	}
	return ended
}

// tenant is the lease that the stake was lent to, of which a nested lease is
// a part.
func (l *Lease) tenant() *Lease {
	if l.outer != nil {
		return l.outer
	}
	return l
}

// errLocked says why the lease is not valid, as far as was noticed.
func (l *Lease) errLocked() error {
	t := l.tenant()
	switch {
	case t.lost != nil:
		return t.lost
	case l.unlocked:
		return &LostError{Key: l.Key(), Token: l.token, Cause: Released}
	}
	return nil
}

// overLocked reports whether an outer lease has ended, for itself and for
// those that are nested in it.
func (t *Lease) overLocked() bool { return t.lost != nil || t.depth == 0 }

// closeLocked ends what hangs on the lease, except for its contexts, which
// the caller ends after unlocking. lost is nil when it was unlocked.
func (l *Lease) closeLocked(lost *LostError) contexts {
	l.lost = lost
	if l.done != nil {
		close(l.done)
	}
	open := l.contexts
	l.contexts = nil
	return open
}

// contextCause is what context.Cause says of a lease that has ended.
func contextCause(err error) error {
	var lost *LostError
	if errors.As(err, &lost) && lost.Cause == Released {
		return nil
	}
	return err
}
