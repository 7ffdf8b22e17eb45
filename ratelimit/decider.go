package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// A Decider decides about limits that each request brings with it, for programs whose
// limits depend on the request, such as those of package rules. If the limits are the
// same for every key, use a Limiter. All methods are safe for concurrent use. A Decider
// needs no Close; the caller closes the store.
type Decider struct{ l *Limiter }

// NewDecider makes a Decider. Its options are Overridable, FailOpen, FailClosed,
// FailLocal, Observe and Logger; it refuses limits and InBatches with a *LimitError. It
// sends no request to the store.
func NewDecider(store limits.Store, opts ...Option) (*Decider, error) {
	var c config
	for _, o := range opts {
		o.option(&c)
	}
	switch {
	case c.err != nil:
		return nil, c.err
	case len(c.limits) > 0:
		return nil, &LimitError{Reason: fmt.Sprintf("%v: a Decider gets its limits with each request", c.limits[0])}
	case c.batching != nil:
		return nil, &LimitError{Reason: "a Decider takes nothing in batches"}
	}
	l := &Limiter{store: store, watch: newWatch(store, c)}
	l.fall.failure, l.fall.watch = c.failure, l.watch
	var err error
	if l.over, err = newOverrides(store, c, l.watch, func() {}); err != nil {
		return nil, err
	}
	return &Decider{l}, nil
}

// An Ask is the part of a Question about one limit.
type Ask struct {
	// Name is the limit's name in results.
	Name string

	Limit Limit

	// Key is the key in the store, as it is: the limit's name and ForAll do not change
	// it. See Limit.StoreKey.
	Key string

	// Cost is how much to take, 1 for a limit that counts PerCall. With 0 the decision
	// takes nothing from this limit and returns its state.
	Cost int64
}

// A Question asks for one decision, all or nothing, about 1 to 16 limits.
type Question struct {
	Key  string // for results and errors
	Cost int64  // for results
	Asks []Ask  // each with another key

	// At is the present, for tests and simulations. With the zero time the store
	// uses its clock.
	At time.Time

	// AnswerBy, unless zero, is when the caller needs the answer. FailOpen, FailClosed or
	// FailLocal decide what the store has not decided by then. The request continues for
	// as long as they give the store, so what it takes counts, and an answer within that
	// time is no failure of the store. Without one of these options the result is an
	// error that wraps context.DeadlineExceeded, and the request ends.
	AnswerBy time.Time
}

// Decide asks the store, once, and once more for each Shadow that would have refused what
// the other limits allow. Result.Limits are in the order of the Asks. A refusal is no
// error and has consumed nothing; errors are those of Limiter.Allow. Under a LeakyBucket
// an allowed caller must wait for Result.Wait before it acts.
// LeakyBucket an allowed caller must wait for Result.Wait before it acts.
// Decide causes the event Decided, as "allow", unless all costs are 0.
// Events.Decided is told as of Limiter.Allow, unless all costs are 0.
func (d *Decider) Decide(ctx context.Context, q Question) (Result, error) {
	return d.decide(ctx, q, nil)
}

// decide notes what it has taken in receipt, unless that is nil.
func (d *Decider) decide(ctx context.Context, q Question, receipt *Receipt) (r Result, err error) {
	d.l.over.lookBy(ctx, q.AnswerBy)
	all, ask, err := d.request(q)
	if err != nil {
		return Result{}, err
	}
	if d.l.watch != nil && slices.ContainsFunc(q.Asks, func(a Ask) bool { return a.Cost > 0 }) {
		began := d.l.watch.begin(ctx)
		defer func() { d.l.watch.decided(ctx, began, "allow", q.Key, q.Cost, r, err) }()
	}
	if receipt != nil {
		ask.ID, ask.Keep = receipt.ID, keepIDs
	}
	t, by, took, err := d.l.decideBy(ctx, q.AnswerBy, all, ask)
	if err != nil {
		return Result{}, wrap("ask about", q.Key, err)
	}
	if receipt != nil && t.OK && by == ByStore {
		receipt.At = t.At
		for i, x := range t.Limits {
			if take := ask.Takes[i]; take.Cost > 0 && (took == nil || slices.Contains(took, i)) {
				receipt.Took = append(receipt.Took, Took{take.Key, take.Limit, take.Cost, all[i].calls, x.Wait, x.Reset})
			}
		}
	}
	return result(all, ask, t, by, q.Key, q.Cost), nil
}

// Forget resets the keys of the Asks.
func (d *Decider) Forget(ctx context.Context, q Question) error {
	_, r, err := d.request(q)
	if err != nil {
		return err
	}
	r.Mode = limits.Forget
	_, err = d.l.store.Take(ctx, r)
	return wrap("forget", q.Key, err)
}

func (d *Decider) request(q Question) (all []Limit, r limits.Request, err error) {
	now := time.Now()
	if !q.At.IsZero() {
		now, r.Now = q.At, q.At.UnixMicro()
	}
	all, r.Takes = make([]Limit, len(q.Asks)), make([]limits.Take, len(q.Asks))
	for i, a := range q.Asks {
		limit := d.l.over.of(a.Limit, a.Key)
		r.Takes[i] = limits.Take{Key: a.Key, Limit: limit.at(now), Cost: limit.asks(a.Cost)}
		limit.name = a.Name
		all[i] = limit
	}
	return all, r, limits.Check(r)
}

// Check returns the *LimitError with which New would refuse l, or nil.
func (l Limit) Check() error { return l.check(time.Now()) }

// StoreKey is the store's key for the limit and a caller's key: see Limiter.
func (l Limit) StoreKey(key string) string { return l.key(key) }
