package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/batonhq/baton/driver/limits"
)

// Shadow makes a copy of the limit that counts like the limit itself and never
// refuses: to try a limit before it limits, alone or beside the one in force. What
// it says is in Result.Limits; Result.WouldRefuse reports that it would have refused.
// It changes nothing else of a Result.
//
// What a request takes from it is what the limit itself would have given: nothing if
// the shadow would refuse, and nothing if another limit refuses. So its decisions
// are those of the limit itself, asked the same. In a Wait it would have refused if
// the call would have had to wait for it. No call waits for the turn of a shadow
// LeakyBucket.
//
// The store decides about all limits in one request, and in one more for each
// shadow that would have refused what the other limits allow. Those limits may be
// decided a moment later then. InBatches takes from no shadow.
//
// A store that fails is a failure of the Limiter, as for any limit, unless all its
// limits are shadows: that allows everything, also under FailClosed, and without
// any policy as under FailOpen, but it waits for the store as long as the context
// lasts.
func (l Limit) Shadow() Limit {
	l.shadow = true
	return l
}

// Warn makes Result.Near true while at least that share of the limit is used: with
// 0.8, while at most 20 of 100 remain. The share is above 0 and at most 1. Of a
// LeakyBucket it is a share of the queue. What lies in a batch counts as used. It
// changes no decision.
func (l Limit) Warn(share float64) Limit {
	l.warn = share
	if !(share > 0 && share <= 1) { // also NaN
		l.err = &limits.Error{Reason: fmt.Sprintf("a warning at a share of %v: it is above 0 and at most 1", share)}
	}
	return l
}

// warnAt is how much of the capacity has to be used for a warning; 0 for none.
func (l Limit) warnAt(capacity int64) int64 {
	// As floats, a share of 0.07 of 100 is a little above 7.
	return int64(math.Ceil(l.warn * float64(capacity) * (1 - 1e-12)))
}

// near reports whether the share that Warn names is used.
func (l Limit) near(capacity, remaining int64) bool {
	return l.warn != 0 && capacity-remaining >= l.warnAt(capacity)
}

func isShadow(l Limit) bool { return l.shadow }

// decide asks the store, or the policy for a store that fails.
func (l *Limiter) decide(ctx context.Context, all []Limit, r limits.Request) (t limits.Taken, by Source, took []int, err error) {
	return decide(ctx, all, r, l.take)
}

// decide asks take. It leaves out shadows that refuse what the other limits allow, and
// asks again. Taken.Limits is what each limit said; took are the limits that were taken
// from if Taken.OK, nil for all.
func decide(ctx context.Context, all []Limit, r limits.Request, take taker) (t limits.Taken, by Source, took []int, err error) {
	if !slices.ContainsFunc(all, isShadow) {
		t, by, err = take(ctx, r)
		return t, by, nil, err
	}
	only := !slices.ContainsFunc(all, func(l Limit) bool { return !l.shadow })
	took = make([]int, len(all))
	for i := range took {
		took[i] = i
	}
	said := make([]limits.Decision, len(all))
	takes := r.Takes
	for refused := false; !refused && len(took) > 0; {
		r.Takes = make([]limits.Take, len(took))
		for k, i := range took {
			r.Takes[k] = takes[i]
		}
		t, by, err = take(ctx, r)
		if err != nil && only && by == ByStore && fails(err) && ctx.Err() == nil {
			t, by, err = (&fallback{failure: failure{by: ByOpen}}).stand(r, 0)
		}
		if err != nil {
			return t, by, nil, err
		}
		rest := took[:0:0]
		for k, i := range took {
			if said[i] = t.Limits[k]; said[i].OK {
				rest = append(rest, i)
			} else {
				refused = refused || !all[i].shadow
			}
		}
		if t.OK {
			break
		}
		if took = rest; !refused {
			t.OK = len(took) == 0 // nothing is left to be asked
		}
	}
	t.Limits = said
	return t, by, took, nil
}

// taker decides about a request. With an error, the Source is what decides in place of the
// store: ByStore if nothing does.
type taker func(context.Context, limits.Request) (limits.Taken, Source, error)

// take asks the store about a request, or the policy for a store that fails. It
// repeats a request with an ID once if its answer was lost.
func (l *Limiter) take(ctx context.Context, r limits.Request) (limits.Taken, Source, error) {
	t, by, err := l.fall.take(ctx, l.store, r, 0)
	if r.ID != "" && errors.Is(err, ErrUnknown) && ctx.Err() == nil {
		t, by, err = l.fall.take(ctx, l.store, r, 0)
	}
	if t.Repeated { // all decisions have the latest turn, also of limits that have no turns
		for i, take := range r.Takes {
			switch a := take.Limit.Algorithm; {
			case a == limits.LeakyBucket, a == limits.TokenBucket && r.MaxWait > 0:
			default:
				t.Limits[i].Wait = 0
			}
		}
	}
	return t, by, err
}
