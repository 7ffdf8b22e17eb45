package verify

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/history"
	"github.com/batonhq/baton/ratelimit"
)

// limitRules are the limits of the keys "limit/0" and so on, with the rules for their
// decisions. Callers wait for the last two.
var limitRules = []struct {
	limit ratelimit.Limit
	holds check.Limit
	looks []ratelimit.Limit // other limits that read the same key and refuse
}{
	{limit: ratelimit.SlidingWindow(20, time.Second), holds: check.Limit{Most: 20, Window: time.Second, Late: 100 * time.Millisecond}},
	{limit: ratelimit.TokenBucket(10, time.Second, 15), holds: check.Limit{
		Most: 25, Window: time.Second, Bucket: &check.Bucket{Tokens: 10, Period: time.Second, Burst: 15},
	}},
	{
		limit: ratelimit.SlidingWindow(20, time.Second), holds: check.Limit{Most: 20, Window: time.Second, Late: 100 * time.Millisecond},
		looks: []ratelimit.Limit{ratelimit.SlidingWindow(4, time.Second), ratelimit.TokenBucket(4, time.Second, 4)},
	},
	{
		limit: ratelimit.TokenBucket(10, time.Second, 15), holds: check.Limit{
			Most: 25, Window: time.Second, Bucket: &check.Bucket{Tokens: 10, Period: time.Second, Burst: 15},
		},
		looks: []ratelimit.Limit{ratelimit.TokenBucket(10, time.Second, 3), ratelimit.SlidingWindow(4, time.Second)},
	},
	{limit: ratelimit.LeakyBucket(10, time.Second, time.Second), holds: check.Limit{Most: 11, Window: time.Second, Every: 100 * time.Millisecond}},
	{limit: ratelimit.TokenBucket(10, time.Second, 3), holds: check.Limit{Most: 13, Window: time.Second, Every: 100 * time.Millisecond, Saved: 2}},
}

const (
	plainLimits  = 2 // the first ones; workers ask for them between locks
	withDeadline = 4 // the limit with short deadlines
	hangingUp    = 5 // the limit whose waiters cancel
)

// Limits in batches have many keys. A client takes three at once of each.
const (
	batchKeys = 50
	batchSize = 3
	batchHold = 200 * time.Millisecond
)

var batchLimit = ratelimit.TokenBucket(10, time.Second, 10)

// limitOf is the rule for a limit's key in a run with that many processes.
func limitOf(prefix, key string, processes int) (check.Limit, bool) {
	for i, rule := range limitRules {
		if key == limitKey(prefix, i) {
			return rule.holds, true
		}
	}
	if strings.HasPrefix(key, batchKey(prefix, "")) {
		return check.Limit{Most: 20 + int64(processes)*batchSize, Window: time.Second}, true
	}
	return check.Limit{}, false
}

// openLimits makes a client's limiters.
func (c *client) openLimits(limits limits.Store) error {
	for _, rule := range limitRules {
		l, err := ratelimit.New(limits, rule.limit)
		if err != nil {
			return err
		}
		var looks []*ratelimit.Limiter
		for _, other := range rule.looks {
			o, err := ratelimit.New(limits, other)
			if err != nil {
				return err
			}
			looks = append(looks, o)
		}
		c.limiters, c.looks = append(c.limiters, l), append(c.looks, looks)
	}
	var err error
	c.batches, err = ratelimit.New(limits, batchLimit, ratelimit.InBatches(batchSize, batchHold, 2*MaxClients, 2*MaxClients*batchSize))
	return err
}

// asks begins a request to a limiter, unless the client drains.
func (c *client) asks(d history.Decision) (op history.Op, ok bool) {
	c.beginning.RLock()
	defer c.beginning.RUnlock()
	if c.drain {
		return op, false
	}
	return c.log.Asks(d), true
}

// ask asks one of the first limits between two locks.
func (w *worker) ask() bool {
	i := w.rng.IntN(plainLimits)
	return w.allow(w.limiters[i], limitKey(w.Prefix, i), 1+w.rng.Int64N(3))
}

func (w *worker) allow(l *ratelimit.Limiter, key string, n int64) bool {
	ctx, cancel := context.WithTimeout(w.waiting, w.TTL)
	defer cancel()
	op, ok := w.asks(history.Decision{Key: key, N: n})
	if !ok {
		return false
	}
	r, err := l.AllowN(ctx, key, n)
	w.decided(op, r, err)
	return true
}

func (w *worker) decided(op history.Op, r ratelimit.Result, err error) {
	result, at := history.Refused, int64(0)
	switch {
	case errors.Is(err, baton.ErrUnavailable) && !errors.Is(err, baton.ErrUnknown):
		result = history.Failed
	case errors.Is(err, ratelimit.ErrRefused):
		err = nil
	case err != nil:
		result = history.Unknown
	case r.OK:
		result = history.Granted
	}
	if err == nil {
		at = r.At.UnixMicro()
	}
	w.log.Decided(op, result, r.Remaining, at, err)
	if err != nil {
		w.pause(20 * time.Millisecond)
	}
}
