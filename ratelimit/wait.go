package ratelimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/bootclock"
)

// keepIDs is how long the store remembers a request that may be repeated.
const keepIDs = time.Minute

// Wait waits until one is allowed, and takes it. If it is known that this is after
// the context's deadline it fails at once, with a *RefusedError, and has consumed nothing; if
// the context ends while it waits, it fails with the context's error.
//
// The goroutines of this process that wait for a key stand in a local queue, first come, first
// served. Turns under TokenBucket and LeakyBucket are taken from the store at most 100 ms
// before they come, and the turn of a waiter who goes away is the next one's; if there is none
// it is given back. So those who hang up keep a limit from others for no longer than that.
// Between processes, and between those who wait and those who ask without waiting, the order is not
// kept. Whoever cannot be served before his deadline only because of those before him in the
// queue, who may go away, is told when it has passed.
//
// If the store cannot be asked, that is an error for the waiter for whom it was asked.
func (l *Limiter) Wait(ctx context.Context, key string) (Result, error) { return l.WaitN(ctx, key, 1) }

// WaitN waits for n at once.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Result, error) {
	return l.wait(&waiter{key: key, n: n, ctx: ctx})
}

// WaitWithin is WaitN for a turn in the queues of LeakyBuckets alone, as a server wants it: what another
// limit refuses is refused at once, and so is what would wait for longer than longest or
// than the context's deadline, those before it in the local queue included, or does not fit into
// the queue that the LeakyBucket describes. If longest is below 0 that is the only bound.
//
// Where several processes wait for one key each knows its own local queue. Who was let in and is
// overtaken by others is refused when longest, or the longest wait of the queue, has passed.
func (l *Limiter) WaitWithin(ctx context.Context, key string, n int64, longest time.Duration) (Result, error) {
	w := &waiter{key: key, n: n, ctx: ctx, turning: true}
	now := time.Now()
	if longest >= 0 {
		w.until = now.Add(min(longest, longestTurn))
	} else {
		w.until = now.Add(l.longest(n) + lookAhead)
	}
	return l.wait(w)
}

// longest is how long n can wait for its turn: in the shortest queue.
func (l *Limiter) longest(n int64) time.Duration {
	d := longestTurn
	for _, limit := range l.plan.Load().limits {
		if limit.rule.Algorithm == limits.LeakyBucket {
			s := standing{limit: limit}
			d = min(d, s.span(max(limit.rule.Burst-limit.cost(n), 0)))
		}
	}
	return d
}

func (l *Limiter) wait(w *waiter) (Result, error) {
	if w.n < 1 {
		return Result{}, &LimitError{Key: w.key, Reason: "a cost must be positive"}
	}
	if err := check.Key(w.key); err != nil {
		return Result{}, err
	}
	if deadline, ok := w.ctx.Deadline(); ok && (w.until.IsZero() || deadline.Before(w.until)) {
		w.until = deadline
	}
	w.done = make(chan outcome, 1)
	mu, name := &l.queues.mu, l.queueOf(w.key)
	mu.Lock()
	q := l.queues.all[name]
	if q == nil || l.never(w.n) { // nobody waits: what can be had at once is
		mu.Unlock()
		sent := time.Now()
		res, err := l.reserve(w.ctx, w.key, w.n, 0, 1)
		if err != nil {
			return Result{}, err
		}
		r := res.Result
		if r.OK {
			return r, nil
		}
		if r.RetryAfter == Never || w.turning && refusedByOther(res) {
			return r, &RefusedError{r}
		}
		mu.Lock()
		if q = l.queues.all[name]; q == nil {
			q = &queue{l: l, name: name}
			if l.queues.all == nil {
				l.queues.all = make(map[string]*queue)
			}
			l.queues.all[name] = q
			q.know(res, w.n, 0, sent)
		}
	}
	r, no := q.enter(w)
	mu.Unlock()
	if no {
		return r, &RefusedError{r}
	}
	var over <-chan time.Time
	if w.turning {
		timer := time.NewTimer(time.Until(w.until))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case o := <-w.done:
		return o.r, o.err
	case <-over:
	case <-w.ctx.Done():
	}
	return q.leave(w)
}

// queueOf is where those wait who want the key: all together, "", if nothing is counted by it.
func (l *Limiter) queueOf(key string) string {
	for _, limit := range l.plan.Load().limits {
		if !limit.all {
			return key
		}
	}
	return ""
}

// never reports whether n is more than a limit ever allows.
func (l *Limiter) never(n int64) bool {
	for _, limit := range l.plan.Load().limits {
		if limit.cost(n) > limit.rule.Capacity() {
			return true
		}
	}
	return false
}

// Queues reports whether a limit is a LeakyBucket, so that Result.Wait has to be
// waited for.
func (l *Limiter) Queues() bool {
	for _, limit := range l.plan.Load().limits {
		if limit.rule.Algorithm == limits.LeakyBucket {
			return true
		}
	}
	return false
}

// A Reservation is what Reserve took, until it is settled.
type Reservation struct {
	// Result is the decision: not OK if nothing was reserved.
	Result Result

	l      *Limiter
	id     string
	limits []Limit
	taken  limits.Taken

	mu      sync.Mutex
	held    map[string]held // by the name of the limit
	settled bool
}

// held is what was taken from one limit.
type held struct {
	cost int64

	// Of a bucket that lets some through at once: when it is full again, on
	// bootclock, and its rate. Any other is a queue that takes nothing back from
	// before those who came later.
	full   time.Time
	n      int64
	period time.Duration
}

// left is how much has not come back by itself: what was taken last comes back
// last. Windows know that of the moment when it was taken. A part of a token counts
// as one, or who cancels at once would lose one.
func (h held) left() int64 {
	if h.n == 0 {
		return h.cost
	}
	us, n, period := max(h.full.Sub(bootclock.Now()), 0).Microseconds(), h.n, h.period.Microseconds()
	left, ok := share(us, n, period)
	if !ok {
		return h.cost
	}
	if left*period != us*n { // both may have wrapped: they differ by less than a period
		left++
	}
	return min(left, h.cost)
}

// Reserve takes n in advance, for something whose cost is known when it is over:
// Commit settles the difference, Cancel gives all back. A holder that never does
// either has consumed n. If it is refused, Result.OK is false and there is
// nothing to settle.
//
// A request whose answer was lost is repeated once, and counted once.
func (l *Limiter) Reserve(ctx context.Context, key string, n int64) (*Reservation, error) {
	if n < 1 {
		return nil, &LimitError{Key: key, Reason: "a cost must be positive"}
	}
	return l.reserve(ctx, key, n, 0, 0)
}

// ReserveWithin is Reserve for those who would not wait for longer than longest
// for the turn that a LeakyBucket gives: a later one is refused by the store and
// takes nothing. Result.RetryAfter then says when there will be one that is near
// enough. It does not wait: see Result.Wait.
func (l *Limiter) ReserveWithin(ctx context.Context, key string, n int64, longest time.Duration) (*Reservation, error) {
	if n < 1 {
		return nil, &LimitError{Key: key, Reason: "a cost must be positive"}
	}
	return l.reserve(ctx, key, n, 0, max(longest, 1))
}

// reserve takes n: of token buckets for a turn that is at most wait ahead, of queues for one that
// is at most within ahead, or if that is 0 for any.
func (l *Limiter) reserve(ctx context.Context, key string, n int64, wait, within time.Duration) (*Reservation, error) {
	all, r, err := l.request(key, n)
	if err != nil {
		return nil, err
	}
	r.ID, r.Keep, r.MaxWait, r.TurnWithin = driver.NewID(), keepIDs, wait, within
	t, by, err := l.fall.take(ctx, l.store, r, 0)
	if errors.Is(err, ErrUnknown) && ctx.Err() == nil {
		t, by, err = l.fall.take(ctx, l.store, r, 0)
	}
	if err != nil {
		return nil, wrap("reserve", key, err)
	}
	res := &Reservation{
		Result: result(all, r, t, by, key, n),
		l:      l, id: r.ID, limits: all, taken: t, held: make(map[string]held), settled: !t.OK,
	}
	for i, limit := range all {
		h := held{cost: r.Takes[i].Cost}
		if limit.rule.Algorithm == limits.TokenBucket || limit.rule.Ahead > 0 {
			h.full, h.n, h.period = bootclock.Coarse().Add(t.Limits[i].Reset), limit.rule.N, limit.rule.Period
		}
		res.held[limit.name] = h
	}
	return res, nil
}

// Commit settles what was reserved with what it came to: the rest is given back
// as far as it still counts, and what is missing is taken whether or not it is
// allowed, as debt of at most one more limit. A cost of 0 is Cancel.
//
// It may be repeated after an error; otherwise a second call answers ErrSettled.
// After ErrUnknown a repetition gives nothing back a second time: what the first
// one did not give back was consumed.
func (r *Reservation) Commit(ctx context.Context, actual int64) error {
	if actual < 0 {
		return &LimitError{Key: r.Result.Key, Reason: "a cost must not be negative"}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settled {
		return ErrSettled
	}
	if r.Result.By != ByStore { // the store knows nothing of it
		r.settled = true
		return nil
	}
	now := time.Now()
	all := r.l.plan.Load().limits
	settle := func(q limits.Request, due func(h held, cost int64) int64) error {
		settled := make(map[string]int64)
		for _, limit := range all {
			h, known := r.held[limit.name] // unless the limits have changed
			cost := limit.cost(actual)
			if n := due(h, cost); known && n > 0 {
				q.Takes = append(q.Takes, limits.Take{Key: limit.key(r.Result.Key), Limit: limit.at(now), Cost: n})
				settled[limit.name] = cost
			}
		}
		if q.Takes == nil {
			return nil
		}
		_, err := r.l.store.Take(ctx, q)
		// Giving back has no ID: done twice it would give what others have taken.
		if err == nil || q.Mode == limits.GiveBack && errors.Is(err, ErrUnknown) {
			for name, cost := range settled { // whatever becomes of the other half
				h := r.held[name]
				h.cost = cost
				r.held[name] = h
			}
		}
		return wrap("settle", r.Result.Key, err)
	}
	if err := settle(limits.Request{Mode: limits.GiveBack, At: r.taken.At, Wait: r.taken.Wait},
		func(h held, cost int64) int64 {
			if cost >= h.cost {
				return 0
			}
			return min(h.cost-cost, h.left())
		}); err != nil {
		return err
	}
	if err := settle(limits.Request{Mode: limits.TakeAnyway, ID: r.id + "-", Keep: keepIDs},
		func(h held, cost int64) int64 { return cost - h.cost }); err != nil {
		return err
	}
	r.settled = true
	return nil
}

// Cancel gives back all that was reserved.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Commit(ctx, 0) }
