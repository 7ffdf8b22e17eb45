package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/local"
)

// A Limiter decides about keys under its limits. All methods are safe for concurrent use.
// It needs no Close; the caller closes the store.
//
// Keys are legal as for locks: 1 to 512 bytes of UTF-8 without control characters,
// including the name of the limit. Limiters that share a store share the keys. The key in
// the store of an unnamed limit is the caller's key. That of a named one is the name, a
// slash, and the caller's key in braces, or, if that contains braces, the name, two
// slashes and the caller's key. For ForAll it is a star, a slash and the name; a caller's
// key that begins with a star and a slash gets one more slash there.
type Limiter struct {
	store  limits.Store
	plan   atomic.Pointer[plan]
	fall   fallback
	queues queues
	watch  *watch // nil: no reports

	batching *batching // nil: every call asks the store
	batches  batches

	over *overrides // nil: none apply
}

// plan is what SetLimits changes.
type plan struct {
	limits []Limit

	// quick is a faster way to ask the only limit, nil if there is none.
	quick    local.Prepared
	capacity int64
	period   time.Duration
	calls    bool
	warnAt   int64
}

// An Option of New is one more Limit, or FailOpen, FailClosed, FailLocal, InBatches,
// Overridable, Observe or Logger.
type Option interface{ option(*config) }

type config struct {
	limits   []Limit
	failure  failure
	batching *batching
	events   []*Events
	log      *slog.Logger
	err      error

	overridable bool
}

func (l Limit) option(c *config) { c.limits = append(c.limits, l) }

// New makes a Limiter of limit and the Limits among the options. It refuses limits that
// cannot be kept exactly with a *LimitError. It sends no request to the store.
func New(store limits.Store, limit Limit, more ...Option) (*Limiter, error) {
	c := config{limits: []Limit{limit}}
	for _, o := range more {
		o.option(&c)
	}
	if c.err != nil {
		return nil, c.err
	}
	if store == nil {
		return nil, &LimitError{Reason: "the store is nil: look at the error of the function that opened it"}
	}
	l := &Limiter{store: store, batching: c.batching, watch: newWatch(store, c)}
	l.fall.failure, l.fall.watch = c.failure, l.watch
	var err error
	if l.over, err = newOverrides(store, c, l.watch, l.heedOverrides); err != nil {
		return nil, err
	}
	if err := l.SetLimits(c.limits...); err != nil {
		return nil, err
	}
	return l, nil
}

// SetLimits changes the limits. What was taken stays taken: a raised limit gives the
// difference; a limit lowered below what was taken gives nothing until enough has come
// back. A new limit continues the old one with the same name. It changes this Limiter
// only: the store has no limits.
func (l *Limiter) SetLimits(all ...Limit) error {
	if n := len(all); n < 1 || n > limits.MaxTakes {
		return &LimitError{Reason: fmt.Sprintf("%d limits: a Limiter has 1 to %d", n, limits.MaxTakes)}
	}
	now := time.Now()
	names := make(map[string]bool, len(all))
	for _, limit := range all {
		if err := limit.check(now); err != nil {
			return err
		}
		switch {
		case limit.name == "" && len(all) > 1:
			return &LimitError{Reason: fmt.Sprintf("%v has no name: each of several limits needs one (Named)", limit)}
		case limit.name == "" && limit.all:
			return &LimitError{Reason: fmt.Sprintf("%v counts all keys together and needs a name to count them under (Named)", limit)}
		case names[limit.name]:
			return &LimitError{Reason: fmt.Sprintf("two limits are named %q", limit.name)}
		}
		names[limit.name] = true
	}
	if l.batching != nil {
		if err := l.batching.check(all); err != nil {
			return err
		}
	}
	p := &plan{limits: append([]Limit(nil), all...)}
	if store, ok := l.store.(local.Limits); ok && l.over == nil && len(all) == 1 && all[0].name == "" && all[0].calendar.unit == 0 && !all[0].shadow {
		rule := all[0].rule
		p.quick, p.capacity, p.period = store.Prepare(rule), rule.Capacity(), period(rule, 0)
		p.calls, p.warnAt = all[0].calls, all[0].warnAt(p.capacity)
	}
	l.plan.Store(p)
	l.askAgain()
	return nil
}

// askAgain makes all waiters ask the store again, after a change of the limits.
func (l *Limiter) askAgain() { l.askAgainIf(func(*queue) bool { return true }) }

// heedOverrides makes waiters whose limits have changed ask the store again.
func (l *Limiter) heedOverrides() {
	l.askAgainIf(func(q *queue) bool {
		before := make([]Limit, len(q.standing))
		for i, s := range q.standing {
			before[i] = s.limit
		}
		return len(before) > 0 && !l.asked(q.told.Key, before) // else a request is under way, or the store fails
	})
}

func (l *Limiter) askAgainIf(others func(*queue) bool) {
	l.queues.mu.Lock()
	defer l.queues.mu.Unlock()
	for _, q := range l.queues.all {
		if others(q) {
			q.standing, q.pause = nil, time.Time{}
			q.advance()
		}
	}
}

// Limits are the limits without overrides. The Result of a Peek has the numbers in force.
func (l *Limiter) Limits() []Limit { return append([]Limit(nil), l.plan.Load().limits...) }

// Allow asks for one: Result.OK says whether the caller may act now. A refusal is no
// error and has consumed nothing. After an error that is ErrUnknown the request may have
// been counted. With FailOpen, FailClosed or FailLocal the failure of a store is no
// error.
//
// Under a LeakyBucket an allowed caller must wait for Result.Wait before it acts;
// Limiter.Wait does so.
func (l *Limiter) Allow(ctx context.Context, key string) (Result, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN asks for n at once, all or nothing.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (r Result, err error) {
	if n < 1 {
		return Result{}, &LimitError{Key: key, Reason: fmt.Sprintf("a cost of %d: it must be positive (Peek asks without taking)", n)}
	}
	if l.watch != nil {
		began := l.watch.begin(ctx)
		defer func() { l.watch.decided(ctx, began, "allow", key, n, r, err) }()
	}
	if l.batching != nil {
		return l.allowBatched(ctx, key, n)
	}
	p := l.plan.Load()
	if p.quick == nil {
		return l.ask(ctx, key, n)
	}
	if err := ctx.Err(); err != nil {
		return r, wrap("ask about", key, err)
	}
	cost := n
	if p.calls {
		cost = 1
	}
	d, at, err := p.quick.Take(unnamed(key), cost)
	if err != nil {
		return r, wrap("ask about", key, err)
	}
	r.OK, r.Key, r.Cost, r.At = d.Retry == 0, key, n, time.UnixMicro(at)
	r.RetryAfter, r.NextAfter, r.ResetAfter, r.Remaining = d.Retry, d.Next, d.Reset, d.Remaining
	r.Limit, r.Period = p.capacity, p.period
	r.Near = p.warnAt > 0 && p.capacity-d.Remaining >= p.warnAt
	return r, nil
}

// Allowed is Allow for callers that need only a yes or a no: with memstore, a full Result
// is a good part of a decision's cost. If a yes could mean to wait for a turn, it fails
// with a *LimitError: see Queues.
func (l *Limiter) Allowed(ctx context.Context, key string) (bool, error) {
	p := l.plan.Load()
	if p.quick == nil || l.batching != nil || l.watch != nil {
		if l.Queues() {
			return false, &LimitError{Key: key, Reason: "Allowed cannot tell when the turn in a leaky bucket comes: Allow and Wait do"}
		}
		r, err := l.AllowN(ctx, key, 1)
		return r.OK, err
	}
	if err := ctx.Err(); err != nil {
		return false, wrap("ask about", key, err)
	}
	d, _, err := p.quick.Take(unnamed(key), 1)
	if err != nil {
		return false, wrap("ask about", key, err)
	}
	return d.Retry == 0, nil
}

// Peek returns the state of a key. It takes nothing and adds no key.
func (l *Limiter) Peek(ctx context.Context, key string) (Result, error) {
	return l.ask(ctx, key, 0)
}

// Forget resets a key. It does not change limits that count ForAll.
func (l *Limiter) Forget(ctx context.Context, key string) error {
	all, r, err := l.request(key, 0)
	if err != nil {
		return err
	}
	r.Mode = limits.Forget
	r.Takes = r.Takes[:0]
	for i, t := range r.Takes[:len(all)] {
		if !all[i].all {
			r.Takes = append(r.Takes, t)
		}
	}
	if len(r.Takes) == 0 {
		return nil
	}
	_, err = l.store.Take(ctx, r)
	return wrap("forget", key, err)
}

// key is the key of the limit in the store. The limits of one decision must share a slot
// of a Redis Cluster, so their keys have tags. So has the key of a single limit:
// SetLimits may add others.
func (l Limit) key(key string) string {
	switch {
	case l.all:
		return forAll + l.name
	case l.name == "":
		return unnamed(key)
	case strings.ContainsAny(key, "{}"):
		return l.name + "//" + key // differs from the name for the key within the braces
	}
	return l.name + "/{" + key + "}"
}

// forAll begins the keys of limits that count ForAll. Names contain no star and no slash.
const forAll = "*/"

// unnamed is the key of a limit without a name: the caller's, unless that collides with
// ForAll.
func unnamed(key string) string {
	if rest, ok := strings.CutPrefix(key, forAll); ok {
		return forAll + "/" + rest
	}
	return key
}

// request makes the request to all limits for n of a key.
func (l *Limiter) request(key string, n int64) (all []Limit, r limits.Request, err error) {
	if err := check.Key(key); err != nil {
		return nil, r, err
	}
	all = l.limitsOf(key)
	r.Takes = make([]limits.Take, len(all))
	var now time.Time
	for i, limit := range all {
		if limit.calendar.unit != 0 && now.IsZero() {
			now = time.Now()
		}
		r.Takes[i] = limits.Take{Key: limit.key(key), Limit: limit.at(now), Cost: limit.asks(n)}
	}
	return all, r, nil
}

func (l *Limiter) ask(ctx context.Context, key string, n int64) (Result, error) {
	l.over.look(ctx)
	all, r, err := l.request(key, n)
	if err != nil {
		return Result{}, err
	}
	t, by, _, err := l.decide(ctx, all, r)
	if err != nil {
		return Result{}, wrap("ask about", key, err)
	}
	return result(all, r, t, by, key, n), nil
}

func result(all []Limit, r limits.Request, t limits.Taken, by Source, key string, n int64) Result {
	out := Result{
		OK: t.OK, Key: key, Cost: n, By: by, At: time.UnixMicro(t.At),
		Wait: t.Wait, RetryAfter: t.Retry,
		limits: make([]LimitResult, len(all)),
	}
	if slices.ContainsFunc(all, isShadow) { // t has their waits, too
		out.Wait, out.RetryAfter = 0, 0
		for i, x := range t.Limits {
			if all[i].shadow {
				out.WouldRefuse = out.WouldRefuse || !x.OK
				continue
			}
			if out.RetryAfter = max(out.RetryAfter, x.Retry); t.OK {
				out.Wait = max(out.Wait, x.Wait)
			}
		}
	}
	for i, x := range t.Limits {
		rule := r.Takes[i].Limit
		capacity := rule.Capacity()
		if all[i].blocked { // also while the store fails
			capacity, x.Remaining, x.Next = 0, 0, 0
			if r.Takes[i].Cost > 0 && all[i].shadow {
				x.OK, x.Retry, out.WouldRefuse = false, Never, true
			} else if r.Takes[i].Cost > 0 {
				x.OK, x.Retry, out.OK, out.RetryAfter, out.Wait = false, Never, false, Never, 0
			}
		}
		out.limits[i] = LimitResult{
			Name: all[i].name, OK: x.OK, Shadow: all[i].shadow, Overridden: all[i].overridden, Near: !by.Fallback() && all[i].near(capacity, x.Remaining),
			Limit: capacity, Remaining: x.Remaining, Period: period(rule, t.At),
			Wait: x.Wait, RetryAfter: x.Retry, NextAfter: x.Next, ResetAfter: x.Reset,
		}
		if !all[i].shadow {
			out.ResetAfter = max(out.ResetAfter, x.Reset)
		}
	}
	out.tell()
	return out
}

// tell fills in the state of the tightest limit that is no shadow, and Near.
func (r *Result) tell() {
	r.Near = false
	var one *LimitResult
	for i := range r.limits {
		x := &r.limits[i]
		if x.Shadow {
			continue
		}
		if r.Near = r.Near || x.Near; one == nil || tighter(x, one) {
			one = x
		}
	}
	if one == nil {
		return
	}
	r.Name, r.Limit, r.Period, r.Remaining, r.NextAfter = one.Name, one.Limit, one.Period, one.Remaining, one.NextAfter
}

// tighter reports whether a refuses for longer than b, or else is nearer to a refusal.
func tighter(a, b *LimitResult) bool {
	switch {
	case a.OK != b.OK:
		return !a.OK
	case !a.OK && a.RetryAfter != b.RetryAfter:
		return a.RetryAfter > b.RetryAfter
	}
	return a.Remaining < b.Remaining
}

// period is the length of the window, or the time to fill a bucket.
func period(l limits.Limit, at int64) time.Duration {
	switch {
	case l.Windows[0] != 0:
		for i := 1; i < len(l.Windows); i++ {
			if at < l.Windows[i] {
				return time.Duration(l.Windows[i]-l.Windows[i-1]) * time.Microsecond
			}
		}
	case l.Burst > 0:
		if us, ok := share(l.Burst, l.Period.Microseconds(), l.N); ok {
			return time.Duration(us) * time.Microsecond
		}
	}
	return l.Period
}

// share is a·b/c, rounded down; ok is false if that is out of range.
func share(a, b, c int64) (int64, bool) {
	if a < 0 || b < 0 || c <= 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return 0, false
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q), q < 1<<62/1000
}

func wrap(what, key string, err error) error {
	if err == nil || badInput(err) {
		return err
	}
	return fmt.Errorf("ratelimit: %s %q: %w", what, key, err)
}

// badInput reports whether the error refuses a key, a limit or a cost.
func badInput(err error) bool {
	var k *KeyError
	var l *LimitError
	return errors.As(err, &k) || errors.As(err, &l)
}
