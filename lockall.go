package baton

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/acquire"
)

// Leases are the leases of LockAll, one for each key. When one of them ends, for any
// reason, all count as ended. All methods are safe for concurrent use.
type Leases struct {
	locker *Locker
	leases []*Lease // sorted by key, each key once, at least one

	once sync.Once
	done <-chan struct{}
}

// LockAll waits until it holds the locks of all keys, and returns their leases; or it
// returns an error and holds none. Options apply to all keys. A key that is named twice
// is locked once.
//
// If all locks are free and the store is a driver.Together, the store grants them in one
// atomic step. Otherwise LockAll takes them one after the other, sorted by the bytes of
// their keys, and waits in the queue of each key. Calls of LockAll therefore never
// deadlock with each other. Locks that the caller holds already are not part of that
// order: a caller that holds locks and calls Lock or LockAll for others can deadlock, and
// should bound ctx.
//
// While LockAll waits for a key it holds and renews the keys before it, and other
// processes wait for those too: the busiest key determines how fast all are taken. Use
// few keys, and bound ctx. If one of these locks is lost meanwhile, LockAll releases all
// and starts again. Config.MaxHold counts from the return of LockAll.
//
// Errors: Lock's, about the key that they name; a *KeyError if there are no keys. LockAll
// returns ErrNested, if ctx holds one of the keys already, before it waits. After an
// error LockAll has released what it locked. If the store does not answer, the release
// follows in the background, or the locks expire within the TTL.
func (l *Locker) LockAll(ctx context.Context, keys []string, opts ...Option) (*Leases, error) {
	return l.lockAll(ctx, keys, newAsk(opts), true)
}

// TryLockAll is LockAll without waiting for other holders: if one of the locks is held or
// has waiters, it returns a *HeldError that names its key. If the store takes the keys
// one by one, other processes may meanwhile find the earlier keys held. Its other errors
// are TryLock's and LockAll's.
func (l *Locker) TryLockAll(ctx context.Context, keys []string, opts ...Option) (*Leases, error) {
	return l.lockAll(ctx, keys, newAsk(opts), false)
}

func (l *Locker) lockAll(ctx context.Context, keys []string, a ask, wait bool) (*Leases, error) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(keys) == 0 {
		return nil, &KeyError{Reason: "the list of keys is empty"}
	}
	for _, key := range keys {
		if err := l.check(ctx, key, &a); err != nil {
			return nil, err
		}
	}
	a.part = true
	switch ls, err := l.together(ctx, keys, &a); {
	case ls != nil:
		return ls, nil
	case err != nil && (!wait || !pending(err)):
		for _, key := range keys {
			o := l.observe(ctx, key, &a)
			o.failed(err)
		}
		return nil, err
	}
	for {
		ls := &Leases{locker: l, leases: make([]*Lease, len(keys))}
		err := l.gather(ctx, ls.leases, keys, &a, wait)
		lost := ls.begin()
		if err == nil && lost == nil {
			return ls, nil
		}
		ls.backOut(a.terms)
		if lost == nil || err != nil && (ctx.Err() != nil || !acquire.IsContext(err)) {
			return nil, err
		}
		// The first locks were lost before the last one was granted.
		if ctx.Err() != nil {
			return nil, fail("lock", keys[0], whyEnded(ctx))
		}
	}
}

// together makes one attempt for all keys in one atomic step of the store. If both
// results are nil, the caller takes the locks one by one.
func (l *Locker) together(ctx context.Context, keys []string, a *ask) (*Leases, error) {
	if l.many == nil || len(keys) < 2 || len(keys) > check.MaxTogether {
		return nil, nil
	}
	for _, key := range keys {
		if l.enclosing(ctx, key) != nil {
			return nil, nil
		}
	}
	queues, ok := l.tryFront(keys)
	if !ok {
		return nil, nil // other goroutines of this process want one of the keys
	}
	seen := make([]observed, len(keys))
	keepers := make([]*keeper, len(keys))
	requests := make([]driver.Request, len(keys))
	sent := l.clock.Now()
	for i, key := range keys {
		seen[i] = l.observe(ctx, key, a)
		keepers[i] = l.newKeeper(key, a, nil)
		requests[i] = keepers[i].request(sent, false)
	}
	call := l.acquiring.Within(ctx, l.clock.At(sent), a.terms.Acquiring())
	grants, err := l.many.AcquireAll(call, requests)
	call.Release()

	ls := &Leases{locker: l, leases: make([]*Lease, len(keys))}
	good := err == nil
	for i, k := range keepers {
		if err != nil {
			k.requestFailed(sent, err, false)
		} else if k.answered(sent, grants[i]) {
			occupied := queues[i].occupiedBy(a)
			if ls.leases[i] = k.issue(occupied, a.part, nil); ls.leases[i] != nil && occupied != nil {
				queues[i] = nil // the lease occupies it
			}
		}
		good = good && ls.leases[i] != nil
	}
	var left []driver.Claim // in the store
	for i, k := range keepers {
		if ls.leases[i] == nil {
			if c, _, known := k.quit(); known {
				left = append(left, c)
			}
		}
		queues[i].leave()
	}
	switch {
	case good && ls.begin() == nil:
		told := false
		defer func() {
			if !told { // a function of Events panicked
				ls.backOut(a.terms)
			}
		}()
		for i, lease := range ls.leases {
			seen[i].announce(lease)
		}
		told = true
		return ls, nil
	case err == nil: // the answer took too long
		ls.backOut(a.terms, left...)
		return nil, nil
	}
	ls.backOut(a.terms, left...)
	switch {
	case errors.Is(err, ErrUnsupported):
		return nil, nil
	case errors.Is(err, ErrHeld):
		return nil, err // a *HeldError names the key itself
	}
	return nil, fail("lock", keys[0], blame(ctx, err))
}

// pending reports whether a caller that waits continues by taking the locks one by one.
func pending(err error) bool { return errors.Is(err, ErrHeld) || !acquire.Final(err) }

// gather takes the locks of keys, first those that ctx holds already, because they take
// no time.
func (l *Locker) gather(ctx context.Context, leases []*Lease, keys []string, a *ask, wait bool) (err error) {
	returned := false
	defer func() {
		if !returned { // a function of Events panicked
			(&Leases{locker: l, leases: leases}).backOut(a.terms)
		}
	}()
	err = l.gatherEach(ctx, leases, keys, a, wait)
	returned = true
	return err
}

func (l *Locker) gatherEach(ctx context.Context, leases []*Lease, keys []string, a *ask, wait bool) (err error) {
	for i, key := range keys {
		if outer := l.enclosing(ctx, key); outer != nil {
			if leases[i], err = outer.nest(a); err != nil {
				return err
			}
		}
	}
	// The wait for a key ends when a lock before it is lost.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for i, key := range keys {
		if leases[i] == nil {
			if leases[i], err = l.lock(ctx, key, a, wait); err != nil {
				return err
			}
		}
		ctx = leases[i].Context(ctx)
	}
	return nil
}

// begin starts the times of MaxHold and MinHold if all leases were acquired. It returns
// the error of a lease that has ended, if there is one.
func (ls *Leases) begin() error {
	all := true
	for _, lease := range ls.leases {
		if lease == nil {
			all = false
		} else if err := lease.Err(); err != nil {
			return err
		}
	}
	if !all { // backOut follows: a MinHold must not keep the locks taken
		return nil
	}
	now := ls.locker.clock.Now()
	for _, lease := range ls.leases {
		lease.limitFrom(now)
	}
	return nil
}

// backOut unlocks the leases, makes the store forget the claims in left, and returns
// then, or after giveUpWithin.
func (ls *Leases) backOut(terms *acquire.Terms, left ...driver.Claim) {
	var wg sync.WaitGroup
	for _, c := range left {
		wg.Go(func() { <-ls.locker.abandon(c, terms) })
	}
	for _, lease := range ls.leases {
		if lease != nil {
			wg.Go(func() { _ = lease.Unlock() })
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	soon(done)
}

// Keys returns the keys, sorted by their bytes, each once.
func (ls *Leases) Keys() []string {
	keys := make([]string, len(ls.leases))
	for i, lease := range ls.leases {
		keys[i] = lease.Key()
	}
	return keys
}

// Lease returns the lease on key, nil if key is not among the keys. All methods of a
// lease work: Pin, for "InTx" of the SQL stores, Downgrade, Detach. After its Unlock the
// Leases have ended, but the other keys stay held until Leases.Unlock.
func (ls *Leases) Lease(key string) *Lease {
	for _, lease := range ls.leases {
		if lease.Key() == key {
			return lease
		}
	}
	return nil
}

// Token returns the fencing token of key: see Lease.Token. It is 0, which is no token, if
// key is not among the keys.
func (ls *Leases) Token(key string) int64 {
	if lease := ls.Lease(key); lease != nil {
		return lease.Token()
	}
	return 0
}

// Err is nil while all leases are valid. Otherwise it is the *LostError of a lease that
// has ended; a lost lease comes before an unlocked one. Err looks at the clock, as
// Lease.Err does.
func (ls *Leases) Err() (err error) {
	for _, lease := range ls.leases {
		if e := lease.Err(); e != nil && (err == nil || contextCause(err) == nil) {
			err = e
		}
	}
	return err
}

// Deadline is when the first of the leases ends unless it is renewed before.
func (ls *Leases) Deadline() time.Time {
	first := ls.leases[0].Deadline()
	for _, lease := range ls.leases[1:] {
		if d := lease.Deadline(); d.Before(first) {
			first = d
		}
	}
	return first
}

// Done is closed when the first of the leases ends: see Lease.Done.
func (ls *Leases) Done() <-chan struct{} {
	ls.once.Do(func() { ls.done = ls.Context(context.Background()).Done() })
	return ls.done
}

// Context returns a copy of parent that ends when the first of the leases does. If that
// lease was lost, context.Cause returns its *LostError, which names the key. A Lock call
// with this context knows that it is nested in all the keys. The other keys stay held and
// renewed until Unlock, so that this caller can stop its work before another process gets
// them.
func (ls *Leases) Context(parent context.Context) context.Context {
	for _, lease := range ls.leases {
		parent = lease.Context(parent)
	}
	return parent
}

// Unlock releases all locks at the same time, each as Lease.Unlock does. Its error joins
// theirs, each of which names its key. Call Unlock also after a loss: it releases the
// other locks.
func (ls *Leases) Unlock() error {
	_ = ls.Err() // else the end of another lease could hide a loss
	errs := make([]error, len(ls.leases))
	var wg sync.WaitGroup
	for i, lease := range ls.leases {
		wg.Go(func() { errs[i] = lease.Unlock() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
