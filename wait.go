package baton

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// giveUpWithin is how long a cancelled Lock may stay to give back its place,
// so that a program that ends next leaves none behind.
const giveUpWithin = 100 * time.Millisecond

// maxReleasePause bounds the pauses of releases that go on in the background,
// perhaps one for each lock of the process.
const maxReleasePause = 5 * time.Second

// minTries is how often a store is asked before it is said not to answer.
const minTries = 2

// contend asks the store for s until it is held. wait says whether to stand
// in the store's line, and ln which line the caller fronts, if any: it keeps
// since when the store has not answered. After an error nothing is held.
//
// Hints and the renewer's polling both end in s.outcome: a hint that is
// missing costs a poll, one too many costs a request.
func (l *Locker) contend(ctx context.Context, s *stake, ln *line, wait bool) error {
	var out outage
	if ln != nil {
		if known := ln.outage.Load(); known != nil {
			out = *known
		}
		s.front = ln
	}
	retry := false // an earlier attempt may have taken effect
	asked := false // there was one with this ID
	for {
		sent := bootclock.Coarse()
		if wait && l.latency.last() > pollAgain {
			// Its first confirmation cannot wait for the answer.
			l.renewer.schedule(s, sent.Add(pollAgain))
		}
		call := l.acquiring.within(ctx, sent)
		g, err := l.store.Acquire(call, driver.Request{Claim: s.claim, TTL: l.storeTTL(), Queue: wait, Retry: retry})
		call.release()
		if err == nil {
			retry = false
			out = outage{}
			ln.answered()
			if s.answered(sent, g) {
				return nil
			}
			if f := l.cfg.Trace.Waiting; f != nil && g.Waiting {
				f(s.claim.Key, false)
			}
			again, err := l.await(ctx, s)
			if err == nil && again {
				s.rejoin()
				asked = false
				continue
			}
			return err
		}

		if asked && errors.Is(err, driver.ErrLost) { // the store has ended that attempt
			s.quit()
			s.rejoin()
			retry, asked = false, false
			continue
		}
		asked, retry = true, retry || unknown(err)
		if final(err) {
			ln.answered()
		} else if ctx.Err() == nil {
			out.failed(ln, sent, blame(context.Background(), err))
			if now := bootclock.Coarse(); wait && !out.over(now, l.patience()) && sleep(ctx, pause(now.Sub(out.since))) == nil {
				continue
			}
		}
		if c, ok := s.quit(); ok && retry {
			l.giveUp(c)
		}
		if errors.Is(err, ErrHeld) {
			return err // it says all itself
		}
		return fail("lock", s.claim.Key, blame(ctx, err))
	}
}

// await waits until the store's line has come to s. again says that its place
// was lost.
func (l *Locker) await(ctx context.Context, s *stake) (again bool, err error) {
	select {
	case o := <-s.outcome:
		if o.granted || o.err == nil {
			return !o.granted, nil
		}
		err = o.err
	case <-ctx.Done():
		if s.settled() {
			return false, nil // the grant came first
		}
		err = l.timedOut(ctx, s.claim.Key)
	}
	if c, ok := s.quit(); ok {
		l.giveUp(c)
	}
	return false, fail("lock", s.claim.Key, err)
}

// timedOut says why ctx has ended, and if its time was up who holds the lock, if
// the store says so at once.
func (l *Locker) timedOut(ctx context.Context, key string) error {
	err := ended(ctx)
	in, ok := l.store.(driver.Inspector)
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

// settled reports whether s may be lent.
func (s *stake) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == held
}

// giveUp has the store forget a claim, and returns when it has, or soon.
func (l *Locker) giveUp(c driver.Claim) {
	done := l.abandon(c)
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
		if err := l.releaseClaim(c, bootclock.Coarse(), max(l.storeTTL(), time.Second)); err != nil && !errors.Is(err, driver.ErrLost) {
			l.cfg.Logger.Warn("lock could not be given back, it will expire", l.logLock(c.Key, 0), "error", err)
		}
	}()
	return ch
}

// releaseClaim releases until the store has answered, or d has passed since
// it began.
func (l *Locker) releaseClaim(c driver.Claim, began time.Time, d time.Duration) error {
	unsure := false
	for now := began; ; now = bootclock.Coarse() {
		call := l.releasing.within(context.Background(), now)
		err := l.store.Release(call, c)
		call.release()
		if err == nil || unsure && errors.Is(err, driver.ErrLost) {
			return nil // what was not known is that it had happened
		}
		unsure = unsure || unknown(err)
		past := bootclock.Coarse().Sub(began)
		if final(err) || past+l.releasing.limit >= d {
			return blame(context.Background(), err)
		}
		time.Sleep(pauseUpTo(past, maxReleasePause))
	}
}

// pause is how long to leave a store alone that has not answered for so long:
// about a quarter of it, so that a short trouble is over soon and a long one
// is not made worse.
func pause(failing time.Duration) time.Duration { return pauseUpTo(failing, maxPause) }

func pauseUpTo(failing, most time.Duration) time.Duration {
	d := min(max(failing/4, minPause), most)
	return d/2 + rand.N(d)
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
