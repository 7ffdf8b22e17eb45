package sqlstore

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/batch"
)

// Renewals sends renewals in few concurrent requests. Renewals that come meanwhile share
// the next request: a slow store gets fewer requests, and leases do not queue behind
// other requests.
type Renewals struct {
	batch *batch.Batcher[*renewing]
}

type renewing struct {
	batch.Item
	claims  []driver.Claim
	ttl     time.Duration
	answers []driver.Renewal
}

// NewRenewals returns Renewals with at most most concurrent requests. A claim may occur
// twice in a request. The context of a request ends when all its callers have given up.
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
		Grace: 1, // a caller leaves at once; send has a grace of its own
		Kind:  func(r *renewing) any { return r.ttl },
	})}
}

// Do renews claims. It returns at once when ctx ends, unless this goroutine sends the
// request.
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
