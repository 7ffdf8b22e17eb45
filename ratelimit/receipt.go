package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// SettleWithin is how long after its decision a Receipt can be settled.
const SettleWithin = time.Hour

// ErrLate says that a Receipt is older than SettleWithin: its costs are consumed.
var ErrLate = fmt.Errorf("the reservation is older than %v", SettleWithin)

// A Receipt describes what Decider.Reserve has taken: a program can pass it to its caller
// and keep nothing. A program that has it can give its costs back, once.
type Receipt struct {
	ID   string `json:"id"`
	At   int64  `json:"at"` // Result.At in microseconds since 1970
	Took []Took `json:"took,omitempty"`
}

// Took is what was taken from one limit.
type Took struct {
	Key     string       `json:"key"`
	Limit   limits.Limit `json:"limit"`
	Cost    int64        `json:"cost"`
	PerCall bool         `json:"per_call,omitempty"`

	// Turn and Reset are the Wait and the ResetAfter of this limit's decision.
	Turn  time.Duration `json:"turn,omitempty"`
	Reset time.Duration `json:"reset"`
}

// left is how much has not come back by itself at now: see held.left.
func (t Took) left(at, now int64) int64 {
	if t.Limit.Algorithm != limits.TokenBucket && t.Limit.Ahead == 0 {
		return t.Cost
	}
	us, n, period := max(at+t.Reset.Microseconds()-now, 0), t.Limit.N, t.Limit.Period.Microseconds()
	left, ok := share(us, n, period)
	if !ok {
		return t.Cost
	}
	if left*period != us*n { // see held.left
		left++
	}
	return min(left, t.Cost)
}

// Reserve is Decide for work whose cost is known only at its end: Settle settles the
// difference. Without Settle the costs are consumed. A request whose answer was lost is
// repeated once, and counted once.
func (d *Decider) Reserve(ctx context.Context, q Question) (Result, Receipt, error) {
	receipt := Receipt{ID: driver.NewID()}
	r, err := d.decide(ctx, q, &receipt)
	return r, receipt, err
}

// Settle settles what Reserve took with the actual cost, as Reservation.Commit does, in
// any process over the same store, within SettleWithin (else ErrLate). The first call
// settles: a further call, in any process, returns ErrSettled and changes nothing, even
// if the first one failed after it reached the store. What that did not give back counts
// as consumed.
func (d *Decider) Settle(ctx context.Context, r Receipt, actual int64) error {
	if actual < 0 {
		return &LimitError{Reason: "a cost must not be negative"}
	}
	if len(r.Took) == 0 {
		return nil
	}
	key, store := r.Took[0].Key, d.l.store
	// GiveBack has no ID in the store, so a limit of one remembers that it was called.
	once, err := store.Take(ctx, limits.Request{Takes: []limits.Take{{
		Key: "settled/" + r.ID, Limit: limits.Limit{Algorithm: limits.SlidingLog, N: 1, Period: SettleWithin}, Cost: 1,
	}}})
	switch {
	case err != nil:
		return wrap("settle", key, err)
	case !once.OK:
		return ErrSettled
	case once.At-r.At > SettleWithin.Microseconds():
		return ErrLate
	}
	settle := func(q limits.Request, due func(t Took, cost int64) int64) error {
		for _, t := range r.Took {
			cost := actual
			if t.PerCall {
				cost = min(cost, 1)
			}
			if n := due(t, cost); n > 0 {
				q.Takes = append(q.Takes, limits.Take{Key: t.Key, Limit: t.Limit, Cost: n})
			}
		}
		if q.Takes == nil {
			return nil
		}
		_, err := store.Take(ctx, q)
		return err
	}
	var turns []time.Duration
	for _, t := range r.Took {
		turns = append(turns, t.Turn)
	}
	slices.Sort(turns)
	var failed error
	for _, turn := range slices.Compact(turns) { // each by itself: see Reservation.Commit
		err := settle(limits.Request{Mode: limits.GiveBack, At: r.At, Wait: turn}, func(t Took, cost int64) int64 {
			if t.Turn != turn {
				return 0
			}
			return min(t.Cost-cost, t.left(r.At, once.At))
		})
		failed = errors.Join(failed, err)
	}
	err = settle(limits.Request{Mode: limits.TakeAnyway, ID: r.ID + "-", Keep: keepIDs},
		func(t Took, cost int64) int64 { return cost - t.Cost })
	return wrap("settle", key, errors.Join(failed, err))
}

// GiveBack returns the costs to their limits, for callers that do not know when they were
// taken; a Receipt is more exact. It returns the oldest of what still counts. So no
// window allows more than its limit, if callers give back only what they took and what
// has not come back by itself. A limit that counts PerCall gets nothing back; neither
// does a bucket that has promised turns, or owes. Called twice, GiveBack returns what
// other callers took: do not repeat a call whose answer was lost.
func (d *Decider) GiveBack(ctx context.Context, q Question) (Result, error) {
	all, ask, err := d.request(q)
	if err != nil {
		return Result{}, err
	}
	ask.Mode = limits.GiveBack
	for i, a := range q.Asks {
		if ask.Takes[i].Cost = a.Cost; all[i].calls {
			ask.Takes[i].Cost = 0
		}
	}
	t, by, _, err := d.l.decideBy(ctx, q.AnswerBy, all, ask)
	if err != nil {
		return Result{}, wrap("give back to", q.Key, err)
	}
	for i := range ask.Takes { // no cost: nothing was refused
		ask.Takes[i].Cost = 0
	}
	return result(all, ask, t, by, q.Key, -q.Cost), nil
}
