package baton

import (
	"context"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

// A keeper is the shell of an acquisition: its mutex, the goroutine that waits for it,
// and the lease that was made of it. It passes every event to the acquisition and
// performs the effects.
//
// Events come from the goroutine that waits or holds, from the renewer, and from the
// store's hints. Mutexes are locked in the order shard of the local queue, keeper,
// renewer. None is held during a call to the store or to the user.
// keeper, renewer, and none is held during a call to the store or to the user.
type keeper struct {
	locker *Locker

	mu        sync.Mutex
	acq       acquire.Machine
	timer     timer          // the renewer's
	armed     acquire.Moment // when the timer fires; zero: never
	waiter    chan outcome   // cap 1; nil before there is a waiter
	lease     *Lease         // the last one issued, until its last Unlock
	queue     *waitQueue     // the local queue whose front waits for it or holds it, if any
	stopWatch func()
	underWay  int           // requests to the store, not yet answered, that may set the end of the claim
	quiet     chan struct{} // closed when underWay becomes 0; nil: no goroutine waits for that
	lostOf    *acquire.Loss // the loss that lostErr describes
	lostErr   *LostError    // one for each loss, so that errors.Is finds it
	first     Lease         // memory for the first lease
}

// outcome is the end of a wait in the store's queue.
type outcome struct {
	granted bool
	err     error // final; without grant and error the position is lost, and the caller requests again
}

// newKeeper makes the acquisition of a lock that the front of q wants. With a nil q no
// local queue learns of an outage.
func (l *Locker) newKeeper(key string, a *ask, q *waitQueue) *keeper {
	c := driver.Claim{Key: key, ID: driver.NewID(), Owner: l.ownerOf(a), Weight: a.weight, Capacity: a.capacity}
	return l.keep(c, a.terms, a.maxWaiting, 0, q)
}

func (l *Locker) keep(c driver.Claim, t *acquire.Terms, maxWaiting int, ttlCap time.Duration, q *waitQueue) *keeper {
	var outage acquire.Outage
	if q != nil {
		if known := q.outage.Load(); known != nil {
			outage = *known
		}
	}
	k := &keeper{locker: l, queue: q, acq: acquire.New(t, c, maxWaiting, ttlCap, outage)}
	k.timer.owner = k
	k.watch()
	return k
}

// watch subscribes to the store's hints. Until the first request only hint can run at the
// same time, and hint does not read stopWatch.
func (k *keeper) watch() {
	if w := k.locker.watcher; w != nil {
		k.stopWatch = w.Watch(k.acq.Claim(), k.hint)
	}
}

// commit performs the effects of an event. It unlocks mu, which the caller locked for the
// event.
func (k *keeper) commit(e acquire.Effects) {
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
	if wake := k.acq.Wake(); k.armed != wake {
		k.armed = wake
		k.locker.renewer.set(&k.timer, wake)
	}
}

// aftermath holds the effects that commit performs without the mutex.
type aftermath struct {
	do     acquire.Effects
	locker *Locker
	terms  *acquire.Terms
	lost   *LostError
	lease  *Lease          // that was lost
	call   context.Context // the context of its Acquired event; nil if there was none
	open   contexts
	queue  *waitQueue // to leave
	behind *waitQueue // its callers learn of an outage
	stop   func()
	claims []driver.Claim // for the store to forget
}

// apply performs the effects that need the mutex.
func (k *keeper) apply(e acquire.Effects) aftermath {
	k.setTimer()
	after := aftermath{do: e, locker: k.locker, terms: k.acq.Terms(), lost: k.lost()}
	switch {
	case e&acquire.GrantWaiter != 0:
		k.settle(outcome{granted: true})
	case e&acquire.FailWaiter != 0:
		k.settle(outcome{err: k.acq.LastErr()})
	case e&acquire.StartAgain != 0:
		k.settle(outcome{})
	}
	if e&acquire.NoteOutage != 0 {
		k.queue.note(k.acq.Outage())
		after.behind = k.queue
	}
	if e&acquire.EndLease != 0 {
		after.open = k.lease.close()
	}
	if e&acquire.ReportLoss != 0 {
		after.lease, after.call = k.lease, k.lease.call
	}
	if e&acquire.LeaveQueue != 0 {
		after.queue, k.queue = k.queue, nil
	}
	if e&acquire.StopWatching != 0 {
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
	if a.do&acquire.ReportLoss != 0 {
		go a.locker.reportLoss(a.lease, a.call, a.locker.clock.Now(), a.lost) // on a goroutine of its own: the user's code must not delay other losses
	}
}

func (k *keeper) settle(o outcome) {
	select {
	case k.waiter <- o:
	default: // the waiter has gone
	}
}

// toForget returns the claims for the store to forget, and clears the pending ones.
func (k *keeper) toForget(e acquire.Effects) (claims []driver.Claim) {
	if e&acquire.ReleasePending != 0 {
		claims = k.acq.TakePending()
	}
	if e&acquire.ReleaseClaim != 0 {
		claims = append(claims, k.acq.Claim())
	}
	return claims
}

// The events. Those of Unlock, Downgrade, Rename and Detach are in the files of these
// methods.

func (k *keeper) request(sent acquire.Moment, wait bool) driver.Request {
	slow := k.locker.latency.Last()
	k.mu.Lock()
	r := k.acq.Request(sent, wait, slow)
	k.commit(0)
	return r
}

// answered passes on the store's answer to a request. It reports whether a lease can be
// issued; otherwise the caller waits.
func (k *keeper) answered(sent acquire.Moment, g driver.Grant) (granted bool) {
	l := k.locker
	now := l.clock.Now()
	l.latency.Saw(now.Sub(sent))
	slow := l.latency.Last()
	k.mu.Lock()
	e := k.acq.Answered(now, sent, g, slow)
	granted = e&acquire.GrantWaiter != 0
	if !granted {
		k.waiter = make(chan outcome, 1)
	}
	k.commit(e &^ acquire.GrantWaiter) // the caller itself is the waiter
	return granted
}

// requestFailed passes on the store's error. The caller performs the effects that it
// returns: restart, retryRequest after a pause, or none.
func (k *keeper) requestFailed(sent acquire.Moment, err error, patient bool) acquire.Effects {
	now := k.locker.clock.Now()
	k.mu.Lock()
	e := k.acq.RequestFailed(now, sent, err, patient)
	k.commit(e)
	return e
}

func (k *keeper) restart() {
	k.mu.Lock()
	k.acq.Restart(driver.NewID())
	k.commit(0)
	k.watch()
}

// hint is called by the store, on any goroutine.
func (k *keeper) hint(h driver.Hint) {
	now, slow := k.locker.clock.Now(), k.locker.latency.Last()
	k.mu.Lock()
	k.commit(k.acq.Hint(now, h, slow))
}

// due is owner.due, for the renewer. It returns the question to send, if ok.
func (k *keeper) due(now acquire.Moment) (q acquire.Question, ok bool) {
	k.mu.Lock()
	k.armed = 0 // the timer has run out
	q, e := k.acq.Due(now)
	if e&acquire.AskStore != 0 {
		k.underWay++
	}
	k.commit(e)
	return q, e&acquire.AskStore != 0
}

// renewed is owner.renewed. The answer does not count if the ID or the kind of the lock
// has changed since.
func (k *keeper) renewed(sent acquire.Moment, q acquire.Question, r driver.Renewal) (counts bool) {
	l := k.locker
	if r.State == driver.Unknown {
		r.Err = blame(context.Background(), r.Err)
	}
	k.mu.Lock()
	counts = k.acq.Counts(q)
	e := k.acq.Renewed(l.clock.Now(), sent, q, r, l.latency.Last())
	k.answer()
	k.commit(e)
	return counts
}

// renew sends questions to the store, those with the same TTL in one batch.
func (l *Locker) renew(batch []renewal) {
	for len(batch) > 0 {
		ttl := batch[0].TTL
		n := 0 // how many at the front have the same TTL
		for i := range batch {
			if batch[i].TTL == ttl {
				batch[n], batch[i] = batch[i], batch[n]
				n++
			}
		}
		if n == len(batch) {
			l.renewBatch(batch, ttl)
			return
		}
		go l.renewBatch(batch[:n:n], ttl)
		batch = batch[n:]
	}
}

func (l *Locker) renewBatch(batch []renewal, ttl time.Duration) {
	claims := make([]driver.Claim, len(batch))
	patience := batch[0].Patience
	for i, r := range batch {
		claims[i] = r.Claim
		patience = min(patience, r.Patience)
	}
	sent := l.clock.Now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	answers := l.store.Renew(ctx, claims, ttl)
	cancel()
	answered := l.clock.Now()
	l.latency.Saw(answered.Sub(sent))

	for i, r := range batch {
		r.owner.renewed(sent, r.Question, answers[i])
	}
	l.renewed(batch, answers, sent, answered)
}

// answer notes that a request under way was answered, or failed. The caller has locked
// the mutex.
func (k *keeper) answer() {
	if k.underWay--; k.underWay == 0 && k.quiet != nil {
		close(k.quiet)
		k.quiet = nil
	}
}

// awaitAnswers waits, after the end of the acquisition, until underWay is 0, at most for
// d. It returns the claim, whose kind a Downgrade may have changed.
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
	return k.acq.Claim()
}

// issue makes a lease for the goroutine that was granted the lock. q is the local queue
// whose front that goroutine remains, if any. The result is nil if the grant has been
// lost.
func (k *keeper) issue(q *waitQueue, part bool, call context.Context) *Lease {
	now := k.locker.clock.Now()
	k.mu.Lock()
	e := k.acq.Issue(now, part)
	if !k.acq.Leased() {
		k.commit(e)
		return nil
	}
	t := &k.first
	if k.first.keeper != nil {
		t = new(Lease)
	} else if q != nil {
		q.holder.Store(k)
	}
	*t = Lease{keeper: k, since: now, token: k.acq.LeaseToken()}
	if k.locker.watched {
		t.call = call
	}
	k.lease, k.queue = t, q
	k.commit(e)
	return t
}

func (k *keeper) fitToHandOver() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.FitToHandOver(k.locker.clock.Now())
}

// suits reports whether c asks for the keeper's kind, owner and terms. The caller has
// locked the mutex.
func (k *keeper) suits(c *caller) bool {
	return k.acq.Suits(k.locker.ownerOf(&c.ask), c.ask.weight, c.ask.capacity, c.ask.terms)
}

// unissued reports whether the goroutine that takes over the keeper must wait for an
// outcome: there is no grant, or a lease was not issued of it. requests says that this
// goroutine must first send a request.
func (k *keeper) unissued() (unissued, requests bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.Unissued()
}

func (k *keeper) isHeld() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.IsHeld()
}

// quit ends an acquisition that no caller waits for or holds. It returns the claim for
// the store to forget, if there is one, and until when a MinHold keeps it.
func (k *keeper) quit() (c driver.Claim, keep acquire.Moment, known bool) {
	k.mu.Lock()
	e := k.acq.Quit()
	c, keep = k.acq.Claim(), k.acq.KeepUntil()
	k.commit(e &^ acquire.ReleaseClaim)
	return c, keep, e&acquire.ReleaseClaim != 0
}

// lostError is the error of an acquisition that ended without an unlock.
func (k *keeper) lostError() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if lost := k.lost(); lost != nil {
		return lost
	}
	return nil
}

// lost is the error for the machine's loss, or nil; always the same for one loss. The
// caller has locked the mutex.
func (k *keeper) lost() *LostError {
	l := k.acq.Lost()
	if l == nil {
		return nil
	}
	if k.lostOf != l {
		k.lostOf, k.lostErr = l, &LostError{Key: k.key(), Token: l.Token, Cause: Cause(l.Cause), Err: l.Err}
	}
	return k.lostErr
}

// saidLast is the store's last error: err, or the one before if err is only the error of
// a context.
func (k *keeper) saidLast(err error) error {
	if !acquire.IsContext(err) {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.Outage().Err
}

// pause is the time to wait before the next request to the store.
func (k *keeper) pause() time.Duration {
	now := k.locker.clock.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.acq.Terms().Pause(now.Sub(k.acq.Outage().Since))
}

// key needs no mutex: it never changes after newKeeper.
func (k *keeper) key() string { return k.acq.Key() }

// heldError describes the holder that is the front of q. It is nil if the keeper no
// longer holds the lock, or no longer is at the front of q.
func (k *keeper) heldError(q *waitQueue) *HeldError {
	now := k.locker.clock.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.acq.Leased() || k.queue != q {
		return nil
	}
	return &HeldError{
		Key: q.key, Owner: k.acq.Claim().Owner, Waiting: int(q.waiting.Load()),
		Age: now.Sub(k.lease.since), Remaining: k.acq.Deadline().Sub(now), Local: true,
	}
}
