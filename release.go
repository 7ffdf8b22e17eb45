package baton

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
)

// giveUpWithin is how long a cancelled Lock may take to release its position, so
// that a program that ends next leaves no position behind.
const giveUpWithin = 100 * time.Millisecond

// giveUp ends an acquisition that is neither waited for nor held any more. It
// returns when the store has forgotten it, or after giveUpWithin.
func (l *Locker) giveUp(k *keeper) {
	if c, _, known := k.quit(); known {
		l.forget(c, k.acq.terms)
	}
}

// forget makes the store forget a claim, and returns when it has, or after
// giveUpWithin.
func (l *Locker) forget(c driver.Claim, t *terms) { soon(l.abandon(c, t)) }

// soon waits until done, or for giveUpWithin.
func soon(done <-chan struct{}) {
	t := time.NewTimer(giveUpWithin)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// abandon makes the store forget a claim, in the background. It ends when the store
// says that the claim does not stand, or when that is certain because the TTL, at
// least 1s, has passed.
func (l *Locker) abandon(c driver.Claim, t *terms) (done <-chan struct{}) {
	ch := make(chan struct{})
	go func() {
		defer close(ch)
		if err := l.release(c, t, l.clock.coarse(), max(t.storeTTL(), time.Second)); err != nil && !errors.Is(err, driver.ErrLost) {
			l.cfg.Logger.Warn("lock could not be given back, it will expire", l.logLock(c.Key, 0), "error", err)
		}
	}()
	return ch
}

// release releases a claim. It asks until the store has answered, or until d has
// passed since began.
func (l *Locker) release(c driver.Claim, t *terms, began moment, d time.Duration) error {
	return l.end(t, began, d, func(ctx context.Context, unsure bool) error {
		err := l.store.Release(ctx, c)
		if unsure && errors.Is(err, driver.ErrLost) {
			return nil // an earlier try, whose answer was lost, has succeeded
		}
		return err
	})
}

// leaveTaken makes the store keep a claim that has no holder any more until a moment,
// at which it expires. It asks until the store has answered, or until d has passed
// since began.
//
// On a store that can it moves the claim to the ID next, which was drawn for it: a late
// renewal, which the holder has sent before, would shorten the time. On other stores the
// caller has waited for the answers.
func (l *Locker) leaveTaken(c driver.Claim, next string, t *terms, until, began moment, d time.Duration) error {
	mover, _ := driver.As[driver.Mover](l.store)
	more := time.Duration(0) // a store may grant less than it is asked for
	return l.end(t, began, d, func(ctx context.Context, unsure bool) error {
		for try := 1; ; try++ {
			sent := l.clock.coarse()
			ttl := max(until.sub(sent).Truncate(time.Millisecond)+time.Millisecond+more, l.traits.MinTTL)
			if most := l.traits.MaxTTL; most > 0 {
				ttl = min(ttl, most)
			}
			var g driver.Grant
			var err error
			if mover != nil {
				g, err = mover.Move(ctx, c, next, c.Owner, ttl)
			} else {
				g, err = l.renewOnce(ctx, c, ttl)
			}
			if err != nil {
				if (unsure || try > 1) && errors.Is(err, driver.ErrLost) && l.clock.now() >= until {
					return nil // an earlier try, whose answer was lost, has succeeded, and the time is over
				}
				return err
			}
			short := until.sub(sent.add(g.TTL))
			if short <= 0 || try == 3 {
				return nil
			}
			more += 2 * short
		}
	})
}

// leaveTakenLater is leaveTaken in the background, for as long as the claim may stand.
func (l *Locker) leaveTakenLater(c driver.Claim, next string, t *terms, until moment) {
	go func() {
		err := l.leaveTaken(c, next, t, until, l.clock.coarse(), max(t.storeTTL(), time.Second))
		if err != nil && !errors.Is(err, driver.ErrLost) { // else an earlier try may have moved it
			l.cfg.Logger.Warn("lock could not be left taken for its MinHold, it will expire", l.logLock(c.Key, 0), "error", err)
		}
	}()
}

// end repeats the request that ends a claim. The request is told whether an earlier
// one may have had an effect.
func (l *Locker) end(t *terms, began moment, d time.Duration, request func(ctx context.Context, unsure bool) error) error {
	unsure, limit := false, t.releasing()
	for now := began; ; now = l.clock.coarse() {
		call := l.releasing.within(context.Background(), l.clock.at(now), limit)
		err := request(call, unsure)
		call.release()
		if err == nil {
			return nil
		}
		unsure = unsure || unknown(err)
		past := l.clock.coarse().sub(began)
		if final(err) || past+limit >= d {
			return blame(context.Background(), err)
		}
		time.Sleep(t.pauseUpTo(past, maxReleasePause))
	}
}

// sleep pauses for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
