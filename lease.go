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

// A Lease is a held lock. The Locker renews it in the background until it is unlocked or
// lost. All methods are safe for concurrent use.
type Lease struct {
	keeper *keeper
	token  int64
	since  acquire.Moment
	outer  *Lease          // of a nested lease: the lease that it is nested in
	call   context.Context // of its Acquired event, set if Events need to learn of the end

	// Guarded by keeper.mu.
	unlocked bool  // by its holder
	failed   error // the result of Unlock
	done     chan struct{}
	asked    chan string
	contexts contexts
}

// Key is the name of the lock.
func (l *Lease) Key() string { return l.keeper.key() }

// Token is the fencing token: positive, and higher than that of every earlier lease on
// the key. It never changes. Pass it to what the lock protects. It may exceed 2⁵³: in
// JSON and JavaScript it must be a string.
//
// The token is no secret and gives no right to the lock. Detach and Attach continue a
// lease in another process.
func (l *Lease) Token() int64 { return l.token }

// Err is nil while the lease is valid, and a *LostError after its end. Err looks at the
// clock: a process that was paused learns of the loss from its first call.
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

// Deadline is when the lease ends unless it is renewed before. It is not in the future
// for a lease that has ended.
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

// Claim is the store's name for the lease. Its ID is a secret: a program that has it can
// end the lease. After Unlock the next lease of this process may have the same claim: see
// Pin. The error is a *LostError if the lease has ended.
func (l *Lease) Claim() (driver.Claim, error) { return l.claim(false) }

// Pin is Claim for callers that pass the claim to the store themselves, such as "InTx" of
// the SQL stores, which lets a transaction commit only while the lease is valid. After
// Pin the process does not hand the lease over to another goroutine, so no later lease
// has the same claim.
func (l *Lease) Pin() (driver.Claim, error) { return l.claim(true) }

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

// Extend renews the lease now and waits for the store's answer. Leases are renewed
// without it: Extend is for a holder that wants the full TTL before a step that must not
// be cut short. It returns the time until which the lease lasts at least; Config.MaxHold
// may bound it.
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
		case !counts: // the answer is about the kind that the lock had before
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

// Rename makes the store show owner as the holder of the lock. The rules for owner are
// those of the option Owner; "" is Config.Owner. The lock itself, its token and its end
// stay as they are. A nested lease and its outer lease are one lock: Rename of either
// renames both. After Rename the process does not hand the lease over to another
// goroutine.
//
// Errors: ErrUnsupported if the store cannot rename; a *LostError if the lease has ended.
// After ErrUnknown or a context's error the store may show either owner, and likewise
// after two calls at the same time.
func (l *Lease) Rename(ctx context.Context, owner string) error {
	k := l.keeper
	lk := k.locker
	r, ok := driver.As[driver.Renamer](lk.store)
	if !ok {
		return fmt.Errorf("baton: store %s cannot change the owner of a lock that is held: %w", lk.traits.Store, ErrUnsupported)
	}
	if err := ctx.Err(); err != nil {
		return fail("rename", l.Key(), err)
	}
	owner = lk.ownerOf(&ask{owner: owner})
	_, err := lk.insist(ctx, k.acq.Terms(), func(call context.Context, _ acquire.Moment) error {
		c, err := l.Pin() // a late request must not rename the next lease of this process
		if err != nil {
			return err
		}
		return r.Rename(call, c, owner)
	})
	k.mu.Lock()
	k.commit(k.acq.Renamed(lk.clock.Now(), owner, err))
	if lost := l.Err(); lost != nil {
		return lost
	}
	if err != nil {
		return fail("rename", l.Key(), blame(ctx, err))
	}
	return nil
}

// Downgrade turns the exclusive lock into a read lock without a gap: no writer gets it
// in between. The token stays. ctx bounds the call.
//
// Errors: ErrUnsupported if the store cannot downgrade, a *LostError if the lease has
// ended, ErrCountedOn and no effect if nested locks need the lease. If ctx ended or the
// store failed before the outcome was certain, the lease is lost with ErrUnknown, because
// its kind is unknown.
func (l *Lease) Downgrade(ctx context.Context) error {
	k := l.keeper
	lk := k.locker
	d, ok := driver.As[driver.Downgrader](lk.store)
	if !ok || !lk.traits.Shared {
		return fmt.Errorf("baton: store %s has no read locks to downgrade to: %w", lk.traits.Store, ErrUnsupported)
	}
	if err := l.Err(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fail("downgrade", l.Key(), whyEnded(ctx))
	}
	c, end, err := l.beginDowngrade()
	if err != nil {
		return err
	}
	var at acquire.Moment
	var g driver.Grant
	unsure, err := lk.insist(ctx, k.acq.Terms(), func(call context.Context, sent acquire.Moment) (err error) {
		if lost := l.Err(); lost != nil {
			return lost
		}
		call, cancel := context.WithTimeout(call, end.Sub(sent))
		defer cancel()
		at = sent
		if g, err = d.Downgrade(call, c, k.acq.Terms().StoreTTL()); err != nil {
			k.mu.Lock()
			k.acq.Unanswered(blame(ctx, err))
			k.commit(0)
		}
		return err
	})
	if err != nil {
		return l.downgradeFailed(blame(ctx, err), unsure)
	}
	return l.downgraded(at, g)
}

// beginDowngrade keeps the lock from being renewed, handed over or nested in during the
// change of its kind.
func (l *Lease) beginDowngrade() (c driver.Claim, end acquire.Moment, err error) {
	k := l.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := l.ended(); err != nil {
		return c, end, err
	}
	if err := k.acq.Downgrade(); err != nil {
		return c, end, fail("downgrade", k.key(), err)
	}
	k.underWay++
	return k.acq.Claim(), k.acq.Deadline(), nil
}

func (l *Lease) downgraded(sent acquire.Moment, g driver.Grant) error {
	k := l.keeper
	k.mu.Lock()
	e := k.acq.Downgraded(sent, g)
	k.answer()
	err := l.ended() // meanwhile
	k.commit(e)
	return err
}

func (l *Lease) downgradeFailed(failed error, unsure bool) error {
	k := l.keeper
	k.mu.Lock()
	e := k.acq.DowngradeFailed(k.locker.clock.Now(), failed, unsure)
	k.answer()
	err := l.ended()
	k.commit(e)
	if err == nil {
		return fail("downgrade", k.key(), failed)
	}
	return err
}

const askEvery = time.Second

// Asked returns a channel on which the lease receives the reason of each request to
// release its lock (Locker.Ask), including earlier requests that still last. It is closed
// when the lease ends. A reason that comes before the last one was received is dropped.
//
// From the first call on the lease looks for requests in the store, about every third of
// its TTL and at most once a second. All calls return the same channel, also those of
// nested leases. The channel is closed at once if the store cannot show its locks, or if
// the key is too long for Ask.
func (l *Lease) Asked() <-chan string {
	t, k := l.root(), l.keeper
	in, err := k.locker.inspector()
	if err == nil {
		err = askable(k.key())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if t.asked == nil {
		t.asked = make(chan string, 1)
		if err != nil || t.over() {
			close(t.asked)
		} else {
			go t.lookForRequests(in, t.asked)
		}
	}
	return t.asked
}

// lookForRequests sends the reasons of requests to release the lock until the lease ends.
func (t *Lease) lookForRequests(in driver.Inspector, asked chan<- string) {
	defer close(asked)
	key, held := AskPrefix+t.Key(), t.Context(context.Background())
	every := max(t.keeper.acq.Terms().TTL/3, askEvery)
	pause := time.NewTimer(0)
	defer pause.Stop()
	told := map[string]bool{} // grants of requests that were sent to asked
	for {
		select {
		case <-held.Done():
			return
		case <-pause.C:
		}
		ctx, cancel := context.WithTimeout(held, every)
		info, err := in.Inspect(ctx, key)
		cancel()
		if err == nil { // else the next look may succeed
			stand := make(map[string]bool, len(info.Holders))
			for _, h := range info.Holders {
				if stand[h.Grant] = true; told[h.Grant] {
					continue
				}
				select {
				case asked <- h.Owner:
				default:
				}
			}
			told = stand
		}
		pause.Reset(every)
	}
}

// Unlock releases the lock, or hands it over to the next goroutine of this process.
// Unlock needs no context: if the store does not answer, it tries again for the TTL, at
// least 1s and at most about 5s. A second call does nothing and returns the same error,
// or nil while the first call is under way.
//
// Its error is a *LostError if the lease ended before the call; another holder may have
// had the lock since. A lease that expires during the call was not lost. After ErrUnknown
// or ErrUnavailable the store did not answer: the Locker continues in the background, and
// the lock expires within the TTL, or at the end of its MinHold if that is later.
func (l *Lease) Unlock() error {
	k := l.keeper
	lk := k.locker
	now := lk.clock.Now()
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
	case e&acquire.EndLease == 0: // nested leases need it
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

// unlockLost finishes the Unlock of a lease that was already lost. The caller has locked
// the keeper's mutex.
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
// MinHold. The lease was valid at now, when Unlock was called.
func (l *Lease) giveBack(now acquire.Moment) error {
	k := l.keeper
	lk, t := k.locker, k.acq.Terms()
	c, keep, known := k.quit()
	if !known {
		if lost, _ := errors.AsType[*LostError](k.lostError()); lost != nil && lost.Cause == Gone {
			return lost
		}
		return l.endedMeanwhile(keep)
	}
	within, patience := t.StoreTTL(), min(max(t.TTL, time.Second), 5*time.Second)
	var leave func(began acquire.Moment, d time.Duration) error // until the end of a MinHold
	var err error
	if keep > now {
		if !lk.moves() { // else a request under way could shorten the MinHold
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
		return l.endedMeanwhile(keep)
	case acquire.Final(err):
	case leave != nil:
		lk.later(c.Key, t, leave)
	default:
		lk.abandon(c, t)
	}
	return fmt.Errorf("baton: unlock %q: %w; it will be free within %v", c.Key, err, within.Round(time.Millisecond))
}

// endedMeanwhile is the error of an Unlock of a valid lease whose claim the store no
// longer knows. If the answer came after the end of the lease, the claim may have expired
// during Unlock, which is no loss. keep is the end of the MinHold.
func (l *Lease) endedMeanwhile(keep acquire.Moment) error {
	k := l.keeper
	switch now := k.locker.clock.Now(); {
	case now < k.acq.Deadline():
		return &LostError{Key: l.Key(), Token: l.token, Cause: Gone}
	case now < keep:
		return fmt.Errorf("baton: unlock %q: %w: it was not kept for its MinHold: the store was asked to, and answered when the lease had expired", l.Key(), ErrUnavailable)
	}
	return nil
}

// nest grants a, which came with the context of this lease and asks for its key. Both
// results are nil if the lease has ended.
func (t *Lease) nest(a *ask) (*Lease, error) {
	_ = t.Err() // ends the lease if its time is up
	k := t.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if t.over() {
		return nil, nil
	}
	if err := k.acq.Nest(a.reentrant, a.weight, a.capacity); err != nil {
		return nil, fail("lock", k.key(), err)
	}
	return &Lease{keeper: k, token: t.token, since: t.since, outer: t}, nil
}

// limitFrom starts the time of MaxHold. A nested lease has that of its outer one.
func (l *Lease) limitFrom(now acquire.Moment) {
	k := l.keeper
	k.mu.Lock()
	if k.lease == l && k.acq.Leased() {
		k.acq.StartLimit(now)
	}
	k.commit(0)
}

// handedOver reports whether the lease came from another goroutine of this process.
func (l *Lease) handedOver() bool { return l.token%leasemath.TokensPerGrant > 0 }

// root is the outermost lease: the lease itself unless it is nested.
func (l *Lease) root() *Lease {
	if l.outer != nil {
		return l.outer
	}
	return l
}

// The caller of the methods below has locked the keeper's mutex.

// ended returns the error of a lease whose end was noticed, else nil.
func (l *Lease) ended() error {
	switch k := l.keeper; {
	case k.lease == l.root() && k.acq.Lost() != nil:
		return k.lost()
	case l.unlocked:
		return &LostError{Key: l.Key(), Token: l.token, Cause: Released}
	}
	return nil
}

// over reports whether a root lease, and with it every lease nested in it, has ended.
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
