package verify

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/lab/verify/history"
)

func itoa(n int) string { return strconv.Itoa(n) }

// The mix of operations, in percent.
const (
	ofLocks   = 60
	ofTries   = 15
	ofReaders = 10
	ofPermits = 10
	ofLimits  = 5
)

// A worker is one goroutine of a client.
type worker struct {
	*client
	rng      *rand.Rand
	register *registrar // nil until the first write
	calmSeen bool
	keeps    bool // it holds its locks for long
}

func (w *worker) run() {
	defer func() { w.register.close() }() // w.register is nil before the first write
	for {
		if !w.calmSeen && w.calm.Load() {
			w.calmSeen = true
			w.calmed()
		}
		if !w.one() {
			return
		}
		w.pause(w.think())
	}
}

// keep holds a lock that no other client wants for some TTLs, again and again: faults that
// show only in longer holds show there.
func (w *worker) keep() {
	defer func() { w.register.close() }() // w.register is nil before the first write
	lock := history.Hold{Key: ownKey(w.Prefix, w.Client), Mode: history.Exclusive, Waits: true}
	for w.hold(lock) {
		w.calmSeen = w.calm.Load()
		w.pause(10*brief + w.think())
	}
}

// one does one operation, and reports whether another may follow. If the store lacks a kind of
// lock, one uses another kind.
func (w *worker) one() bool {
	n := w.rng.IntN(ofLocks + ofTries + ofReaders + ofPermits + ofLimits)
	key := lockKey(w.Prefix, w.rng.IntN(w.Keys))
	lock := history.Hold{Key: key, Mode: history.Exclusive, Waits: true}
	switch {
	case n < ofLocks:
	case n < ofLocks+ofTries:
		lock.Waits = false
	case n < ofLocks+ofTries+ofReaders:
		if w.traits.Shared {
			lock.Mode = history.Shared
		}
	case n < ofLocks+ofTries+ofReaders+ofPermits:
		if w.traits.Permits {
			i := w.rng.IntN(len(w.Permits))
			lock.Key, lock.Mode, lock.Of = permitKey(w.Prefix, i), history.Permits, w.Permits[i]
			lock.Weight = 1 + w.rng.Int64N(lock.Of)
		}
	case len(w.limiters) > 0:
		return w.ask()
	}
	return w.hold(lock)
}

// acquires begins an attempt, unless the client drains.
func (c *client) acquires(h history.Hold) (op history.Op, ok bool) {
	c.beginning.RLock()
	defer c.beginning.RUnlock()
	if c.drain {
		return op, false
	}
	return c.log.Acquires(h), true
}

// hold waits for a lock and holds it for a time.
func (w *worker) hold(h history.Hold) bool {
	var options []baton.Option
	switch h.Mode {
	case history.Shared:
		options = append(options, baton.Shared())
	case history.Permits:
		options = append(options, baton.Permits(int(h.Weight), int(h.Of)))
	}
	until, most := w.howLong(), w.rng.IntN(30) // always drawn, so that the seed decides the rest
	if h.Waits && most > 0 && most <= 3 {      // some callers bound the queue
		options = append(options, baton.MaxWaiting(most))
	}
	ctx, cancel := w.waiting, context.CancelFunc(func() {})
	if w.rng.IntN(10) == 0 && !w.calmSeen { // some callers are impatient
		patience := time.Duration(w.rng.Int64N(int64(w.TTL)))
		if w.rng.IntN(2) == 0 {
			ctx, cancel = context.WithTimeout(ctx, patience)
		} else { // a cancellation, which the history cannot predict
			ctx, cancel = context.WithCancel(ctx)
			defer time.AfterFunc(patience, cancel).Stop()
		}
	}
	defer cancel()

	attempt := w.locks.TryLock
	if h.Waits {
		attempt = w.locks.Lock
	}
	op, ok := w.acquires(h)
	if !ok {
		return false
	}
	lease, err := attempt(ctx, h.Key, options...)
	if err != nil {
		w.log.Acquired(op, failed(err, h.Waits), 0, err)
		if !errors.Is(err, baton.ErrHeld) {
			w.pause(20 * time.Millisecond) // do not poll a store that is down
		}
		return true
	}
	w.log.Acquired(op, history.Granted, lease.Token(), nil)
	w.holds(1)
	defer w.holds(-1)
	if !w.believe(op, h, lease, until) {
		_ = lease.Unlock() // its error says that the lease was lost
		return true
	}
	w.log.Releases(op)
	err = lease.Unlock()
	w.log.Released(op, released(err), err)
	return true
}

func released(err error) history.Result {
	switch {
	case err == nil:
		return history.Granted
	case errors.Is(err, baton.ErrLost):
		return history.Refused
	}
	return history.Unknown
}

// believe holds a lease for hold, checks it again and again, and writes. It reports whether
// the lease is still valid.
func (w *worker) believe(op history.Op, h history.Hold, lease *baton.Lease, hold time.Duration) bool {
	writes := h.Mode == history.Exclusive // tokens of readers are not ordered
	for end := time.Now().Add(hold); ; {
		// Read the clock first: the lease was valid at least until then.
		at := history.Now()
		if err := lease.Err(); err != nil {
			w.log.Loses(op, err)
			return false
		}
		w.log.Believes(op, at)
		if writes {
			if w.stopNext.CompareAndSwap(true, false) {
				w.stopHere()
			}
			w.write(history.Write{Op: op, Key: h.Key, Token: lease.Token()})
		}
		left := time.Until(end)
		if left <= 0 || w.calm.Load() && hold > brief {
			return true
		}
		gap := 5*time.Millisecond + time.Duration(w.rng.Int64N(int64(15*time.Millisecond)))
		if w.keeps {
			gap *= 4
		}
		w.pause(min(left, gap))
	}
}

func (w *worker) write(x history.Write) {
	if w.register == nil {
		w.register = &registrar{path: w.Register}
	}
	if err := w.register.write(x); err != nil {
		w.say(sayFailed, "write to the register: "+err.Error())
	}
}

// count takes all permits of every key with permits, one by one, and then one more.
func (c *client) count() {
	defer c.say(sayCounted, "")
	if !c.traits.Permits {
		return
	}
	for i, of := range c.Permits {
		h := history.Hold{Key: permitKey(c.Prefix, i), Mode: history.Permits, Weight: 1, Of: of, Waits: true}
		all := make(map[history.Op]*baton.Lease)
		look := func() {
			for op, lease := range all {
				at := history.Now()
				if err := lease.Err(); err != nil {
					c.log.Loses(op, err)
					delete(all, op)
				} else {
					c.log.Believes(op, at)
				}
			}
		}
		for range of {
			op := c.log.Acquires(h)
			lease, err := c.locks.Lock(c.waiting, h.Key, baton.Permits(1, int(of)))
			if err != nil {
				c.log.Acquired(op, failed(err, true), 0, err)
				break
			}
			c.log.Acquired(op, history.Granted, lease.Token(), nil)
			all[op] = lease
			look()
		}
		look()
		h.Waits = false
		op := c.log.Acquires(h)
		lease, err := c.locks.TryLock(c.waiting, h.Key, baton.Permits(1, int(of)))
		if err != nil {
			c.log.Acquired(op, failed(err, false), 0, err)
		} else {
			c.log.Acquired(op, history.Granted, lease.Token(), nil)
			all[op] = lease
		}
		look()
		for op, lease := range all {
			c.log.Releases(op)
			err := lease.Unlock()
			c.log.Released(op, released(err), err)
		}
	}
}

// brief is the length of a hold in the calm, and with Config.Brief always.
const brief = 5 * time.Millisecond

// howLong draws the length of a hold: mostly short, so that there are many, and sometimes
// longer than the TTL.
func (w *worker) howLong() time.Duration {
	kind, d := w.rng.IntN(20), w.rng.Float64()
	switch {
	case w.calmSeen, w.Brief:
		return time.Duration(d * float64(brief))
	case w.keeps:
		return time.Duration((2 + 4*d) * float64(w.TTL))
	case kind < 12:
		return time.Duration(d * float64(20*time.Millisecond))
	case kind < 17:
		return time.Duration(d * float64(w.TTL) / 4)
	}
	return time.Duration(d * float64(w.TTL) * 3 / 2)
}

// think draws how long a goroutine pauses between two operations.
func (w *worker) think() time.Duration {
	kind, d := w.rng.IntN(4), w.rng.Float64()
	if kind > 0 || w.Brief && !w.keeps {
		return time.Duration(d * float64(5*time.Millisecond))
	}
	return time.Duration(d * float64(60*time.Millisecond))
}

func (w *worker) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.waiting.Done():
	}
}
