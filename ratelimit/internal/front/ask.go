package front

import (
	"context"
	"time"

	"github.com/batonhq/baton/ratelimit"
)

// Ask asks a limiter, and waits for the turn that a LeakyBucket gives.
type Ask struct {
	Limiter *ratelimit.Limiter
	MaxWait time.Duration // a turn that is further ahead is refused; below 0 there is no bound
}

// An Answer is a decision.
type Answer struct {
	ratelimit.Result
	Limits []ratelimit.LimitResult

	// Waited is how long ago it was made, because the turn had to be waited for.
	Waited time.Duration

	// Late says that a limit had room, but refused it because its turn would have
	// been too far ahead: what Result says remains does not tell why.
	Late bool
}

// Do asks for n. If the context ends while it waits for its turn, the turn is
// given back.
func (a Ask) Do(ctx context.Context, key string, n int64) (Answer, error) {
	if !a.Limiter.Queues() { // and nothing ever has to be given back
		r, err := a.Limiter.AllowN(ctx, key, n)
		return answer(r), err
	}
	longest, bounded := a.longest(ctx)
	var reserved *ratelimit.Reservation
	var err error
	if bounded {
		reserved, err = a.Limiter.ReserveWithin(ctx, key, n, longest)
	} else {
		reserved, err = a.Limiter.Reserve(ctx, key, n)
	}
	if err != nil {
		return Answer{}, err
	}
	r := reserved.Result
	if !r.OK || r.Wait <= 0 {
		a := answer(r)
		for _, l := range a.Limits {
			a.Late = a.Late || bounded && !l.OK && l.RetryAfter != ratelimit.Never && l.Remaining >= n
		}
		return a, nil
	}
	if longest, bounded := a.longest(ctx); bounded && r.Wait > longest { // by less than the answer took
		giveBack(ctx, reserved)
		return late(r, longest), nil
	}
	timer := time.NewTimer(r.Wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		waited := r.Wait
		r.Wait = 0
		a := answer(r)
		a.Waited = waited
		return a, nil
	case <-ctx.Done():
		giveBack(ctx, reserved)
		return Answer{}, context.Cause(ctx)
	}
}

// longest is how long a turn may be waited for, if there is a bound.
func (a Ask) longest(ctx context.Context) (d time.Duration, bounded bool) {
	d, bounded = a.MaxWait, a.MaxWait >= 0
	if deadline, ok := ctx.Deadline(); ok {
		if left := max(time.Until(deadline), 0); !bounded || left < d {
			d, bounded = left, true
		}
	}
	return d, bounded
}

func answer(r ratelimit.Result) Answer { return Answer{Result: r, Limits: r.Limits()} }

// late makes a refusal of a turn that is too far ahead.
func late(r ratelimit.Result, longest time.Duration) Answer {
	limits := append([]ratelimit.LimitResult(nil), r.Limits()...)
	r.OK, r.RetryAfter, r.Wait = false, r.Wait-longest, 0
	tightest := time.Duration(0)
	for i := range limits {
		l := &limits[i]
		if l.Wait > longest {
			l.OK, l.RetryAfter = false, l.Wait-longest
			if l.RetryAfter > tightest {
				tightest = l.RetryAfter
				r.Name, r.Limit, r.Period, r.Remaining, r.NextAfter = l.Name, l.Limit, l.Period, l.Remaining, l.NextAfter
			}
		}
		l.Wait = 0
	}
	return Answer{Result: r, Limits: limits, Late: true}
}

// giveBack is done although the context has ended.
func giveBack(ctx context.Context, r *ratelimit.Reservation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.Cancel(ctx) // what cannot be given back was consumed
}

type resultKey struct{}

// WithResult gives the handler the decision that let its request pass.
func WithResult(ctx context.Context, r ratelimit.Result) context.Context {
	return context.WithValue(ctx, resultKey{}, r)
}

// ResultOf is what WithResult gave.
func ResultOf(ctx context.Context) (ratelimit.Result, bool) {
	r, ok := ctx.Value(resultKey{}).(ratelimit.Result)
	return r, ok
}

// Name is what callers are told that a limit is called.
func Name(limit string) string {
	if limit == "" {
		return "default"
	}
	return limit
}

// Violated are the limits that refused.
func (a Answer) Violated() []ratelimit.LimitResult {
	var out []ratelimit.LimitResult
	for _, l := range a.Limits {
		if !l.OK {
			out = append(out, l)
		}
	}
	return out
}

// Up is d in units, rounded up.
func Up(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}
