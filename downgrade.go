package baton

import (
	"context"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

// Downgrade turns the exclusive lock into a read lock without a gap: no other
// writer comes between. The token stays. ctx bounds the call.
//
// Errors: ErrUnsupported if the store cannot, a *LostError if the lease has ended,
// ErrCountedOn and no effect if nested locks count on the lease. If ctx ended or
// the store failed before the outcome was certain, the lease is lost with
// ErrUnknown, because its kind is unknown.
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
	unsure := false // an earlier attempt may have taken effect
	for {
		sent := lk.clock.Coarse()
		call, cancel := context.WithTimeout(ctx, min(end.Sub(sent), k.acq.Terms().TTL/4))
		g, err := d.Downgrade(call, c, k.acq.Terms().StoreTTL())
		cancel()
		if err == nil {
			return l.downgraded(sent, g)
		}
		unsure = unsure || acquire.Unknown(err)
		if !acquire.Final(err) && ctx.Err() == nil && lk.clock.Now() < end && sleep(ctx, acquire.MinPause) == nil {
			continue
		}
		return l.downgradeFailed(blame(ctx, err), unsure)
	}
}

// beginDowngrade keeps the lock from being renewed, handed over, or nested in
// while it changes its kind.
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
	e := k.acq.DowngradeFailed(k.locker.clock.Coarse(), failed, unsure)
	k.answer()
	err := l.ended()
	k.commit(e)
	if err == nil {
		return fail("downgrade", k.key(), failed)
	}
	return err
}
