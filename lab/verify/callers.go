package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
	"github.com/batonhq/baton/ratelimit"
)

// callers is how many clients have callers. With more of them, a store on a small machine has
// no time left for locks.
const callers = 3

// call starts the goroutines that only ask for limits.
func (c *client) call() {
	if len(c.limiters) == 0 || (c.Client-1)%100 >= callers {
		return
	}
	for n, ask := range []func(*worker) bool{(*worker).waitWithDeadline, (*worker).waitAndHangUp, (*worker).mix} {
		w := &worker{client: c, rng: rand.New(rand.NewPCG(c.Seed, uint64(c.Client)<<16|uint64(1<<15+n)))}
		c.workers.Go(func() {
			for ask(w) {
				w.pause(20*time.Millisecond + time.Duration(w.rng.Int64N(int64(40*time.Millisecond))))
			}
		})
	}
}

// waitWithDeadline waits for a turn with a short deadline.
func (w *worker) waitWithDeadline() bool {
	patience := time.Duration(w.rng.Int64N(int64(250 * time.Millisecond)))
	return w.wait(func() (context.Context, context.CancelFunc) { return context.WithTimeout(w.waiting, patience) }, withDeadline, patience)
}

// waitAndHangUp waits for a turn without a deadline, and cancels the wait soon. Every second
// time it asks instead whether the limit allows it at once.
func (w *worker) waitAndHangUp() bool {
	patience := time.Duration(w.rng.Int64N(int64(250 * time.Millisecond)))
	if w.rng.IntN(2) == 0 {
		return w.allow(w.limiters[hangingUp], limitKey(w.Prefix, hangingUp), 1)
	}
	return w.wait(func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(w.waiting)
		hangUp := time.AfterFunc(patience, cancel)
		return ctx, func() { hangUp.Stop(); cancel() }
	}, hangingUp, 0)
}

// wait waits for a turn with the context that begin makes at the start of the call: the
// history's patience counts from there, and an older context would have less time.
func (w *worker) wait(begin func() (context.Context, context.CancelFunc), limit int, patience time.Duration) bool {
	key := limitKey(w.Prefix, limit)
	op, ok := w.asks(history.Decision{Key: key, N: 1, Waits: true, Patience: patience})
	if !ok {
		return false
	}
	ctx, cancel := begin()
	defer cancel()
	r, err := w.limiters[limit].Wait(ctx, key)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ratelimit.ErrRefused) {
		w.log.HungUp(op)
		return true
	}
	w.decided(op, r, err)
	return true
}

// mix asks for a limit whose key is also read under other limits, or for one of many keys in
// batches.
func (w *worker) mix() bool {
	kind := w.rng.IntN(8)
	if kind < 2 {
		return w.allow(w.batches, batchKey(w.Prefix, itoa(w.rng.IntN(batchKeys))), 1)
	}
	i := plainLimits + w.rng.IntN(withDeadline-plainLimits)
	key := limitKey(w.Prefix, i)
	if kind < 6 {
		return w.allow(w.limiters[i], key, 1+w.rng.Int64N(3))
	}
	w.beginning.RLock()
	ended := w.drain
	w.beginning.RUnlock()
	if ended {
		return false
	}
	// Neither takes from a limit, so neither is written to the history.
	ctx, cancel := context.WithTimeout(w.waiting, w.TTL)
	defer cancel()
	look := w.looks[i][w.rng.IntN(len(w.looks[i]))]
	if kind == 6 {
		_, _ = look.Peek(ctx, key) // an error of a store that is down says nothing
	} else if r, err := look.AllowN(ctx, key, 1000); err == nil && r.OK {
		w.say(sayFailed, fmt.Sprintf("%v allowed 1000 of %s", look.Limits(), key))
	}
	return true
}
