package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/bootclock"
)

// Overridable makes the Limiter apply the overrides in its store: other numbers for one
// key, for a while, set by SetOverride or by "baton limit set". An override changes how
// much is allowed, not how it is counted. New refuses a store that keeps no overrides
// with an error that wraps errors.ErrUnsupported.
//
// An override replaces the limit's N per Period. An N of 0 blocks the key: nothing is
// allowed until the override ends, even while the store fails, and RetryAfter is Never.
// Unless the override has a burst, the burst of a TokenBucket and the Ahead of a
// LeakyBucket change in proportion. A LeakyBucket keeps its longest wait; a SlidingWindow
// has the default sub-windows of another Period. A limit ignores an override that it
// cannot keep, and the Logger gets a warning: too high a number, a burst for another
// algorithm than TokenBucket, a Period for a limit per day, week, month or year.
//
// Decisions make no further request. The Limiter looks all overrides up before its first
// decision, and then at most once a second, in the background, while decisions are made
// or calls of Wait wait. So an override takes effect up to a second late, or, with fewer
// than one decision a second, one decision late; with InBatches up to a hold later. The
// first decision waits for the first look, at most 5 s, and at most as long as its
// context or FailOpen, FailClosed or FailLocal allow. If a look fails, known overrides
// apply until their end, the next look comes 5 to 10 s later, and the Logger gets one
// warning.
//
// Limiters without this option apply no override, even to the same keys.
func Overridable() Option { return overridable{} }

type overridable struct{}

func (overridable) option(c *config) { c.overridable = true }

// An Override replaces the numbers of one limit for one key.
type Override struct {
	Name   string        // of the limit; "" if it has none
	N      int64         // how many are allowed; 0: none
	Period time.Duration // 0: the limit's
	Burst  int64         // of a TokenBucket; 0: in proportion to the rate
}

// SetOverride overrides a limit for a key, for keep from now by the store's clock, in
// place of an earlier override. With a keep of 0 it removes the override. It applies to
// every Overridable Limiter with the same key in the store. This one applies it from its
// next decision on, except to the present batch, if it can look the overrides up now.
//
// A limit that counts ForAll has one key for all callers, "*/" and its name.
//
// It refuses with a *LimitError, and changes nothing, if the Limiter is not Overridable
// or has no such limit, if the limit counts ForAll and key is not its key, or if the
// limit cannot keep the numbers. With 1000 overrides in the store it fails with a
// *limits.OverridesFullError.
func (l *Limiter) SetOverride(ctx context.Context, key string, o Override, keep time.Duration) error {
	if err := check.Key(key); err != nil {
		return err
	}
	if l.over == nil {
		return &LimitError{Key: key, Reason: "it cannot be overridden: the Limiter was made without Overridable"}
	}
	all := l.plan.Load().limits
	i := slices.IndexFunc(all, func(limit Limit) bool { return limit.name == o.Name })
	if i < 0 {
		return &LimitError{Key: key, Reason: fmt.Sprintf("no limit is named %q", o.Name)}
	}
	to := limits.Override{Key: all[i].key(key), N: o.N, Period: o.Period, Burst: o.Burst}
	if all[i].all && key != to.Key {
		return &LimitError{Key: key, Reason: fmt.Sprintf("the limit counts all keys together, and is overridden for all: as the key %q", to.Key)}
	}
	if err := limits.CheckOverride(to, keep); err != nil {
		if e, ok := errors.AsType[*LimitError](err); ok {
			err = &LimitError{Key: key, Reason: e.Reason} // the caller does not know the key in the store
		}
		return err
	}
	if keep > 0 {
		if _, err := all[i].under(to); err != nil {
			return &LimitError{Key: key, Reason: reasonOf(err)}
		}
	}
	if err := l.over.store.SetOverride(ctx, to, keep); err != nil {
		return wrap("override", key, err)
	}
	l.over.lookAgain(ctx)
	return nil
}

const (
	lookEvery  = time.Second      // the period of looks
	lookPause  = 10 * time.Second // the longest pause after a failed look
	lookWithin = 5 * time.Second  // for the store's answer
)

// overrides are the known overrides of the store. A nil pointer knows none and never
// looks.
type overrides struct {
	store    limits.Overrider
	watch    *watch
	patience time.Duration // how long decisions wait for the first look; 0: until their context ends
	changed  func()        // called after overrides have begun, changed or ended

	born  time.Time
	due   atomic.Int64 // of the next look: a time.Duration from born
	known atomic.Pointer[map[string]override]

	mu      sync.Mutex
	looking chan struct{} // closed when the present look ends; nil: there is none
	sent    time.Time     // when it began
	failed  bool          // whether the last look failed
	waited  bool          // a timer makes the next look for waiters
}

// override is one in force.
type override struct {
	limits.Override
	until time.Time // on bootclock; not after its end in the store
	use   *usage
}

// usage is how an override applies. It lasts as long as the override is unchanged.
type usage struct {
	last atomic.Pointer[applied]
	told atomic.Bool // that a limit cannot keep the override
}

// applied is a limit with an override; err is why it is unchanged.
type applied struct {
	from, to Limit
	err      error
}

func newOverrides(store limits.Store, c config, w *watch, changed func()) (*overrides, error) {
	if !c.overridable {
		return nil, nil
	}
	o, ok := limits.OverriderOf(store)
	if !ok {
		return nil, fmt.Errorf("ratelimit: Overridable: the store keeps no overrides of limits: %w", errors.ErrUnsupported)
	}
	return &overrides{store: o, watch: w, patience: c.failure.after, changed: changed, born: time.Now()}, nil
}

// look begins a look if one is due, and waits for the first one.
func (o *overrides) look(ctx context.Context) {
	if o == nil || time.Since(o.born) < time.Duration(o.due.Load()) || ctx.Err() != nil {
		return
	}
	o.mu.Lock()
	if o.looking == nil && time.Since(o.born) >= time.Duration(o.due.Load()) {
		o.beginLocked(ctx)
	}
	looking, sent := o.looking, o.sent
	o.mu.Unlock()
	if looking == nil || o.known.Load() != nil {
		return
	}
	var over <-chan time.Time
	if o.patience > 0 {
		timer := time.NewTimer(max(o.patience-time.Since(sent), 0))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-looking:
	case <-over:
	case <-ctx.Done():
	}
}

// lookAgain waits for a look that begins now.
func (o *overrides) lookAgain(ctx context.Context) {
	for begun := false; !begun && ctx.Err() == nil; {
		o.mu.Lock()
		if begun = o.looking == nil; begun {
			o.beginLocked(ctx)
		}
		looking := o.looking
		o.mu.Unlock()
		select {
		case <-looking:
		case <-ctx.Done():
		}
	}
}

// beginLocked begins a look, which continues when ctx ends.
func (o *overrides) beginLocked(ctx context.Context) {
	looking := make(chan struct{})
	o.looking, o.sent = looking, time.Now()
	ctx = context.WithoutCancel(ctx)
	go func() {
		short, cancel := context.WithTimeout(ctx, lookWithin)
		defer cancel()
		sent := bootclock.Now()
		all, err := o.store.Overrides(short)
		changed, tell := o.learn(all, err, sent)
		close(looking)
		if tell {
			o.watch.unheeded(ctx, "", err)
		}
		if changed {
			o.changed()
		}
	}()
}

// learn ends a look. It reports whether the overrides have changed, and whether to report
// a failure.
func (o *overrides) learn(all []limits.Override, err error, sent time.Time) (changed, tell bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var before map[string]override
	if p := o.known.Load(); p != nil {
		before = *p
	}
	next := make(map[string]override, len(all))
	pause := lookEvery
	if err != nil {
		pause = lookPause/2 + rand.N(lookPause/2)
		now := bootclock.Now()
		for key, old := range before {
			if now.Before(old.until) {
				next[key] = old
			}
		}
	}
	for _, x := range all {
		one := override{Override: x, until: sent.Add(x.Left)}
		one.Left = 0
		if old, stands := before[x.Key]; stands && old.Override == one.Override {
			one.use = old.use
		} else {
			one.use, changed = new(usage), true
		}
		next[x.Key] = one
	}
	changed = changed || len(next) != len(before)
	o.known.Store(&next)
	tell, o.failed = err != nil && !o.failed, err != nil
	o.due.Store(int64(time.Since(o.born) + pause))
	o.looking = nil
	return changed, tell
}

// keepLooking continues looks while waiting returns true: waiting calls may make no
// decision for long.
func (o *overrides) keepLooking(waiting func() bool) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waited {
		return
	}
	o.waited = true
	due := time.Duration(o.due.Load()) - time.Since(o.born)
	time.AfterFunc(max(due, lookEvery/10), func() { // not at once, if the last look takes long
		o.mu.Lock()
		o.waited = false // before the call of waiting: a call that begins to wait later sets its own timer
		o.mu.Unlock()
		if waiting() {
			o.look(context.Background())
			o.keepLooking(waiting)
		}
	})
}

// of is the limit with the override for a key of the store.
func (o *overrides) of(limit Limit, key string) Limit {
	to, use, err := o.apply(limit, key)
	if err != nil && !use.told.Swap(true) {
		o.watch.unheeded(context.Background(), key, err)
	}
	return to
}

// apply is of without reporting an override that the limit cannot keep.
func (o *overrides) apply(limit Limit, key string) (to Limit, use *usage, err error) {
	if o == nil {
		return limit, nil, nil
	}
	known := o.known.Load()
	if known == nil || len(*known) == 0 {
		return limit, nil, nil
	}
	one, stands := (*known)[key]
	if !stands || !bootclock.Now().Before(one.until) {
		return limit, nil, nil
	}
	last := one.use.last.Load()
	if last == nil || last.from != limit {
		last = &applied{from: limit}
		if last.to, last.err = limit.under(one.Override); last.err != nil {
			last.to = limit
		}
		one.use.last.Store(last)
	}
	return last.to, one.use, last.err
}

func (l *Limiter) limitsOf(key string) []Limit {
	all := l.plan.Load().limits
	if l.over == nil {
		return all
	}
	var own []Limit
	for i, limit := range all {
		if to := l.over.of(limit, limit.key(key)); to != limit {
			if own == nil {
				own = slices.Clone(all)
			}
			own[i] = to
		}
	}
	if own == nil {
		return all
	}
	return own
}

// asked reports whether before are the limits in force for a caller's key. It makes no
// report, so a mutex may be locked.
func (l *Limiter) asked(key string, before []Limit) bool {
	all := l.plan.Load().limits
	if len(all) != len(before) {
		return false
	}
	for i, limit := range all {
		if to, _, _ := l.over.apply(limit, limit.key(key)); to != before[i] {
			return false
		}
	}
	return true
}

// under is the limit with the numbers of an override. It fails if the limit cannot keep
// them.
func (l Limit) under(o limits.Override) (Limit, error) {
	refuse := func(format string, args ...any) (Limit, error) {
		return l, &limits.Error{Reason: fmt.Sprintf(format, args...)}
	}
	if err := l.check(time.Now()); err != nil {
		return l, err // other numbers would not correct it
	}
	before := l.rule
	to := l
	to.overridden = true
	if o.N == 0 {
		to.blocked = true
		return to, nil
	}
	r := &to.rule
	switch {
	case o.Burst != 0 && r.Algorithm != limits.TokenBucket:
		return refuse("an override with a burst is for a %v, and this is a %v", limits.TokenBucket, r.Algorithm)
	case o.Period != 0 && l.calendar.unit != 0:
		return refuse("an override with a period of %v: the limit counts by the %v, and can be overridden by another number alone", o.Period, l.calendar)
	}
	if r.N = o.N; o.Period != 0 {
		r.Period = o.Period
	}
	scaled := func(n int64) int64 {
		if n == 0 {
			return 0
		}
		up := new(big.Int).Mul(big.NewInt(n), big.NewInt(r.N))
		up.Mul(up, big.NewInt(before.Period.Microseconds()))
		up.Div(up, new(big.Int).Mul(big.NewInt(before.N), big.NewInt(max(r.Period.Microseconds(), 1))))
		if !up.IsInt64() {
			return -1 // no limit keeps it
		}
		return max(up.Int64(), 1)
	}
	switch r.Algorithm {
	case limits.FixedWindow:
		if r.Period > 0 {
			r.Offset %= r.Period
		}
	case limits.SlidingWindow:
		if r.Period != before.Period {
			r.Parts = usualParts(r.Period)
		}
	case limits.TokenBucket:
		if r.Burst = o.Burst; o.Burst == 0 {
			r.Burst = scaled(before.Burst)
		}
	case limits.LeakyBucket:
		size, ok := share(l.longest.Microseconds(), r.N, r.Period.Microseconds())
		if !ok {
			return refuse("an override of %d per %v: waits of %v cannot be counted", r.N, r.Period, l.longest)
		}
		r.Burst = max(size, 1)
		r.Ahead = min(scaled(before.Ahead), r.Burst)
	}
	return to, to.check(time.Now())
}

// reasonOf is the error of a limit without the limit's name.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*LimitError](err); ok {
		return e.Reason
	}
	return err.Error()
}
