package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/batonhq/baton/driver/limits"
)

// Shadow makes a copy of the limit that counts like the limit but never refuses, to try a
// limit alone or beside the one in force. Its result is in Result.Limits;
// Result.WouldRefuse says that it would have refused. It changes nothing else of a
// Result.
//
// A request takes from it what the limit itself would have given: nothing if the shadow
// would refuse, and nothing if another limit refuses. So its decisions are those of the
// limit under the same requests. A Wait counts as refused by the shadow if it would have
// had to wait for it. No call waits for the turn of a shadow LeakyBucket.
//
// The store decides about all limits in one request, and in one more for each shadow that
// would have refused what the other limits allow. Those limits may then be decided a
// moment later. InBatches takes from no shadow.
//
// The failure of a store affects a Limiter with shadows as any other, unless all limits
// are shadows: then everything is allowed, even under FailClosed, and without a policy
// the call waits for the store as long as its context lasts.
func (l Limit) Shadow() Limit {
	l.shadow = true
	return l
}

// Warn makes Result.Near true while at least that share of the limit is used: with 0.8,
// while at most 20 of 100 remain. The share is above 0 and at most 1. For a LeakyBucket
// it is a share of the queue. What is in a batch counts as used. Warn changes no
// decision.
func (l Limit) Warn(share float64) Limit {
	l.warn = share
	if !(share > 0 && share <= 1) { // or NaN
		l.err = &limits.Error{Reason: fmt.Sprintf("a warning at a share of %v: it is above 0 and at most 1", share)}
	}
	return l
}

// warnAt is the use at which Near begins; 0 for none.
func (l Limit) warnAt(capacity int64) int64 {
	// With floats a share of 0.07 of 100 is a little above 7.
	return int64(math.Ceil(l.warn * float64(capacity) * (1 - 1e-12)))
}

func (l Limit) near(capacity, remaining int64) bool {
	return l.warn != 0 && capacity-remaining >= l.warnAt(capacity)
}

func isShadow(l Limit) bool { return l.shadow }

// decide asks the store, or the policy for a store that fails.
func (l *Limiter) decide(ctx context.Context, all []Limit, r limits.Request) (t limits.Taken, by Source, took []int, err error) {
	return decide(ctx, all, r, l.take)
}

// decide calls take. If shadows refuse what the other limits allow, it calls take again
// without them. Taken.Limits are the results of all limits; took are the limits that were
// taken from if Taken.OK, nil for all.
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
			t.OK = len(took) == 0 // no limit is left to ask
		}
	}
	t.Limits = said
	return t, by, took, nil
}

// taker decides about a request. With an error, the Source is what decides in place of
// the store, or ByStore.
type taker func(context.Context, limits.Request) (limits.Taken, Source, error)

// take asks the store, or the policy for a store that fails. It repeats a request with an
// ID once if its answer was lost.
func (l *Limiter) take(ctx context.Context, r limits.Request) (limits.Taken, Source, error) {
	t, by, err := l.fall.take(ctx, l.store, r, 0)
	if r.ID != "" && errors.Is(err, ErrUnknown) && ctx.Err() == nil {
		t, by, err = l.fall.take(ctx, l.store, r, 0)
	}
	if t.Repeated { // all decisions have the latest turn, even of limits without turns
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
