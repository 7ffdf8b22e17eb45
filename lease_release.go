package baton

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

// giveUpWithin is how long a cancelled Lock may take to release its position, so
// that a program that ends next leaves no position behind.
const giveUpWithin = 100 * time.Millisecond

// maxReleasePause is the longest pause between two tries of a release in the
// background: each lock of the process may have such a release.
const maxReleasePause = 5 * time.Second

// giveUp ends an acquisition that is neither waited for nor held any more. It
// returns when the store has forgotten it, or after giveUpWithin.
func (l *Locker) giveUp(k *keeper) {
	if c, _, known := k.quit(); known {
		l.forget(c, k.acq.Terms())
	}
}

// forget makes the store forget a claim, and returns when it has, or after
// giveUpWithin.
func (l *Locker) forget(c driver.Claim, t *acquire.Terms) { soon(l.abandon(c, t)) }

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
// says that the claim is not valid, or when that is certain because the TTL, at
// least 1s, has passed.
func (l *Locker) abandon(c driver.Claim, t *acquire.Terms) (done <-chan struct{}) {
	return l.later(c.Key, t, func(began acquire.Moment, d time.Duration) error { return l.release(c, t, began, d) })
}

// later ends a claim in the background, for as long as the claim may be valid.
func (l *Locker) later(key string, t *acquire.Terms, end func(began acquire.Moment, d time.Duration) error) (done <-chan struct{}) {
	ch := make(chan struct{})
	go func() {
		defer close(ch)
		if err := end(l.clock.Now(), max(t.StoreTTL(), time.Second)); err != nil && !errors.Is(err, driver.ErrLost) {
			l.cfg.Logger.Warn("lock could not be given back, it will expire", l.logLock(key, 0), "error", err)
		}
	}()
	return ch
}

// release releases a claim. It asks until the store has answered, or until d has
// passed since began.
func (l *Locker) release(c driver.Claim, t *acquire.Terms, began acquire.Moment, d time.Duration) error {
	return l.end(t, began, d, func(ctx context.Context, unsure bool) error {
		err := l.store.Release(ctx, c)
		if unsure && errors.Is(err, driver.ErrLost) {
			return nil // an earlier try, whose answer was lost, has succeeded
		}
		return err
	})
}

// leaving is leaveTaken with an ID that it draws, for as many tries as it takes.
func (l *Locker) leaving(c driver.Claim, t *acquire.Terms, until acquire.Moment) func(began acquire.Moment, d time.Duration) error {
	next := driver.NewID()
	return func(began acquire.Moment, d time.Duration) error { return l.leaveTaken(c, next, t, until, began, d) }
}

// leaveTaken makes the store keep a claim that has no holder any more until a moment,
// at which it expires: under the ID next, drawn for that, if the store can move it, so
// that what its holder has asked for before finds nothing. It asks until the store has
// granted that much, or until d has passed since began.
func (l *Locker) leaveTaken(c driver.Claim, next string, t *acquire.Terms, until, began acquire.Moment, d time.Duration) error {
	more := time.Duration(0) // the store has granted less than it was asked for
	return l.end(t, began, d, func(ctx context.Context, unsure bool) error {
		sent := l.clock.Now()
		ttl := max(until.Sub(sent).Truncate(time.Millisecond)+time.Millisecond+more, l.traits.MinTTL)
		most := l.traits.MaxTTL
		if most > 0 {
			ttl = min(ttl, most)
		}
		g, err := l.moveOrRenew(ctx, c, next, c.Owner, ttl)
		if err != nil {
			if (unsure || more > 0) && errors.Is(err, driver.ErrLost) && l.clock.Now() >= until {
				return nil // an earlier try has succeeded, and the time is over
			}
			return err
		}
		short := until.Sub(sent.Add(g.TTL))
		if short <= 0 || ttl == most {
			return nil
		}
		more += 2 * short
		return fmt.Errorf("%w: the store keeps it for %v less than it was asked for", ErrUnavailable, short)
	})
}

// end repeats the request that ends a claim. unsure says that an earlier one may have had
// an effect.
func (l *Locker) end(t *acquire.Terms, began acquire.Moment, d time.Duration, request func(ctx context.Context, unsure bool) error) error {
	unsure, limit := false, t.Releasing()
	for now := began; ; now = l.clock.Now() {
		call := l.releasing.Within(context.Background(), l.clock.At(now), limit)
		err := request(call, unsure)
		call.Release()
		if err == nil {
			return nil
		}
		unsure = unsure || acquire.Unknown(err)
		past := l.clock.Now().Sub(began)
		if acquire.Final(err) || past+limit >= d {
			return blame(context.Background(), err)
		}
		time.Sleep(t.PauseUpTo(past, maxReleasePause))
	}
}
