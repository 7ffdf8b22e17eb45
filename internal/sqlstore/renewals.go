package sqlstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
)

// Renewals sends renewals in few requests at a time. Renewals that come while Most
// requests are under way wait, and share the next request: a store that has become slow
// is then asked more rarely, and no lease queues behind other requests.
//
// It is not a batch.Batcher because the first requests run on their callers'
// goroutines: handing them to other goroutines takes a large part of the time of a
// renewal.
type Renewals struct {
	// Most is how many requests there may be at a time.
	Most int

	// Send makes a request, in which a claim may occur twice. The context ends when all
	// callers that wait for the answer have given up.
	Send func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal

	mu      sync.Mutex
	busy    int
	waiting []*renewing
}

// renewing is one call. claims and ttl are set before it waits, answers before done is
// closed, and with is guarded by Renewals.mu.
type renewing struct {
	claims  []driver.Claim
	ttl     time.Duration
	with    *together // once it was taken
	answers []driver.Renewal
	done    chan struct{}
}

// together is the calls that share a request.
type together struct {
	left   int // that still wait for it
	cancel context.CancelFunc
}

// Do renews claims and returns at once when ctx ends.
func (r *Renewals) Do(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	r.mu.Lock()
	if r.busy < r.Most {
		r.busy++
		r.mu.Unlock()
		defer r.next()
		return r.Send(ctx, claims, ttl)
	}
	c := &renewing{claims: claims, ttl: ttl, done: make(chan struct{})}
	r.waiting = append(r.waiting, c)
	r.mu.Unlock()
	select {
	case <-c.done:
		return c.answers
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	err := ctx.Err()
	if c.with == nil {
		r.waiting = slices.DeleteFunc(r.waiting, func(other *renewing) bool { return other == c })
	} else if c.with.left--; c.with.left == 0 {
		c.with.cancel()
	}
	answers := make([]driver.Renewal, len(claims))
	for i := range answers {
		answers[i].Err = err
	}
	return answers
}

// next sends the calls that wait with the TTL of the first in one request, or makes
// room.
func (r *Renewals) next() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		r.busy--
		return
	}
	ttl := r.waiting[0].ttl
	var calls []*renewing
	r.waiting = slices.DeleteFunc(r.waiting, func(c *renewing) bool {
		same := c.ttl == ttl
		if same {
			calls = append(calls, c)
		}
		return same
	})
	ctx, cancel := context.WithCancel(context.Background())
	with := &together{left: len(calls), cancel: cancel}
	for _, c := range calls {
		c.with = with
	}
	go func() {
		defer r.next()
		defer cancel()
		r.send(ctx, calls, ttl)
	}()
}

func (r *Renewals) send(ctx context.Context, calls []*renewing, ttl time.Duration) {
	var claims []driver.Claim
	for _, c := range calls {
		claims = append(claims, c.claims...)
	}
	answers := r.Send(ctx, claims, ttl)
	for _, c := range calls {
		n := len(c.claims)
		c.answers, answers = answers[:n:n], answers[n:]
		close(c.done)
	}
}
