// Package front is shared by the packages that put limits in front of a server: the
// caller's key, and the form of the decision.
package front

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/batonhq/baton/ratelimit"
)

// Ask asks a limiter, and waits for the turn of a LeakyBucket.
type Ask struct {
	Limiter *ratelimit.Limiter
	MaxWait time.Duration // a later turn is refused; below 0 there is no bound
}

// An Answer is a decision.
type Answer struct {
	ratelimit.Result
	Limits []ratelimit.LimitResult // without shadows, which callers do not see

	// Late says that a limit refused although it had room, because the turn would have
	// been too late: Result.Remaining does not show that.
	Late bool
}

// Do asks for n. If the context ends before its turn, the next waiter gets the turn.
func (a Ask) Do(ctx context.Context, key string, n int64) (Answer, error) {
	if !a.Limiter.Queues() {
		r, err := a.Limiter.AllowN(ctx, key, n)
		return Answer{Result: r, Limits: inForce(r)}, err
	}
	r, err := a.Limiter.WaitWithin(ctx, key, n, a.MaxWait)
	var refused *ratelimit.RefusedError
	if err != nil && !errors.As(err, &refused) {
		return Answer{}, err
	}
	return answer(r, n), nil
}

// Decided makes an Answer of a decision from elsewhere, and waits for its turn. If the
// context ends before, the turn is lost.
func Decided(ctx context.Context, r ratelimit.Result) (Answer, error) {
	if r.OK && r.Wait > 0 {
		turn := time.NewTimer(r.Wait)
		defer turn.Stop()
		select {
		case <-turn.C:
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		}
		r.Wait = 0
	}
	return answer(r, r.Cost), nil
}

func answer(r ratelimit.Result, n int64) Answer {
	out := Answer{Result: r, Limits: inForce(r)}
	for _, l := range out.Limits {
		out.Late = out.Late || !l.OK && l.RetryAfter != ratelimit.Never && l.Remaining >= n
	}
	return out
}

// inForce are the limits without shadows.
func inForce(r ratelimit.Result) []ratelimit.LimitResult {
	all := r.Limits()
	untold := func(l ratelimit.LimitResult) bool {
		return l.Shadow || l.OK && (l.Limit == math.MaxInt64 || l.Limit == 0)
	}
	if !slices.ContainsFunc(all, untold) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), untold) // all belongs to the Result
}

type resultKey struct{}

// WithResult adds the decision to the handler's context.
func WithResult(ctx context.Context, r ratelimit.Result) context.Context {
	return context.WithValue(ctx, resultKey{}, r)
}

// ResultOf returns the decision that WithResult added.
func ResultOf(ctx context.Context) (ratelimit.Result, bool) {
	r, ok := ctx.Value(resultKey{}).(ratelimit.Result)
	return r, ok
}

// Name is the name of a limit for callers.
func Name(limit string) string {
	if limit == "" {
		return "default"
	}
	return limit
}

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
