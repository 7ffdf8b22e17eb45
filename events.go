package baton

import (
	"context"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

// Events are functions that a Locker calls when something happens to its locks, for
// metrics, traces and tests. Any of them may be nil and then costs nothing. The
// goroutines that do the work call them, several at a time, with no mutex of this package
// locked. The functions must return soon: a lock may be held meanwhile. If Waiting or
// Acquired panics, the call gives up its lock or position, so that a program that
// recovers holds no lock unknowingly.
//
// The context is that of the call which asked for the lock. Lost and Released, which come
// after that call, get its values without its end. Renewed gets the background context.
//
// A call that was refused before it asked for a lock, for example because of a bad key,
// causes no event. Neither does a nested lock.
type Events struct {
	// Waiting is called when a call has to wait, at most once for each call and key.
	// Exactly one of Acquired and Failed follows.
	Waiting func(context.Context, LockEvent)

	// Acquired is called when a lease was issued, by Lock, TryLock, Attach, and for each
	// key by LockAll and TryLockAll. Exactly one of Lost and Released follows; another
	// goroutine may call that first. The number of held leases is that of Acquired less
	// those of Lost and Released.
	Acquired func(context.Context, LockEvent)

	// Failed is called when a call asked for a lock and got none.
	Failed func(context.Context, LockEvent)

	// Renewed is called for every background request that renews leases, or positions in
	// the store's queue.
	Renewed func(context.Context, RenewalEvent)

	// Lost is called when a lease ended without an Unlock or a Detach.
	Lost func(context.Context, LockEvent)

	// Released is called when a lease was unlocked or detached.
	Released func(context.Context, LockEvent)
}

// A LockEvent is one event of one lock. Fields may be added.
type LockEvent struct {
	Store string // the short name of the store: "redis"
	Key   string

	// Shared says that the lock is a read lock. Permits and Of are those of the option
	// Permits, else 0.
	Shared      bool
	Permits, Of int

	// Local says that another goroutine of this process is involved: the caller waits
	// behind it (Waiting), got the lock from it (Acquired), or left the lock to it
	// (Released).
	Local bool

	// Queued says, for Acquired and Failed, that the call had to wait, so that Waiting
	// came before. The number of waiting calls is that of Waiting less those of Acquired
	// and Failed with Queued.
	Queued bool

	// Since is when Waiting was called. The Acquired or Failed that follows has the same
	// value. It is zero if the call did not wait, or if Events.Waiting is nil.
	Since time.Time

	Token  int64         // of the lease; 0 for Waiting and Failed
	Waited time.Duration // since the call; only for Acquired and Failed
	Held   time.Duration // how long the lease lasted; only for Lost and Released

	// Err is what the call returned, for Failed; the *LostError, for Lost; for Released
	// what Unlock returned, or a *LostError with the cause Detached.
	Err error
}

// A RenewalEvent is one request that renewed leases, or positions in the store's queue.
// Fields may be added.
type RenewalEvent struct {
	Store  string
	Claims int           // leases and positions that the request carried
	Failed int           // those that the store could not answer
	Took   time.Duration // how long the request took
	Err    error         // of the first that failed

	// Slack is the least time that one of the leases had left, when the answer came,
	// before it would have been lost. It is negative if the answer came too late, and 0
	// if the request had only positions.
	Slack time.Duration
}

func (l *Locker) event(key string, weight, capacity int64) LockEvent {
	e := LockEvent{Store: l.traits.Store, Key: key}
	switch {
	case weight == driver.Whole:
	case capacity == driver.Whole:
		e.Shared = true
	default:
		e.Permits, e.Of = int(weight), int(capacity)
	}
	return e
}

// observed reports one call for a lock to the Events and the Logger: it waits, at
// most once, and is then acquired or failed.
type observed struct {
	locker           *Locker
	ctx              context.Context
	key              string
	weight, capacity int64
	began            acquire.Moment // zero if no Event needs it
	waits            bool
	since            time.Time // when Waiting was called
	local            bool      // another goroutine of this process handed the lock over
}

func (l *Locker) observe(ctx context.Context, key string, a *ask) observed {
	o := observed{locker: l, ctx: ctx, key: key, weight: a.weight, capacity: a.capacity}
	if e := l.cfg.Events; e.Acquired != nil || e.Failed != nil {
		o.began = l.clock.Now()
	}
	return o
}

// waiting reports that the call has to wait. If Events.Waiting panics, it calls giveUp.
func (o *observed) waiting(local bool, giveUp func()) {
	if o.waits {
		return
	}
	o.waits = true
	if f := o.locker.cfg.Events.Waiting; f != nil {
		o.since = time.Now()
		e := o.event()
		e.Local = local
		returned := false
		defer func() {
			if !returned {
				giveUp()
			}
		}()
		f(o.ctx, e)
		returned = true
	}
}

func (o *observed) failed(err error) {
	if f := o.locker.cfg.Events.Failed; f != nil {
		e := o.event()
		e.Queued, e.Waited, e.Err = o.waits, o.waited(), err
		f(o.ctx, e)
	}
}

// acquired reports the lease that was issued, and unlocks it if Events.Acquired panics.
func (o *observed) acquired(lease *Lease) {
	l := o.locker
	if f := l.cfg.Events.Acquired; f != nil {
		e := o.event()
		e.Local, e.Queued, e.Token, e.Waited = o.local, o.waits, lease.token, o.waited()
		returned := false
		defer func() {
			if !returned {
				_ = lease.Unlock()
			}
		}()
		f(o.ctx, e)
		returned = true
	}
	if l.debug(o.ctx) {
		l.cfg.Logger.DebugContext(o.ctx, "lock acquired", l.logLock(lease.Key(), lease.token))
	}
}

func (o *observed) event() LockEvent {
	e := o.locker.event(o.key, o.weight, o.capacity)
	e.Since = o.since
	return e
}

func (o *observed) waited() time.Duration { return o.locker.clock.Now().Sub(o.began) }

// event describes the end of the lease.
func (l *Lease) event(ended acquire.Moment) LockEvent {
	k := l.keeper
	k.mu.Lock()
	c := k.acq.Claim()
	k.mu.Unlock()
	e := k.locker.event(c.Key, c.Weight, c.Capacity)
	e.Token, e.Held = l.token, ended.Sub(l.since)
	return e
}

// released reports an Unlock or a Detach of a valid lease. local says that the next
// goroutine of the local queue got the lock.
func (l *Locker) released(lease *Lease, now acquire.Moment, local bool, err error) {
	if call := lease.root().call; call != nil && l.cfg.Events.Released != nil {
		e := lease.event(now)
		e.Local, e.Err = local, err
		l.cfg.Events.Released(context.WithoutCancel(call), e)
	}
	if l.debug(context.Background()) {
		l.cfg.Logger.Debug("lock released", l.logLock(lease.Key(), lease.token), "local", local, "error", err)
	}
}

// reportLoss reports a lease that ended without an Unlock. call is nil if there was no
// Acquired event.
func (l *Locker) reportLoss(lease *Lease, call context.Context, ended acquire.Moment, lost *LostError) {
	if call != nil {
		l.lost(lease, call, ended, lost)
	}
	l.cfg.Logger.Error("lock lost", l.logLock(lost.Key, lost.Token), "cause", lost.Cause.String(), "error", lost.Err)
}

func (l *Locker) lost(lease *Lease, call context.Context, ended acquire.Moment, lost *LostError) {
	if f := l.cfg.Events.Lost; f != nil {
		e := lease.event(ended)
		e.Err = lost
		f(context.WithoutCancel(call), e)
	}
}

// announce reports a lease some time after it was issued: its caller was not certain to
// get it before. The lease may have been lost since.
func (o *observed) announce(lease *Lease) {
	o.acquired(lease)
	l, k := o.locker, lease.keeper
	if !l.watched {
		return
	}
	now := l.clock.Now()
	k.mu.Lock()
	lease.call = o.ctx
	lost := k.lost()
	k.mu.Unlock()
	if lost != nil {
		l.lost(lease, o.ctx, now, lost)
	}
}

func (l *Locker) renewed(batch []renewal, answers []driver.Renewal, sent, answered acquire.Moment) {
	e := RenewalEvent{Store: l.traits.Store, Claims: len(batch), Took: answered.Sub(sent)}
	leases := 0
	for i, r := range batch {
		if answers[i].State == driver.Unknown {
			e.Failed++
			if e.Err == nil {
				e.Err = answers[i].Err
			}
		}
		if r.Deadline != 0 {
			if slack := r.Deadline.Sub(answered); leases == 0 || slack < e.Slack {
				e.Slack = slack
			}
			leases++
		}
	}
	if f := l.cfg.Events.Renewed; f != nil {
		f(context.Background(), e)
	}
	if e.Failed > 0 {
		l.cfg.Logger.Warn("locks could not be renewed, will try again", "store", e.Store, "failed", e.Failed, "of", e.Claims, "error", e.Err)
	}
}
