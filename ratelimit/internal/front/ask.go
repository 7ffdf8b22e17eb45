// Package front is shared by the packages that put limits in front of a server: who
// the caller is, what its key is, and how it is told the decision.
package front

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/batonhq/baton/ratelimit"
)

// Ask asks a limiter, and waits for the turn that a LeakyBucket gives.
type Ask struct {
	Limiter *ratelimit.Limiter
	MaxWait time.Duration // a turn further ahead is refused; below 0 there is no bound
}

// An Answer is a decision.
type Answer struct {
	ratelimit.Result
	Limits []ratelimit.LimitResult // without shadows, of which callers are told nothing

	// Late says that a limit had room, but refused because the turn would have been
	// too far ahead: Result.Remaining does not show why it refused.
	Late bool
}

// Do asks for n. If the context ends while it waits for its turn, the next waiter
// gets the turn.
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

// Decided makes an Answer of a decision that something else has made, and waits for the
// turn that it gives. If the context ends before, nobody gets the turn.
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

// inForce are the limits that are no shadows. A decision by no limit has none.
func inForce(r ratelimit.Result) []ratelimit.LimitResult {
	all := r.Limits()
	untold := func(l ratelimit.LimitResult) bool {
		return l.Shadow || l.OK && (l.Limit == math.MaxInt64 || l.Limit == 0)
	}
	if !slices.ContainsFunc(all, untold) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), untold) // all is the Result's
}

type resultKey struct{}

// WithResult adds the decision that let a request pass to the handler's context.
func WithResult(ctx context.Context, r ratelimit.Result) context.Context {
	return context.WithValue(ctx, resultKey{}, r)
}

// ResultOf is what WithResult gave.
func ResultOf(ctx context.Context) (ratelimit.Result, bool) {
	r, ok := ctx.Value(resultKey{}).(ratelimit.Result)
	return r, ok
}

// Name is the name of a limit as callers see it.
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
