package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
)

// InBatches is for keys so busy that a request to the store for each call costs too much:
// the Limiter takes size at a time and hands that out within this process. A batch lasts
// for at most hold; the Limiter gives the rest back within another hold, even if the key
// is not asked for again. A rest that cannot be given back, because the process ended or
// the store failed, counts as consumed. After a refusal the Limiter does not ask again
// before something can have come back, or hold has passed.
//
// Within any stretch of time this allows at most the limit plus processes·size, if at
// most that number of processes share the key: each can use at most one batch from before
// the stretch. New refuses a product above overshoot. The same amount may be unused in
// batches, so that the store refuses other processes too early.
//
// Allow and AllowN take from batches. Result.By is ByBatch if the store was not asked;
// Remaining is then what this process knows of. Limits that count PerCall or ForAll,
// shadows, and LeakyBuckets cannot be batched: each key has a batch of its own, so a
// limit for all keys would have no bound.
func InBatches(size int64, hold time.Duration, processes, overshoot int64) Option {
	return batching{size: size, hold: hold, processes: processes, overshoot: overshoot}
}

type batching struct {
	size, processes, overshoot int64
	hold                       time.Duration
}

func (b batching) option(c *config) { c.batching = &b }

// check refuses batches that cannot keep the bound.
func (b *batching) check(all []Limit) error {
	refuse := func(format string, args ...any) error {
		return &LimitError{Reason: "batches " + fmt.Sprintf(format, args...)}
	}
	if b.size < 2 || b.hold <= 0 || b.processes < 1 {
		return refuse("of %d for %v in %d processes: the size is at least 2, the rest above zero", b.size, b.hold, b.processes)
	}
	if b.processes > b.overshoot/b.size {
		return refuse("of %d in %d processes let up to %d·%d more through than the limit: that is above %d", b.size, b.processes, b.processes, b.size, b.overshoot)
	}
	for _, l := range all {
		switch {
		case l.calls:
			return refuse("cannot be taken from %v, which counts each call", l)
		case l.all:
			return refuse("cannot be taken from %v, which counts all keys: each key would have a batch of its own", l)
		case l.shadow:
			return refuse("cannot be taken from %v: it would refuse batches, not requests", l)
		case l.rule.Algorithm == limits.LeakyBucket:
			return refuse("cannot be taken from %v, where each has a turn of its own", l)
		case b.size > l.rule.Capacity():
			return refuse("of %d are more than %v ever allows", b.size, l)
		}
	}
	return nil
}

// batches are what this process has taken in advance.
type batches struct {
	mu       sync.Mutex
	keys     map[string]*batch
	sweeping bool // a sweep is due, or under way
}

type batch struct {
	turn  chan struct{} // holds a token while no goroutine uses the batch
	users int

	left    int64
	taken   limits.Taken
	limits  []Limit
	request limits.Request
	until   time.Time // end of the batch, or of the refusal
	refusal *Result   // the store's last answer, if it was a refusal
	asked   time.Time // the time of refusal
}

// enter waits for the key's batch.
func (bs *batches) enter(ctx context.Context, key string) (*batch, error) {
	bs.mu.Lock()
	if bs.keys == nil {
		bs.keys = make(map[string]*batch)
	}
	b := bs.keys[key]
	if b == nil {
		b = &batch{turn: make(chan struct{}, 1)}
		b.turn <- struct{}{}
		bs.keys[key] = b
	}
	b.users++
	bs.mu.Unlock()
	select {
	case <-b.turn:
		return b, nil
	case <-ctx.Done():
		bs.mu.Lock()
		defer bs.mu.Unlock()
		b.users--
		return nil, context.Cause(ctx)
	}
}

// leaveBatch lets the next goroutine use the batch, and plans its sweep.
func (l *Limiter) leaveBatch(b *batch) {
	b.turn <- struct{}{}
	bs := &l.batches
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b.users--
	if !bs.sweeping {
		bs.sweeping = true
		time.AfterFunc(l.batching.hold, l.sweepBatches)
	}
}

const (
	sweepers    = 8           // concurrent sweeps
	sweepWithin = time.Second // for one answer of the store
)

// sweepBatches gives back and forgets the batches that have ended, so that a key that is
// asked for once holds nothing for longer. If the store fails, the rest counts as
// consumed, so that batches do not accumulate.
func (l *Limiter) sweepBatches() {
	bs := &l.batches
	now := time.Now()
	bs.mu.Lock()
	var over []string
	for key, b := range bs.keys {
		switch {
		case b.users > 0 || now.Before(b.until):
		case b.left == 0:
			delete(bs.keys, key)
		default:
			over = append(over, key)
		}
	}
	bs.mu.Unlock()
	var next atomic.Int64
	var failed atomic.Bool
	var wg sync.WaitGroup
	for range min(sweepers, len(over)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(over); i = next.Add(1) - 1 {
				if err := l.sweepBatch(over[i], failed.Load()); err != nil {
					failed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.sweeping = len(bs.keys) > 0; bs.sweeping {
		time.AfterFunc(l.batching.hold, l.sweepBatches)
	}
}

// sweepBatch gives back and forgets one batch, unless a goroutine uses it again. A
// goroutine that asks for the key meanwhile waits: the store could refuse it because of
// what is being given back.
func (l *Limiter) sweepBatch(key string, failed bool) error {
	bs := &l.batches
	bs.mu.Lock()
	b := bs.keys[key]
	if b == nil || b.users > 0 || time.Now().Before(b.until) {
		bs.mu.Unlock()
		return nil
	}
	b.users++
	<-b.turn // available, because the batch has no user
	bs.mu.Unlock()
	var err error
	if failed {
		b.left = 0
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), sweepWithin)
		err = l.giveBack(ctx, b, key)
		cancel()
	}
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b.users--; b.users == 0 {
		delete(bs.keys, key)
	}
	b.turn <- struct{}{}
	return err
}

// allowBatched takes n from the key's batch, or from a new one.
func (l *Limiter) allowBatched(ctx context.Context, key string, n int64) (Result, error) {
	if err := check.Key(key); err != nil {
		return Result{}, err
	}
	l.over.look(ctx)
	b, err := l.batches.enter(ctx, key)
	if err != nil {
		return Result{}, wrap("ask about", key, err)
	}
	defer l.leaveBatch(b)
	now := time.Now()
	switch fresh := now.Before(b.until); {
	case fresh && b.left >= n:
		b.left -= n
		return b.result(key, n), nil
	case fresh && b.refusal != nil && n == b.refusal.Cost && b.refusal.RetryAfter != Never:
		r := *b.refusal
		r.By = ByBatch
		r.RetryAfter = max(r.RetryAfter-now.Sub(b.asked), time.Microsecond)
		return r, nil
	}
	_ = l.giveBack(ctx, b, key) // a rest that cannot be given back counts as consumed
	r, err := l.refill(ctx, b, key, max(l.batchSize(key), n), n, now)
	more := func() bool { return err == nil && !r.OK && r.By == ByStore && r.Cost > n } // the store refused a batch of more than n
	if more() {
		least := r.Cost
		for _, x := range r.Limits() {
			least = min(least, x.Remaining)
		}
		r, err = l.refill(ctx, b, key, max(least, n), n, now)
	}
	if more() { // other processes took the rest first
		r, err = l.refill(ctx, b, key, n, n, now)
	}
	if err != nil {
		return Result{}, err
	}
	r.Cost = n
	if !r.OK {
		if r.By == ByStore {
			b.refusal, b.asked, b.until = &r, now, now.Add(min(l.batching.hold, r.NextAfter))
		}
		return r, nil
	}
	if r.By == ByStore {
		b.left -= n
		r.Remaining += b.left
	}
	return r, nil
}

// batchSize is the size of a key's batches: an override may allow less.
func (l *Limiter) batchSize(key string) int64 {
	size := l.batching.size
	for _, limit := range l.limitsOf(key) {
		size = min(size, limit.rule.Capacity())
	}
	return size
}

// refill takes a batch for a caller that wants n. Result.Cost is the size of the batch if
// the result is about that, else n.
func (l *Limiter) refill(ctx context.Context, b *batch, key string, size, n int64, now time.Time) (Result, error) {
	all, q, err := l.request(key, size)
	if err != nil {
		return Result{}, err
	}
	t, by, err := l.fall.take(ctx, l.store, q, n)
	if err != nil {
		return Result{}, wrap("ask about", key, err)
	}
	if t.OK && by == ByStore {
		b.left, b.taken, b.limits, b.request, b.refusal = size, t, all, q, nil
		b.until = now.Add(l.batching.hold) // from before the request
	}
	if !t.OK && by == ByStore && about(t.Limits, n) {
		size, t.Retry = n, 0
		for _, d := range t.Limits {
			t.Retry = max(t.Retry, d.Retry)
		}
	}
	return result(all, q, t, by, key, size), nil
}

// about turns the refusal of a batch into that of n, if it tells when n will be allowed.
// That saves a request if 1 is wanted and 0 remain.
func about(all []limits.Decision, n int64) bool {
	refused := false
	for _, d := range all {
		if d.Remaining < n-1 {
			return false
		}
		refused = refused || d.Remaining < n
	}
	for i := range all {
		if d := &all[i]; refused {
			d.OK, d.Retry = d.Remaining >= n, 0
			if !d.OK {
				d.Retry = d.Next
			}
		}
	}
	return refused
}

// giveBack returns the rest of a batch that has ended. It must precede the next request,
// which the store could otherwise refuse.
func (l *Limiter) giveBack(ctx context.Context, b *batch, key string) error {
	left := b.left
	if b.left = 0; left == 0 {
		return nil
	}
	q := limits.Request{Mode: limits.GiveBack, At: b.taken.At, Wait: b.taken.Wait, Takes: append([]limits.Take(nil), b.request.Takes...)}
	for i := range q.Takes {
		q.Takes[i].Cost = left
	}
	for _, limit := range l.limitsOf(key) {
		i := slices.IndexFunc(b.limits, func(then Limit) bool { return then.name == limit.name })
		if to := toGiveBack(b.limits, limit); i >= 0 && to.rule.Algorithm == limits.TokenBucket {
			q.Takes[i].Limit = to.rule
		}
	}
	if l.fall.by != ByStore { // the caller waits no longer than for an answer
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.fall.after)
		defer cancel()
	}
	_, err := l.store.Take(ctx, q)
	return err
}

// result is an OK from the batch.
func (b *batch) result(key string, n int64) Result {
	r := result(b.limits, b.request, b.taken, ByBatch, key, n)
	r.Remaining += b.left
	return r
}
