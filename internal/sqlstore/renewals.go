package sqlstore

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
)

// Renewals sends renewals in few requests at a time. Renewals that come meanwhile wait, and
// share the next request: a store that has become slow is then asked more rarely, and no
// lease queues behind other requests.
type Renewals struct {
	batch *batch.Batcher[*renewing]
}

// renewing is one call.
type renewing struct {
	batch.Item
	claims  []driver.Claim
	ttl     time.Duration
	answers []driver.Renewal
}

// NewRenewals returns Renewals that make at most that many requests at a time. A claim may
// occur twice in a request. The context of one ends when all callers that wait for the
// answer have given up.
func NewRenewals(most int, send func(context.Context, []driver.Claim, time.Duration) []driver.Renewal) *Renewals {
	call := func(ctx context.Context, calls []*renewing) {
		claims := slices.Clip(calls[0].claims)
		for _, c := range calls[1:] {
			claims = append(claims, c.claims...)
		}
		answers := send(ctx, claims, calls[0].ttl)
		for _, c := range calls {
			n := len(c.claims)
			c.answers, answers = answers[:n:n], answers[n:]
		}
	}
	return &Renewals{batch.New(batch.Config[*renewing]{
		Direct: true, Send: call, // in the caller's context
		Begin: func(context.Context) (func(context.Context, []*renewing), error) {
			return func(ctx context.Context, calls []*renewing) {
				if len(calls) > 0 {
					call(ctx, calls)
				}
			}, nil
		},
		Max: math.MaxInt32, InFlight: most,
		Grace: 1, // a caller leaves at once, and send has a grace of its own
		Kind:  func(r *renewing) any { return r.ttl },
	})}
}

// Do renews claims and returns at once when ctx ends, unless it sends itself.
func (r *Renewals) Do(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	c := &renewing{Item: batch.NewItem(), claims: claims, ttl: ttl}
	if err := r.batch.Do(ctx, c); err != nil {
		answers := make([]driver.Renewal, len(claims))
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	return c.answers
}
