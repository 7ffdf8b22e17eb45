package baton

import (
	"context"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// A keeper is the shell of an acquisition: its mutex, the goroutine that waits for
// it, the lease that was made of it. It passes every event to the acquisition and
// performs the effects.
//
// Events come from the goroutine that waits or holds, from the renewer, and from
// the store's hints. Mutexes are locked in the order shard of the local queue,
// keeper, renewer, and none is held during a call to the store or to the user.
type keeper struct {
	locker *Locker

	mu        sync.Mutex
	acq       acquisition
	timer     timer        // the renewer's
	armed     moment       // when the timer fires; zero: never
	waiter    chan outcome // cap 1; nil before there is a waiter
	lease     *Lease       // the last one issued, until its last Unlock
	queue     *waitQueue   // the local queue whose front waits for it or holds it, if any
	stopWatch func()
	underWay  int           // requests to the store that may set the end of the claim
	quiet     chan struct{} // closed when none is; nil: nobody waits for that
	first     Lease         // memory for the first lease
}

// outcome is what became of a position in the store's queue.
type outcome struct {
	granted bool
	err     error // final; without grant and error the position is lost: request again
}

// newKeeper makes the acquisition of a lock that the front of q wants. q may be
// nil: then no local queue learns of an outage.
func (l *Locker) newKeeper(key string, a *ask, q *waitQueue) *keeper {
	c := driver.Claim{Key: key, ID: driver.NewID(), Owner: l.ownerOf(a), Weight: a.weight, Capacity: a.capacity}
	k := l.keep(c, a.terms, 0, q)
	k.acq.most = a.maxWaiting // no hint reads it
	return k
}

func (l *Locker) keep(c driver.Claim, t *terms, ttlCap time.Duration, q *waitQueue) *keeper {
	k := &keeper{locker: l, queue: q}
	k.acq.terms, k.acq.claim, k.acq.ttlCap = t, c, ttlCap
	k.timer.owner = k
	if q != nil {
		if known := q.outage.Load(); known != nil {
			k.acq.outage = *known
		}
	}
	k.watch()
	return k
}

// watch begins to listen to the store's hints. Before the first request only hint
// can run at the same time, and it does not read stopWatch.
func (k *keeper) watch() {
	if w := k.locker.watcher; w != nil {
		k.stopWatch = w.Watch(k.acq.claim, k.hint)
	}
}

// commit performs the effects of an event and unlocks mu, which the caller locked
// for the event.
func (k *keeper) commit(e effects) {
	if e == 0 {
		k.setTimer()
		k.mu.Unlock()
		return
	}
	after := k.apply(e)
	k.mu.Unlock()
	after.perform()
}

func (k *keeper) setTimer() {
	if k.armed != k.acq.wake {
		k.armed = k.acq.wake
		k.locker.renewer.set(&k.timer, k.armed)
	}
}

// aftermath holds the effects that are performed without the mutex.
type aftermath struct {
	do     effects
	locker *Locker
	terms  *terms
	lost   *LostError
	lease  *Lease          // that was lost
	call   context.Context // of its Acquired event; nil if there was none
	open   contexts
	queue  *waitQueue // to leave
	behind *waitQueue // whose callers are to know of an outage
	stop   func()
	claims []driver.Claim // that the store is to forget
}

// apply performs the effects that need the mutex.
func (k *keeper) apply(e effects) aftermath {
	k.setTimer()
	after := aftermath{do: e, locker: k.locker, terms: k.acq.terms, lost: k.acq.lost}
	switch {
	case e&grantWaiter != 0:
		k.settle(outcome{granted: true})
	case e&failWaiter != 0:
		k.settle(outcome{err: k.acq.lastErr})
	case e&startAgain != 0:
		k.settle(outcome{})
	}
	if e&noteOutage != 0 {
		k.queue.note(k.acq.outage)
		after.behind = k.queue
	}
	if e&endLease != 0 {
		after.open = k.lease.close()
	}
	if e&reportLoss != 0 {
		after.lease, after.call = k.lease, k.lease.call
	}
	if e&leaveQueue != 0 {
		after.queue, k.queue = k.queue, nil
	}
	if e&stopWatching != 0 {
		after.stop, k.stopWatch = k.stopWatch, nil
	}
	after.claims = k.toForget(e)
	return after
}

func (a *aftermath) perform() {
	a.open.end(a.lost)
	a.queue.leave()
	a.locker.failBehind(a.behind)
	if a.stop != nil {
		a.stop()
	}
	for _, c := range a.claims {
		a.locker.abandon(c, a.terms)
	}
	if a.do&reportLoss != 0 {
		go a.locker.reportLoss(a.lease, a.call, a.locker.clock.coarse(), a.lost) // the user's code must not delay other losses
	}
}

func (k *keeper) settle(o outcome) {
	select {
	case k.waiter <- o:
	default: // there is no waiter any more
	}
}

// toForget returns the claims that the store is to forget, and clears those that
// were pending.
func (k *keeper) toForget(e effects) (claims []driver.Claim) {
	if e&releasePending != 0 {
		claims, k.acq.pending = k.acq.pending, nil
	}
	if e&releaseClaim != 0 {
		claims = append(claims, k.acq.claim)
	}
	return claims
}

// The events. Unlock, Downgrade, Rename and Detach have theirs.

// request begins an attempt.
func (k *keeper) request(sent moment, wait bool) driver.Request {
	slow := k.locker.latency.last()
	k.mu.Lock()
	r := k.acq.request(sent, wait, slow)
	k.commit(0)
	return r
}

// answered takes the store's answer to a request. It reports whether a lease can be
// issued; otherwise the caller waits.
func (k *keeper) answered(sent moment, g driver.Grant) (granted bool) {
	l := k.locker
	now := l.clock.coarse()
	l.latency.saw(now.sub(sent))
	slow := l.latency.last()
	k.mu.Lock()
	e := k.acq.answered(now, sent, g, slow)
	granted = e&grantWaiter != 0
	if !granted {
		k.waiter = make(chan outcome, 1)
	}
	k.commit(e &^ grantWaiter) // the caller itself is the waiter
	return granted
}

// requestFailed takes the store's error. The caller performs what follows: restart,
// retryRequest after a pause, or nothing more.
func (k *keeper) requestFailed(sent moment, err error, patient bool) effects {
	now := k.locker.clock.coarse()
	k.mu.Lock()
	e := k.acq.requestFailed(now, sent, err, patient)
	k.commit(e)
	return e
}

func (k *keeper) restart() {
	k.mu.Lock()
	k.acq.restart(driver.NewID())
	k.commit(0)
	k.watch()
}

// hint is called by the store, from any goroutine.
func (k *keeper) hint(h driver.Hint) {
	now, slow := k.locker.clock.coarse(), k.locker.latency.last()
	k.mu.Lock()
	k.commit(k.acq.hint(now, h, slow))
}

// due is called by the renewer. ok says that the question is to be sent.
func (k *keeper) due(now moment) (r renewal, ok bool) {
	k.mu.Lock()
	k.armed = 0 // the timer has run out
	q, e := k.acq.due(now)
	if e&askStore != 0 {
		k.underWay++
	}
	k.commit(e)
	return renewal{k, q}, e&askStore != 0
}

// renewed takes the store's answer to a question. It does not count if the ID or the
// kind of the lock has changed since.
func (k *keeper) renewed(sent moment, q question, r driver.Renewal) (counts bool) {
	l := k.locker
	k.mu.Lock()
	counts = k.acq.round == q.round
	e := k.acq.renewed(l.clock.now(), sent, q, r, l.latency.last())
	k.answer()
	k.commit(e)
	return counts
}

// answer notes that the store has answered one of the requests under way, or that it
// will not. The mutex is locked.
func (k *keeper) answer() {
	if k.underWay--; k.underWay == 0 && k.quiet != nil {
		close(k.quiet)
		k.quiet = nil
	}
}

// awaitAnswers waits, after the end, until no request that may set the end of the claim
// is under way, or for d. It returns the claim, whose kind a Downgrade may have changed.
func (k *keeper) awaitAnswers(d time.Duration) driver.Claim {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.underWay > 0 {
		quiet := make(chan struct{})
		k.quiet = quiet
		k.mu.Unlock()
		t := time.NewTimer(d)
		select {
		case <-quiet:
		case <-t.C:
		}
		t.Stop()
		k.mu.Lock()
	}
	return k.acq.claim
}

// issue makes a lease for the one goroutine that was granted it. q is the local
// queue whose front it stays, if any. The result is nil if the grant has been lost.
func (k *keeper) issue(q *waitQueue, part bool, call context.Context) *Lease {
	now := k.locker.clock.coarse()
	k.mu.Lock()
	e := k.acq.issue(now, part)
	if !k.acq.leased {
		k.commit(e)
		return nil
	}
	t := &k.first
	if k.first.keeper != nil {
		t = new(Lease)
	} else if q != nil {
		q.holder.Store(k)
	}
	*t = Lease{keeper: k, since: now, token: k.acq.leaseToken()}
	if k.locker.watched {
		t.call = call
	}
	k.lease, k.queue = t, q
	k.commit(e)
	return t
}

// fitToHandOver reports whether the lock may go to another goroutine.
func (k *keeper) fitToHandOver() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.fitToHandOver(k.locker.clock.coarse())
}

// suits reports whether a caller asks for what the keeper was made for. The mutex is
// locked.
func (k *keeper) suits(c *caller) bool {
	a := &k.acq
	return c.ask.weight == a.claim.Weight && c.ask.capacity == a.claim.Capacity && c.ask.terms.same(a.terms) && k.locker.ownerOf(&c.ask) == a.claim.Owner
}

// unissued reports whether no lease was issued of the present grant, if there is one: who
// gets the keeper waits for an outcome. requests says that the store must be asked again
// for that.
func (k *keeper) unissued() (unissued, requests bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.issued == 0, k.acq.phase == requesting
}

// isHeld reports whether the lock is held.
func (k *keeper) isHeld() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.phase == held
}

// quit ends an acquisition that is neither waited for nor held any more. It returns
// the claim that the store is to forget, if there is one, and until when the store is to
// keep it, because of a MinHold.
func (k *keeper) quit() (c driver.Claim, keep moment, known bool) {
	k.mu.Lock()
	e := k.acq.quit()
	c, keep = k.acq.claim, k.acq.keepUntil
	k.commit(e &^ releaseClaim)
	return c, keep, e&releaseClaim != 0
}

// lostError says why the acquisition ended without an unlock.
func (k *keeper) lostError() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.acq.lost == nil {
		return nil
	}
	return k.acq.lost
}

// saidLast is what the store said last: err, unless the caller's own context is all that
// err tells of.
func (k *keeper) saidLast(err error) error {
	if !isContext(err) {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.outage.err
}

// pause is how long to wait before the next request to the store.
func (k *keeper) pause() time.Duration {
	now := k.locker.clock.coarse()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.terms.pause(now.sub(k.acq.outage.since))
}

// key is the name of the lock. It is set before another goroutine knows the keeper, and
// never changes.
func (k *keeper) key() string { return k.acq.claim.Key }

// heldError describes the holder that is the front of q, for an error. It is nil if
// that holder no longer holds the lock, or no longer is the front of q.
func (k *keeper) heldError(q *waitQueue) *HeldError {
	now := k.locker.clock.coarse()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.acq.leased || k.queue != q {
		return nil
	}
	return &HeldError{
		Key: q.key, Owner: k.acq.claim.Owner, Waiting: int(q.waiting.Load()),
		Age: now.sub(k.lease.since), Remaining: k.acq.deadline.sub(now), Local: true,
	}
}
