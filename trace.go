package baton

import (
	"context"
	"time"
)

// Trace is told what happens to the locks of a Locker. Any function may be nil. The
// goroutines that do the work call them, several at a time, with no mutex of this
// package locked. They should return soon and must not panic: that could leave the
// local queue without a front.
type Trace struct {
	// Waiting is called once when a Lock has to wait: in the local queue, behind
	// other goroutines of this process (local), or at once in the store's queue.
	// Exactly one of Acquired and Failed follows.
	Waiting func(key string, local bool)

	// Acquired is called when a lease was issued, with the time that took. It is
	// not called for a nested lock.
	Acquired func(key string, token int64, waited time.Duration)

	// Failed is called when the lock was asked for and not acquired. It is not
	// called for a call that was refused before it asked for anything, such as one
	// with a bad key.
	Failed func(key string, err error)

	// Renewed is called for every request that renews leases or positions in the
	// queue, with how many claims it carried, how many of them the store could not
	// answer, and how long it took.
	Renewed func(claims, failed int, took time.Duration)

	// Lost is called when a lease ended without an Unlock.
	Lost func(*LostError)

	// Released is called when a lease was unlocked, with the time it was held.
	// local says that the next goroutine of this process got the lock.
	Released func(key string, token int64, held time.Duration, local bool)
}

// observed reports one call for a lock to the Trace and the Logger: it waits, at
// most once, and is then acquired or failed.
type observed struct {
	locker *Locker
	ctx    context.Context
	key    string
	began  moment // zero if Trace.Acquired is nil
	waits  bool
}

// asked starts the time.
func (o *observed) asked() {
	if o.locker.cfg.Trace.Acquired != nil {
		o.began = o.locker.clock.coarse()
	}
}

// waiting reports that the call has to wait.
func (o *observed) waiting(local bool) {
	if f := o.locker.cfg.Trace.Waiting; f != nil && !o.waits {
		o.waits = true
		f(o.key, local)
	}
}

// failed reports that there is no lease.
func (o *observed) failed(err error) {
	if f := o.locker.cfg.Trace.Failed; f != nil {
		f(o.key, err)
	}
}

// acquired reports the lease that was issued.
func (o *observed) acquired(lease *Lease) {
	l := o.locker
	if f := l.cfg.Trace.Acquired; f != nil {
		f(lease.Key(), lease.token, l.clock.coarse().sub(o.began))
	}
	if l.debug(o.ctx) {
		l.cfg.Logger.DebugContext(o.ctx, "lock acquired", l.logLock(lease.Key(), lease.token))
	}
}

// released reports an Unlock of a lease that was not lost. local says that the next
// goroutine of the local queue got the lock.
func (l *Locker) released(lease *Lease, now moment, local bool, err error) {
	if f := l.cfg.Trace.Released; f != nil {
		f(lease.Key(), lease.token, now.sub(lease.since), local)
	}
	if l.debug(context.Background()) {
		l.cfg.Logger.Debug("lock released", l.logLock(lease.Key(), lease.token), "local", local, "error", err)
	}
}

// reportLoss reports a lease that ended without an Unlock.
func (l *Locker) reportLoss(lost *LostError) {
	if f := l.cfg.Trace.Lost; f != nil {
		f(lost)
	}
	l.cfg.Logger.Error("lock lost", l.logLock(lost.Key, lost.Token), "cause", lost.Cause.String(), "error", lost.Err)
}
