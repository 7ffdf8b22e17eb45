package baton

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

// giveUpWithin is how long a cancelled Lock may take to release its position. Without
// this time a program that exits next would leave its position in the queue.
const giveUpWithin = 100 * time.Millisecond

// maxReleasePause is the longest pause between two tries of a release in the background.
// It is long because each lock of the process may have such a release.
const maxReleasePause = 5 * time.Second

// giveUp ends an acquisition that no caller waits for or holds. It returns when the store
// has forgotten the claim, or after giveUpWithin.
func (l *Locker) giveUp(k *keeper) {
	if c, _, known := k.quit(); known {
		l.forget(c, k.acq.Terms())
	}
}

// forget makes the store forget a claim, and returns then, or after giveUpWithin.
func (l *Locker) forget(c driver.Claim, t *acquire.Terms) { soon(l.abandon(c, t)) }

// soon waits for done, at most for giveUpWithin.
func soon(done <-chan struct{}) {
	t := time.NewTimer(giveUpWithin)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// abandon makes the store forget a claim, in the background. It ends when the store says
// that the claim is not valid, or when the claim must have expired because the TTL, at
// least 1s, has passed.
func (l *Locker) abandon(c driver.Claim, t *acquire.Terms) (done <-chan struct{}) {
	return l.later(c.Key, t, func(began acquire.Moment, d time.Duration) error { return l.release(c, t, began, d) })
}

// later calls end in the background, with the time for which the claim may be valid.
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

// release releases a claim. It repeats the request until the store answers, or until d
// has passed since began.
func (l *Locker) release(c driver.Claim, t *acquire.Terms, began acquire.Moment, d time.Duration) error {
	return l.end(t, began, d, func(ctx context.Context, unsure bool) error {
		err := l.store.Release(ctx, c)
		if unsure && errors.Is(err, driver.ErrLost) {
			return nil // an earlier try succeeded, but its answer was lost
		}
		return err
	})
}

// leaving is leaveTaken with one new ID for all tries.
func (l *Locker) leaving(c driver.Claim, t *acquire.Terms, until acquire.Moment) func(began acquire.Moment, d time.Duration) error {
	next := driver.NewID()
	return func(began acquire.Moment, d time.Duration) error { return l.leaveTaken(c, next, t, until, began, d) }
}

// leaveTaken makes the store keep a claim that has no holder any more, and lets it expire
// at until. If the store can move claims, the claim gets the ID next, so that late
// requests of its holder do not find it. leaveTaken repeats the request until the store
// has granted enough time, or until d has passed since began.
func (l *Locker) leaveTaken(c driver.Claim, next string, t *acquire.Terms, until, began acquire.Moment, d time.Duration) error {
	more := time.Duration(0) // what the store has granted too little so far
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
				return nil // an earlier try succeeded, and until has passed
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

// end repeats the request that ends a claim. unsure tells request that an earlier try may
// have had an effect.
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
