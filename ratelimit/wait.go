package ratelimit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/bootclock"
)

// keepIDs is how long the store remembers the ID of a request.
const keepIDs = time.Minute

// Wait waits until one is allowed, and takes it. If it knows that this will be after the
// context's deadline it fails at once with a *RefusedError, and has consumed nothing. If
// the context ends while it waits, it fails with the context's error.
//
// The goroutines of this process that wait for a key form a local queue, first come,
// first served. It takes turns under TokenBucket and LeakyBucket from the store at most
// 100 ms before they come. The turn of a waiter that leaves goes to the next one, or else
// back to the store. So a waiter that leaves delays other processes by no more than that.
// There is no order between processes, nor between waiters and calls that do not wait. A
// waiter that would miss its deadline only because of earlier waiters fails at the
// deadline, because these may leave before.
//
// A failure of the store is an error only for the waiter of the failed request.
func (l *Limiter) Wait(ctx context.Context, key string) (Result, error) { return l.WaitN(ctx, key, 1) }

// WaitN waits for n at once.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Result, error) {
	return l.wait(&waiter{key: key, n: n, ctx: ctx})
}

// WaitWithin is WaitN for servers: it waits only for turns in the queues of LeakyBuckets.
// It refuses at once if another limit refuses; if the wait, with the earlier waiters in
// the local queue, would exceed longest or the context's deadline; and if the
// LeakyBucket's queue is full. If longest is below 0, the size of that queue is the only
// bound.
//
// Each process knows only its own local queue. If other processes overtake a waiter, it
// is refused when longest, or the longest wait of the LeakyBucket, has passed.
func (l *Limiter) WaitWithin(ctx context.Context, key string, n int64, longest time.Duration) (Result, error) {
	w := &waiter{key: key, n: n, ctx: ctx, turning: true}
	now := time.Now()
	if longest >= 0 {
		w.until = now.Add(min(longest, longestTurn))
	} else {
		l.over.look(ctx)
		w.until = now.Add(l.longest(key, n) + lookAhead)
	}
	return l.wait(w)
}

// longest is the longest wait for n in the shortest queue.
func (l *Limiter) longest(key string, n int64) time.Duration {
	d := longestTurn
	for _, limit := range l.limitsOf(key) {
		if limit.queues() {
			s := standing{limit: limit}
			d = min(d, s.span(max(limit.rule.Burst-limit.cost(n), 0)))
		}
	}
	return d
}

func (l *Limiter) wait(w *waiter) (Result, error) {
	began := l.watch.begin(w.ctx)
	r, err := l.waitFor(w)
	l.watch.decided(w.ctx, began, "wait", w.key, w.n, r, err)
	return r, err
}

func (l *Limiter) waitFor(w *waiter) (Result, error) {
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
	never := l.never(w.key, w.n)
	mu.Lock()
	q := l.queues.all[name]
	if q == nil || never { // no earlier waiter: ask for what is available at once
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
	l.over.keepLooking(l.queues.busy)
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

// queueOf is the name of the key's local queue: "", for all keys together, if every limit
// counts ForAll.
func (l *Limiter) queueOf(key string) string {
	for _, limit := range l.plan.Load().limits {
		if !limit.all && !limit.shadow {
			return key
		}
	}
	return ""
}

// never reports whether n is more than a limit ever allows.
func (l *Limiter) never(key string, n int64) bool {
	for _, limit := range l.limitsOf(key) {
		if !limit.shadow && limit.asks(n) > limit.rule.Capacity() {
			return true
		}
	}
	return false
}

// Queues reports whether a limit is a LeakyBucket and no Shadow, so that callers must
// wait for Result.Wait.
func (l *Limiter) Queues() bool { return slices.ContainsFunc(l.plan.Load().limits, Limit.queues) }

func (l Limit) queues() bool { return l.rule.Algorithm == limits.LeakyBucket && !l.shadow }

// A Reservation is what Reserve took, until it is settled.
type Reservation struct {
	// Result is the decision: not OK if nothing was reserved.
	Result Result

	l      *Limiter
	id     string
	limits []Limit
	at     int64 // when the store decided

	mu      sync.Mutex
	held    map[string]held // by the name of the limit
	settled bool
}

type held struct {
	cost int64
	turn time.Duration // from the decision to its own turn

	// For a bucket that lets some through at once: when it is full again, on bootclock,
	// and its rate. Other buckets are queues, which take nothing back that is before
	// later requests.
	full   time.Time
	n      int64
	period time.Duration
}

// left is how much has not come back by itself: what was taken last comes back last. For
// windows the store knows that by the moment of the take. A part of a token counts as
// one: otherwise a caller that cancels at once would lose one.
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

// Reserve takes n in advance, for work whose cost is known only at its end: Commit
// settles the difference, Cancel gives all back. Otherwise n is consumed. After a refusal
// the error is nil, Result.OK is false and there is nothing to settle. Only a LeakyBucket
// queues: where x/time/rate would return a delay, Reserve refuses with a
// Result.RetryAfter. To wait, call Wait.
//
// A request whose answer was lost is repeated once, and counted once.
func (l *Limiter) Reserve(ctx context.Context, key string, n int64) (*Reservation, error) {
	if n < 1 {
		return nil, &LimitError{Key: key, Reason: "a cost must be positive"}
	}
	return l.reserveTold(ctx, key, n, 0)
}

// ReserveWithin is Reserve with a bound on the turn of a LeakyBucket: the store refuses a
// turn more than longest ahead and takes nothing. Result.RetryAfter is then the time
// until a turn is near enough. ReserveWithin does not wait: see Result.Wait.
func (l *Limiter) ReserveWithin(ctx context.Context, key string, n int64, longest time.Duration) (*Reservation, error) {
	if n < 1 {
		return nil, &LimitError{Key: key, Reason: "a cost must be positive"}
	}
	return l.reserveTold(ctx, key, n, max(longest, 1))
}

func (l *Limiter) reserveTold(ctx context.Context, key string, n int64, within time.Duration) (*Reservation, error) {
	began := l.watch.begin(ctx)
	res, err := l.reserve(ctx, key, n, 0, within)
	if !began.IsZero() {
		var r Result
		if res != nil {
			r = res.Result
		}
		l.watch.decided(ctx, began, "reserve", key, n, r, err)
	}
	return res, err
}

// reserve takes n: of token buckets for a turn at most wait ahead, of queues for a turn
// at most within ahead, or any turn if within is 0.
func (l *Limiter) reserve(ctx context.Context, key string, n int64, wait, within time.Duration) (*Reservation, error) {
	l.over.look(ctx)
	all, r, err := l.request(key, n)
	if err != nil {
		return nil, err
	}
	r.ID, r.Keep, r.MaxWait, r.TurnWithin = driver.NewID(), keepIDs, wait, within
	t, by, took, err := l.decide(ctx, all, r)
	if err != nil {
		return nil, wrap("reserve", key, err)
	}
	res := &Reservation{
		Result: result(all, r, t, by, key, n),
		l:      l, id: r.ID, limits: all, at: t.At, held: make(map[string]held), settled: !t.OK,
	}
	for i, limit := range all {
		if took != nil && !slices.Contains(took, i) {
			continue // a shadow that would have refused
		}
		h := held{cost: r.Takes[i].Cost, turn: t.Limits[i].Wait}
		if limit.rule.Algorithm == limits.TokenBucket || limit.rule.Ahead > 0 {
			h.full, h.n, h.period = bootclock.Now().Add(t.Limits[i].Reset), limit.rule.N, limit.rule.Period
		}
		res.held[limit.name] = h
	}
	return res, nil
}

// Commit settles a reservation with its actual cost. It gives the rest back as far as
// that still counts, or takes the excess even above the limit, as debt of at most one
// more limit. A cost of 0 is Cancel.
//
// Commit may be repeated after an error; otherwise a second call returns ErrSettled.
// After ErrUnknown a repetition gives nothing back a second time: what the first call did
// not give back counts as consumed.
func (r *Reservation) Commit(ctx context.Context, actual int64) error {
	if actual < 0 {
		return &LimitError{Key: r.Result.Key, Reason: "a cost must not be negative"}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settled {
		return ErrSettled
	}
	if r.Result.By != ByStore { // the store did not count it
		r.settled = true
		return nil
	}
	now := time.Now()
	all := r.l.limitsOf(r.Result.Key)
	settle := func(q limits.Request, due func(h held, cost int64) int64) error {
		settled := make(map[string]int64)
		for _, limit := range all {
			h, known := r.held[limit.name] // false if the limits have changed
			cost := limit.cost(actual)
			if n := due(h, cost); known && n > 0 {
				if q.Mode == limits.GiveBack {
					limit = toGiveBack(r.limits, limit)
				}
				q.Takes = append(q.Takes, limits.Take{Key: limit.key(r.Result.Key), Limit: limit.at(now), Cost: n})
				settled[limit.name] = cost
			}
		}
		if q.Takes == nil {
			return nil
		}
		_, err := r.l.store.Take(ctx, q)
		// GiveBack has no ID: a repetition would give back what other callers took.
		if err == nil || q.Mode == limits.GiveBack && errors.Is(err, ErrUnknown) {
			for name, cost := range settled { // even if the other half fails
				h := r.held[name]
				h.cost = cost
				r.held[name] = h
			}
		}
		return wrap("settle", r.Result.Key, err)
	}
	// Each limit compares its own turn with later promises: with another limit's turn it
	// would see a false one, or overlook one.
	turns := make([]time.Duration, 0, len(r.held))
	for _, h := range r.held {
		turns = append(turns, h.turn)
	}
	slices.Sort(turns)
	for _, turn := range slices.Compact(turns) {
		err := settle(limits.Request{Mode: limits.GiveBack, At: r.at, Wait: turn}, func(h held, cost int64) int64 {
			if cost >= h.cost || h.turn != turn {
				return 0
			}
			return min(h.cost-cost, h.left())
		})
		if err != nil {
			return err
		}
	}
	if err := settle(limits.Request{Mode: limits.TakeAnyway, ID: r.id + "-", Keep: keepIDs},
		func(h held, cost int64) int64 { return cost - h.cost }); err != nil {
		return err
	}
	r.settled = true
	return nil
}

// toGiveBack is the limit by which to give back what was taken under the limit of the
// same name in taken. limit is the one now in force. A window finds what was taken by the
// window of the take; a bucket's content comes back at the present rate.
func toGiveBack(taken []Limit, limit Limit) Limit {
	i := slices.IndexFunc(taken, func(l Limit) bool { return l.name == limit.name })
	bucket := limit.rule.Algorithm == limits.TokenBucket || limit.rule.Algorithm == limits.LeakyBucket
	if i < 0 || bucket && taken[i].rule.Algorithm == limit.rule.Algorithm {
		return limit
	}
	return taken[i]
}

// Cancel gives back all that was reserved.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Commit(ctx, 0) }
