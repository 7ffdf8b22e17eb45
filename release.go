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
	if c, known := k.quit(); known {
		l.forget(c)
	}
}

// forget makes the store forget a claim, and returns when it has, or after
// giveUpWithin.
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

// abandon makes the store forget a claim, in the background. It ends when the store
// says that the claim does not stand, or when that is certain because the TTL, at
// least 1s, has passed.
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

// release releases a claim. It asks until the store has answered, or until d has
// passed since began.
func (l *Locker) release(c driver.Claim, began moment, d time.Duration) error {
	unsure := false
	for now := began; ; now = l.clock.coarse() {
		call := l.releasing.within(context.Background(), l.clock.at(now))
		err := l.store.Release(call, c)
		call.release()
		if err == nil || unsure && errors.Is(err, driver.ErrLost) {
			return nil // an earlier try, whose answer was lost, has succeeded
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
