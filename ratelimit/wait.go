package ratelimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// keepIDs is how long the store remembers a request that may be repeated.
const keepIDs = time.Minute

// longestTurn is how far ahead Wait takes turns if its context has no deadline.
const longestTurn = 24 * time.Hour

// Wait waits until one is allowed, and takes it. If the context's deadline comes
// first it fails at once, with a *RefusedError, and has consumed nothing; if
// the context ends while it waits, what it took is given back as far as nobody
// was promised what follows.
//
// Under TokenBucket and LeakyBucket whoever waits has a turn of his own in the
// store: first come, first served, whatever the processes. Under windows the
// waiters of one process stand in line and the first of them asks again when
// told to; between processes the order is not kept.
func (l *Limiter) Wait(ctx context.Context, key string) (Result, error) { return l.WaitN(ctx, key, 1) }

// WaitN waits for n at once.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Result, error) {
	if n < 1 {
		return Result{}, &LimitError{Key: key, Reason: "a cost must be positive"}
	}
	if !l.turns() {
		refused, err := l.lines.enter(ctx, key)
		switch {
		case err != nil:
			return Result{}, wrap("wait for", key, err)
		case refused != nil:
			refused.Cost = n
			return *refused, &RefusedError{*refused}
		}
		defer l.lines.leave(key)
	}
	for {
		res, err := l.reserve(ctx, key, n, true, 0)
		if err != nil {
			return Result{}, err
		}
		r := res.Result
		wait := r.Wait
		if !r.OK {
			if wait = r.RetryAfter; tooLate(ctx, wait) {
				return r, &RefusedError{r}
			}
			l.lines.refused(key, r)
		} else if wait > 0 && tooLate(ctx, wait) { // by less than the answer took
			res.abandon(ctx)
			r = r.late(ctx)
			return r, &RefusedError{r}
		}
		if err := sleep(ctx, wait); err != nil {
			if r.OK {
				res.abandon(ctx)
			}
			return Result{}, wrap("wait for", key, err)
		}
		if r.OK {
			r.Wait = 0
			return r, nil
		}
	}
}

// turns reports whether every limit gives turns.
func (l *Limiter) turns() bool {
	for _, limit := range l.plan.Load().limits {
		if limit.rule.Algorithm != driver.TokenBucket && limit.rule.Algorithm != driver.LeakyBucket {
			return false
		}
	}
	return true
}

// Queues reports whether a limit is a LeakyBucket, so that Result.Wait has to be
// waited for.
func (l *Limiter) Queues() bool {
	for _, limit := range l.plan.Load().limits {
		if limit.rule.Algorithm == driver.LeakyBucket {
			return true
		}
	}
	return false
}

func tooLate(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return wait == Never || ok && time.Until(deadline) < wait
}

// late makes a refusal of a turn that comes after the deadline. What remains is as
// if it had not been given back, which may have failed.
func (r Result) late(ctx context.Context) Result {
	deadline, _ := ctx.Deadline()
	longest := max(time.Until(deadline), 0)
	r.limits = append([]LimitResult(nil), r.Limits()...)
	for i := range r.limits {
		one := &r.limits[i]
		if one.Wait > longest {
			one.OK, one.RetryAfter = false, one.Wait-longest
		}
		one.Wait = 0
	}
	r.OK, r.RetryAfter, r.Wait = false, r.Wait-longest, 0
	r.tell()
	return r
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lines let the waiters of one process pass one by one.
type lines struct {
	mu  sync.Mutex
	all map[string]*line
}

type line struct {
	turn    chan struct{} // holds a token while nobody is at the front; those who wait for it are served in order
	members int

	// What the front was told, and until when it stands: nobody behind it is
	// let in sooner.
	told  Result
	until time.Time
}

// enter waits for the front, unless the context's deadline comes before even
// those can be let in who are there.
func (ls *lines) enter(ctx context.Context, key string) (*Result, error) {
	ls.mu.Lock()
	if ls.all == nil {
		ls.all = make(map[string]*line)
	}
	ln := ls.all[key]
	if ln == nil {
		ln = &line{turn: make(chan struct{}, 1)}
		ln.turn <- struct{}{}
		ls.all[key] = ln
	}
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(ln.until) {
		r := ln.told
		r.RetryAfter = time.Until(ln.until)
		ls.mu.Unlock()
		return &r, nil
	}
	ln.members++
	ls.mu.Unlock()
	select {
	case <-ln.turn:
		return nil, nil
	case <-ctx.Done():
		ls.drop(key, ln)
		return nil, context.Cause(ctx)
	}
}

// leave lets the next one to the front.
func (ls *lines) leave(key string) {
	ls.mu.Lock()
	ln := ls.all[key]
	ln.until = time.Time{}
	ls.mu.Unlock()
	ls.drop(key, ln)
	ln.turn <- struct{}{}
}

func (ls *lines) drop(key string, ln *line) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln.members--; ln.members == 0 {
		delete(ls.all, key)
	}
}

// refused notes what the front was told.
func (ls *lines) refused(key string, r Result) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln := ls.all[key]; ln != nil && r.RetryAfter != Never {
		ln.told, ln.until = r, time.Now().Add(r.RetryAfter)
	}
}

// A Reservation is what Reserve took, until it is settled.
type Reservation struct {
	// Result is the decision: not OK if nothing was reserved.
	Result Result

	l     *Limiter
	id    string
	taken driver.Taken

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
	return l.reserve(ctx, key, n, false, 0)
}

// ReserveWithin is Reserve for those who would not wait for longer than longest
// for the turn that a LeakyBucket gives: a later one is refused by the store and
// takes nothing. Result.RetryAfter then says when there will be one that is near
// enough. It does not wait: see Result.Wait.
func (l *Limiter) ReserveWithin(ctx context.Context, key string, n int64, longest time.Duration) (*Reservation, error) {
	if n < 1 {
		return nil, &LimitError{Key: key, Reason: "a cost must be positive"}
	}
	return l.reserve(ctx, key, n, false, max(longest, 1))
}

// reserve takes n for a turn that is at most within ahead, if that is not 0. With
// wait it takes turns of token buckets, too, and none after the context's deadline.
func (l *Limiter) reserve(ctx context.Context, key string, n int64, wait bool, within time.Duration) (*Reservation, error) {
	limits, r, err := l.request(key, n)
	if err != nil {
		return nil, err
	}
	r.ID, r.Keep, r.TurnWithin = driver.NewID(), keepIDs, within
	if wait {
		r.MaxWait = longestTurn
		if deadline, ok := ctx.Deadline(); ok {
			r.MaxWait = max(min(r.MaxWait, time.Until(deadline)), 0)
		}
		r.TurnWithin = max(r.MaxWait, 1)
	}
	t, by, err := l.fall.take(ctx, l.store, r, 0)
	if errors.Is(err, ErrUnknown) && ctx.Err() == nil {
		t, by, err = l.fall.take(ctx, l.store, r, 0)
	}
	if err != nil {
		return nil, wrap("reserve", key, err)
	}
	res := &Reservation{
		Result: result(limits, r, t, by, key, n),
		l:      l, id: r.ID, taken: t, held: make(map[string]held), settled: !t.OK,
	}
	for i, limit := range limits {
		h := held{cost: r.Takes[i].Cost}
		if limit.rule.Algorithm == driver.TokenBucket || limit.rule.Ahead > 0 {
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
	limits := r.l.plan.Load().limits
	settle := func(q driver.TakeRequest, due func(h held, cost int64) int64) error {
		settled := make(map[string]int64)
		for _, limit := range limits {
			h, known := r.held[limit.name] // unless the limits have changed
			cost := limit.cost(actual)
			if n := due(h, cost); known && n > 0 {
				q.Takes = append(q.Takes, driver.Take{Key: limit.key(r.Result.Key), Limit: limit.at(now), Cost: n})
				settled[limit.name] = cost
			}
		}
		if q.Takes == nil {
			return nil
		}
		_, err := r.l.store.Take(ctx, q)
		// Giving back has no ID: done twice it would give what others have taken.
		if err == nil || q.Mode == driver.GiveBack && errors.Is(err, ErrUnknown) {
			for name, cost := range settled { // whatever becomes of the other half
				h := r.held[name]
				h.cost = cost
				r.held[name] = h
			}
		}
		return wrap("settle", r.Result.Key, err)
	}
	if err := settle(driver.TakeRequest{Mode: driver.GiveBack, At: r.taken.At, Wait: r.taken.Wait},
		func(h held, cost int64) int64 {
			if cost >= h.cost {
				return 0
			}
			return min(h.cost-cost, h.left())
		}); err != nil {
		return err
	}
	if err := settle(driver.TakeRequest{Mode: driver.TakeAnyway, ID: r.id + "-", Keep: keepIDs},
		func(h held, cost int64) int64 { return cost - h.cost }); err != nil {
		return err
	}
	r.settled = true
	return nil
}

// Cancel gives back all that was reserved.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Commit(ctx, 0) }

// abandon gives back a turn that nobody waits for any more, although the
// context has ended.
func (r *Reservation) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.Cancel(ctx) // what cannot be given back was consumed
}
