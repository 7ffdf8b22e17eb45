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

// Overridable makes the Limiter obey the overrides that its store keeps: other numbers
// for one key, for a while, set by SetOverride or by "baton limit set". An override
// changes how much is allowed, and not how it is counted. New refuses a store that keeps
// none with an error that wraps errors.ErrUnsupported.
//
// An override gives N per Period in place of those of the limit; one with an N of 0 blocks
// the key: nothing is allowed until it ends, also while the store fails, and RetryAfter is
// Never. The burst of a
// TokenBucket, and the part of a LeakyBucket that goes Ahead, change in the same ratio,
// unless the override names a burst. A LeakyBucket keeps its longest wait, a
// SlidingWindow has the sub-windows that are usual for another Period. What a limit cannot
// keep it ignores, and a Logger is told: a number that is too high for it, a burst for
// what is no TokenBucket, a Period for a limit per day, week, month or year.
//
// Decisions make no further request. The Limiter looks all overrides up once before its
// first decision, and then at most once a second, in the background, while decisions are
// made or calls of Wait wait. So an override takes effect up to a second late, or one
// decision late if there are fewer than one a second; InBatches, up to the hold of a batch
// later. The first decision waits for the first look as long as its context lasts, and no
// longer than FailOpen, FailClosed or FailLocal wait for an answer, nor than 5 s. If a look
// fails, what is known goes on to its end, and the next look comes 5 to 10 s later; a
// Logger is told once.
//
// A Limiter without this option, and one that shares the keys with this one, obeys no
// override.
func Overridable() Option { return overridable{} }

type overridable struct{}

func (overridable) option(c *config) { c.overridable = true }

// An Override is what stands in place of the numbers of one limit for one key.
type Override struct {
	Name   string        // of the limit, "" if it has none
	N      int64         // how many are allowed; 0 allows nothing
	Period time.Duration // in that time; with 0 in the period of the limit
	Burst  int64         // of a TokenBucket; with 0 it changes as the rate does
}

// SetOverride overrides a limit for a key, for keep from now by the store's clock, in
// place of any other override of it; with a keep of 0 the key has none afterwards. All
// Limiters that are Overridable and count under the same key of the store obey. This one
// does from its next decision on, if the look at the overrides that follows succeeds, and
// but for what lies in a batch.
//
// A limit that counts ForAll has one key for all callers, "*/" and its name.
//
// It refuses with a *LimitError, and changes nothing, if the Limiter is not Overridable or
// has no such limit, if the limit counts ForAll and the key is another, or if the limit cannot keep the numbers. With 1000 overrides in the
// store it fails with a *limits.OverridesFullError.
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
	lookEvery  = time.Second      // how often overrides are looked up
	lookPause  = 10 * time.Second // at most, after a look that failed
	lookWithin = 5 * time.Second  // how long the store has
)

// overrides is what a Limiter knows of the overrides in its store. A nil pointer knows
// none and never looks.
type overrides struct {
	store    limits.Overrider
	watch    *watch
	patience time.Duration // how long decisions wait for the first look; 0: as long as they can
	changed  func()        // called after overrides have begun, changed or ended

	born  time.Time
	due   atomic.Int64 // when the next look is due: a time.Duration from born
	known atomic.Pointer[map[string]override]

	mu      sync.Mutex
	looking chan struct{} // closed when the look under way ends; nil: there is none
	sent    time.Time     // when it began
	failed  bool          // the last look
	waited  bool          // a timer looks for those who wait
}

// override is one that stands.
type override struct {
	limits.Override
	until time.Time // on bootclock; not after the store's end of it
	use   *usage
}

// usage is what a Limiter found out about an override. It lives as long as the override
// stays as it is.
type usage struct {
	last atomic.Pointer[applied]
	told atomic.Bool // that a limit cannot keep it
}

// applied is what becomes of a limit; err says why it stays as it is.
type applied struct {
	from, to Limit
	err      error
}

// newOverrides is nil unless c asks for it.
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

// look begins a look if one is due, and waits for it if there was none before.
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

// beginLocked begins a look, which goes on when ctx ends.
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

// learn ends a look. It reports whether what is known has changed, and whether the
// failure of the look is news.
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

// keepLooking makes looks go on while waiting says that calls wait, who may make no
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
		o.waited = false // before the question: a call that begins to wait after it sets a timer of its own
		o.mu.Unlock()
		if waiting() {
			o.look(context.Background())
			o.keepLooking(waiting)
		}
	})
}

// of is the limit as it is for a key of the store.
func (o *overrides) of(limit Limit, key string) Limit {
	to, use, err := o.apply(limit, key)
	if err != nil && !use.told.Swap(true) {
		o.watch.unheeded(context.Background(), key, err)
	}
	return to
}

// apply is of without telling of an override that the limit cannot keep.
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

// limitsOf are the limits in force for a caller's key.
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

// asked reports whether these, in their order, are the limits in force for a caller's
// key. It tells nobody of anything, so that a mutex may be locked.
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
		return l, err // numbers in place of wrong ones would not make it right
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
			return -1 // which no limit keeps
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

// reasonOf is what an error of a limit says about the limit.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*LimitError](err); ok {
		return e.Reason
	}
	return err.Error()
}
