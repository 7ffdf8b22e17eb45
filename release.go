package baton

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
)

// giveUpWithin is how long a cancelled Lock may stay to give back its position,
// so that a program that ends next leaves none behind.
const giveUpWithin = 100 * time.Millisecond

// giveUp ends what nobody waits for or holds any more, and returns when the store
// has forgotten it, or soon.
func (l *Locker) giveUp(k *keeper) {
	if c, known := k.quit(); known {
		l.forget(c)
	}
}

// forget has the store forget a claim, and returns when it has, or soon.
func (l *Locker) forget(c driver.Claim) { soon(l.abandon(c)) }

// soon waits until done, or for giveUpWithin.
func soon(done <-chan struct{}) {
	t := time.NewTimer(giveUpWithin)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// abandon has the store forget a claim, in the background: until it says that
// the claim does not stand, or until that is certain anyway.
func (l *Locker) abandon(c driver.Claim) (done <-chan struct{}) {
	ch := make(chan struct{})
	go func() {
		defer close(ch)
		if err := l.release(c, l.clock.coarse(), max(l.terms.storeTTL(), time.Second)); err != nil && !errors.Is(err, driver.ErrLost) {
			l.cfg.Logger.Warn("lock could not be given back, it will expire", l.logLock(c.Key, 0), "error", err)
		}
	}()
	return ch
}

// release releases a claim: it asks until the store has answered, or d has passed
// since began.
func (l *Locker) release(c driver.Claim, began moment, d time.Duration) error {
	unsure := false
	for now := began; ; now = l.clock.coarse() {
		call := l.releasing.within(context.Background(), l.clock.at(now))
		err := l.store.Release(call, c)
		call.release()
		if err == nil || unsure && errors.Is(err, driver.ErrLost) {
			return nil // an earlier try, whose answer was lost, has done it
		}
		unsure = unsure || unknown(err)
		past := l.clock.coarse().sub(began)
		if final(err) || past+l.releasing.limit >= d {
			return blame(context.Background(), err)
		}
		time.Sleep(l.terms.pauseUpTo(past, maxReleasePause))
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
