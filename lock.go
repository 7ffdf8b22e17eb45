package baton

import (
	"context"
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/acquire"
)

// The steps of a Lock call, in order: check, enclosing, enter, obtain, await,
// issue. The acquisition handles the events in between.

func (l *Locker) lock(ctx context.Context, key string, a *ask, wait bool) (*Lease, error) {
	if err := l.check(ctx, key, a); err != nil {
		return nil, err
	}
	if outer := l.enclosing(ctx, key); outer != nil {
		if lease, err := outer.nest(a); lease != nil || err != nil {
			return lease, err
		}
	}
	o := l.observe(ctx, key, a)
	lease, err := l.acquire(ctx, key, a, wait, &o)
	if err != nil {
		o.failed(err)
		return nil, err
	}
	o.acquired(lease)
	return lease, nil
}

// check refuses bad input before anything is changed.
func (l *Locker) check(ctx context.Context, key string, a *ask) error {
	if a.err != nil {
		return a.err
	}
	if err := check.Key(key); err != nil {
		return err
	}
	if a.capacity == driver.Whole && a.weight == 1 && !l.traits.Shared {
		return fmt.Errorf("baton: store %s has no read locks: %w", l.traits.Store, ErrUnsupported)
	}
	if a.capacity != driver.Whole && !l.traits.Permits {
		return fmt.Errorf("baton: store %s has no permits: %w", l.traits.Store, ErrUnsupported)
	}
	if ctx.Err() != nil {
		return fail("lock", key, whyEnded(ctx))
	}
	var err error
	a.terms, err = l.termsOf(a)
	return err
}

// acquire waits in the local queue, then requests the lock from the store.
func (l *Locker) acquire(ctx context.Context, key string, a *ask, wait bool, o *observed) (*Lease, error) {
	var q *waitQueue // the caller is its front; nil for a TryLock while another goroutine is the front
	var k *keeper    // handed over by the front before it, if any: a lock or a position
	if wait {
		var err error
		if q, k, err = l.enter(ctx, key, a, o); err != nil {
			return nil, err
		}
	} else {
		var held *HeldError
		if q, held = l.tryEnter(key); held != nil {
			return nil, held
		}
	}
	for {
		waits, requests := true, true
		if k == nil {
			k = l.newKeeper(key, a, q)
		} else {
			waits, requests = k.unissued()
		}
		if waits {
			if passed, err := l.obtain(ctx, k, q, requests, wait, o); err != nil {
				if !passed {
					l.failBehind(q)
					q.leave()
				}
				return nil, err
			}
		}
		if lease := k.issue(q.occupiedBy(a), a.part, ctx); lease != nil {
			o.local = lease.handedOver()
			if a.weight != driver.Whole {
				q.leave() // callers behind may hold together with this one
			}
			return lease, nil
		}
		k = nil // the grant was lost meanwhile, or this process did not run
	}
}

// obtain requests the lock from the store until it is held, for the front of q. If
// requests is false it first waits for the answer to what the front before has requested.
// After an error the caller does not hold it; passed says that the next caller of q waits
// for it now, and is the front.
func (l *Locker) obtain(ctx context.Context, k *keeper, q *waitQueue, requests, wait bool, o *observed) (passed bool, err error) {
	for ; ; requests = true {
		if requests {
			sent := l.clock.Coarse()
			g, err := l.request(ctx, k, sent, wait)
			if err != nil {
				next := k.requestFailed(sent, blame(context.Background(), err), ctx.Err() == nil)
				switch {
				case next&acquire.StartAgain != 0:
					k.restart()
					continue
				case next&acquire.RetryRequest != 0 && wait && sleep(ctx, k.pause()) == nil:
					continue
				case ctx.Err() != nil && !acquire.Final(err) && q.passOn(k):
					passed = true
				default:
					l.giveUp(k)
				}
				if errors.Is(err, ErrHeld) || errors.Is(err, ErrQueueFull) {
					return passed, err // it names the key itself
				}
				return passed, fail("lock", k.key(), explain(ctx, blame(ctx, err), k.saidLast(err)))
			}
			if k.answered(sent, g) {
				return false, nil
			}
			if g.Waiting {
				o.waiting(false, func() {
					l.giveUp(k)
					q.leave()
				})
			}
		}
		again, passed, err := l.await(ctx, k, q)
		if !again {
			return passed, err
		}
		k.restart()
	}
}

// request makes one attempt.
func (l *Locker) request(ctx context.Context, k *keeper, sent acquire.Moment, wait bool) (driver.Grant, error) {
	call := l.acquiring.within(ctx, l.clock.At(sent), k.acq.Terms().Acquiring())
	defer call.release()
	return l.store.Acquire(call, k.request(sent, wait))
}

// await waits until the lock is held. again says that the store has lost the
// position; passed is obtain's.
//
// Hints and the renewer's questions both end in k.waiter. A missing hint costs one
// more question to the store, and so does a spurious one.
func (l *Locker) await(ctx context.Context, k *keeper, q *waitQueue) (again, passed bool, err error) {
	select {
	case o := <-k.waiter:
		if o.granted || o.err == nil {
			return !o.granted, false, nil
		}
		err = o.err
	case <-ctx.Done():
		if k.isHeld() {
			return false, false, nil // the grant came first
		}
		passed = q.passOn(k)
		err = l.timedOut(ctx, k.key())
		if !passed { // another goroutine may have come meanwhile, or the grant
			passed = q.takenOver(k)
		}
	}
	if !passed {
		l.giveUp(k)
	}
	return false, passed, fail("lock", k.key(), err)
}

// timedOut says why ctx has ended. If its deadline has passed and the store answers
// within giveUpWithin, the error also says who holds the lock.
func (l *Locker) timedOut(ctx context.Context, key string) error {
	err := whyEnded(ctx)
	in, ok := driver.As[driver.Inspector](l.store)
	if !ok || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	call, cancel := context.WithTimeout(context.Background(), giveUpWithin)
	defer cancel()
	answer := make(chan driver.KeyInfo, 1)
	go func() {
		if info, err := in.Inspect(call, key); err == nil {
			answer <- info
		}
	}()
	select {
	case info := <-answer:
		if len(info.Holders) > 0 {
			h := info.Holders[0]
			return fmt.Errorf("%w: %w", err, &HeldError{Key: key, Owner: h.Owner, Age: max(0, h.Age), Remaining: h.Remaining, Waiting: len(info.Waiters), Foreign: h.Foreign})
		}
	case <-call.Done():
	}
	return err
}
