package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

// Without one of these options the failure of a store is an error for the caller.

// FailOpen allows a request that the store could not decide: it failed, or did not answer
// within after while the caller waited. Result.By is ByOpen then. Count these, or observe
// Events.Degraded: there is no other sign that a limit has no effect.
//
// One slow answer affects only its own request. After five requests in a row without an
// answer the Limiter decides about their keys without asking; if they were of three or
// more keys, about all keys. One request every 100 ms, or every after if that is longer,
// still asks the store. The first answer ends the fallback. Callers may have shorter
// patience: the Limiter waits for the answer after a caller has left, up to after, to
// learn whether the store works.
//
// The stores on PostgreSQL and MySQL wait a quarter of a second longer for a request
// whose context ends. So the calls under way when the store falls silent take that much
// longer, later calls do not.
func FailOpen(after time.Duration) Option { return failure{by: ByOpen, after: after} }

// FailClosed refuses what the store does not decide, by the rules of FailOpen. Result.By
// is ByClosed then.
func FailClosed(after time.Duration) Option { return failure{by: ByClosed, after: after} }

// FailLocal decides within this process what the store does not decide, by the rules of
// FailOpen. This process has 1/instances of each limit, rounded down. Together the
// instances never allow more than the limit, beside what the store allows: what a process
// has allowed of its share still counts when the store fails again. Result.By is ByLocal
// then.
func FailLocal(instances int64, after time.Duration) Option {
	return failure{by: ByLocal, after: after, instances: instances}
}

type failure struct {
	by        Source
	after     time.Duration
	instances int64
}

func (f failure) option(c *config) {
	switch {
	case f.after <= 0:
		c.err = &LimitError{Reason: fmt.Sprintf("the store is given %v to answer: it must be more", f.after)}
	case c.failure.by != ByStore:
		c.err = &LimitError{Reason: "there can be one of FailOpen, FailClosed and FailLocal"}
	case f.by == ByLocal && f.instances < 1:
		c.err = &LimitError{Reason: fmt.Sprintf("a share of %d instances: there is at least one", f.instances)}
	}
	c.failure = f
}

const (
	probeEvery = 100 * time.Millisecond // the period of probes

	// failsInARow requests in a row without an answer show that the store fails for their
	// keys; if they are of failsOfKeys keys, for all keys. A single key may be slow by
	// itself, such as one with a long log, and must not affect others.
	failsInARow = 5
	failsOfKeys = 3
)

// fallback decides in place of a store that fails.
type fallback struct {
	failure
	watch *watch

	mu    sync.Mutex
	row   int           // requests in a row without an answer
	keys  []string      // their keys, up to failsOfKeys
	told  []degradation // Degraded events without their Restored
	probe time.Time     // when the next probe may be sent

	untold  []func() // events for watch, in order
	telling bool     // a goroutine calls them

	known  rate.Known
	states map[string]localState
	until  time.Time // when the last of states ends
}

// degradation is the begin of decisions without the store about a key; "" means all keys.
type degradation struct {
	key   string
	since time.Time
}

type localState struct {
	state rate.State
	until time.Time
}

// take asks the store, or decides in its place. If wanted is above zero, the request is
// for a batch, and wanted is the cost to decide here.
func (f *fallback) take(ctx context.Context, store limits.Store, r limits.Request, wanted int64) (limits.Taken, Source, error) {
	if f.by == ByStore {
		t, err := store.Take(ctx, r)
		return t, ByStore, err
	}
	if err := ctx.Err(); err != nil {
		return limits.Taken{}, ByStore, err
	}
	ask, probe := f.ask(r.Takes[0].Key)
	if !ask {
		return f.stand(r, wanted)
	}
	var t limits.Taken
	var err error
	if deadline, ok := ctx.Deadline(); probe || ok && time.Until(deadline) < f.after {
		t, err = f.takeBy(ctx, store, r)
	} else {
		short, cancel := context.WithTimeout(ctx, f.after)
		defer cancel()
		sent := time.Now()
		t, err = store.Take(short, r)
		if ctx.Err() == nil || time.Since(sent) >= f.after { // a caller that left sooner is no sign that the store fails
			f.judge(ctx, r, err)
		}
	}
	if err != nil && fails(err) && ctx.Err() == nil {
		return f.stand(r, wanted)
	}
	return t, ByStore, err
}

// fails reports whether the store has not decided. A denial, as after a change of the
// password, counts.
func fails(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, driver.ErrDenied) || errors.Is(err, ErrUnknown) || errors.Is(err, context.DeadlineExceeded)
}

// takeBy returns when the context ends or after has passed, although some stores continue
// with a sent request. After a caller that leaves sooner the request continues, to show
// whether the store works. This takes a goroutine only if the store may fail or the
// caller's context may end sooner.
func (f *fallback) takeBy(ctx context.Context, store limits.Store, r limits.Request) (limits.Taken, error) {
	type answer struct {
		t   limits.Taken
		err error
	}
	after := context.WithoutCancel(ctx) // the caller may have left before the answer is judged
	whole, cancel := context.WithTimeout(after, f.after)
	answered := make(chan answer, 1)
	go func() {
		t, err := store.Take(whole, r)
		answered <- answer{t, err}
	}()
	settle := func(gone <-chan struct{}) (a answer, settled bool) {
		select {
		case a = <-answered:
		case <-whole.Done():
			a.err = errors.Join(ErrUnknown, whole.Err())
		case <-gone:
			return answer{err: errors.Join(ErrUnknown, ctx.Err())}, false
		}
		cancel()
		f.judge(after, r, a.err)
		return a, true
	}
	a, settled := settle(ctx.Done())
	if !settled {
		go settle(nil)
	}
	return a.t, a.err
}

// ask reports whether to ask the store about a key: always while the store works,
// otherwise now and then for one request, a probe.
func (f *fallback) ask(key string) (ask, probe bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.row < failsInARow || len(f.keys) < failsOfKeys && !slices.Contains(f.keys, key) {
		return true, false
	}
	now := time.Now()
	if now.Before(f.probe) {
		return false, false
	}
	f.probe = now.Add(max(probeEvery, f.after))
	return true, true
}

// judge notes whether the store has answered. It reports the begin or the end of the
// fallback.
func (f *fallback) judge(ctx context.Context, r limits.Request, err error) {
	tells := false
	switch {
	case err == nil:
		tells = f.works(ctx)
	case fails(err):
		tells = f.silent(ctx, r.Takes[0].Key, err)
	}
	if tells {
		f.tell()
	}
}

// tell calls watch for untold, with no mutex locked. If another goroutine does so
// already, that one continues, so the order is kept.
func (f *fallback) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.telling {
		return
	}
	f.telling = true
	defer func() { f.telling = false }() // even if one panics
	for len(f.untold) > 0 {
		next := f.untold[0]
		f.untold = f.untold[1:]
		f.tellOne(next)
	}
	f.untold = nil
}

// tellOne unlocks the mutex during next.
func (f *fallback) tellOne(next func()) {
	f.mu.Unlock()
	defer f.mu.Lock()
	next()
}

// works notes an answer of the store. It reports whether there is an event to tell.
func (f *fallback) works(ctx context.Context) (tells bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watch != nil {
		for _, d := range f.told {
			e := FallbackEvent{Key: d.key, By: f.by, Lasted: time.Since(d.since)}
			f.untold, tells = append(f.untold, func() { f.watch.restored(context.WithoutCancel(ctx), e) }), true
		}
	}
	f.row, f.keys, f.told = 0, nil, nil
	if f.states != nil && time.Now().After(f.until) {
		f.states = nil // states are only removed here while the store works
	}
	return tells
}

// silent notes that the store has not answered a request about a key. It reports whether
// there is an event to tell.
func (f *fallback) silent(ctx context.Context, key string, err error) (tells bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.row++
	if len(f.keys) < failsOfKeys && !slices.Contains(f.keys, key) {
		f.keys = append(f.keys, key)
	}
	now := time.Now()
	f.probe = now.Add(max(probeEvery, f.after))
	if f.row < failsInARow {
		return false
	}
	without := f.keys
	if len(f.keys) == failsOfKeys {
		without = []string{""}
	}
	known := len(f.told)
	for _, key := range without {
		if !slices.ContainsFunc(f.told, func(d degradation) bool { return d.key == key }) {
			f.told = append(f.told, degradation{key, now})
		}
	}
	if f.watch == nil {
		return false
	}
	for _, d := range f.told[known:] {
		e := FallbackEvent{Key: d.key, By: f.by, Err: err}
		f.untold, tells = append(f.untold, func() { f.watch.degraded(context.WithoutCancel(ctx), e) }), true
	}
	return tells
}

func (f *fallback) stand(r limits.Request, wanted int64) (limits.Taken, Source, error) {
	if f.by == ByLocal {
		t, err := f.decide(r, wanted)
		return t, ByLocal, err
	}
	t := limits.Taken{OK: f.by == ByOpen, At: time.Now().UnixMicro(), Limits: make([]limits.Decision, len(r.Takes))}
	if !t.OK {
		t.Retry = max(probeEvery, f.after)
	}
	for i := range t.Limits {
		t.Limits[i] = limits.Decision{OK: t.OK, Retry: t.Retry}
	}
	return t, f.by, nil
}

// decide decides about this process's share.
func (f *fallback) decide(r limits.Request, wanted int64) (limits.Taken, error) {
	whole := r.Takes
	r.Takes = append([]limits.Take(nil), whole...)
	none := false
	for i := range r.Takes {
		if wanted > 0 {
			r.Takes[i].Cost = wanted
		}
		l := &r.Takes[i].Limit
		if l.Burst > 0 { // a share of the rate is the same number in a longer time
			l.Period *= time.Duration(f.instances)
			l.Burst /= f.instances
			l.Ahead /= f.instances
		} else {
			l.N /= f.instances
		}
		none = none || l.Capacity() == 0
	}
	q, err := f.known.NewRequest(r)
	if none || err != nil { // the share is 0, or cannot be counted
		t, _, err := (&fallback{failure: failure{by: ByClosed, after: f.after}}).stand(r, wanted)
		return t, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.states == nil {
		f.states = make(map[string]localState)
	}
	now := time.Now()
	looked := 0
	for key, st := range f.states {
		if now.After(st.until) {
			delete(f.states, key)
		}
		if looked++; looked == 3*limits.MaxTakes {
			break
		}
	}
	states := make([]rate.State, len(r.Takes))
	for i, t := range r.Takes {
		states[i] = slices.Clone(f.states[t.Key].state) // Decide changes it
	}
	d, changed := q.Decide(states, now.UnixMicro())
	d.Retry = 0
	for i := range d.Limits {
		x := &d.Limits[i]
		if x.Retry == limits.Never && r.Takes[i].Cost <= whole[i].Limit.Capacity() {
			x.Retry = max(probeEvery, f.after) // the cost is above the share, but not above the limit
		}
		d.Retry = max(d.Retry, x.Retry)
	}
	if !changed {
		return d, nil
	}
	for i, t := range r.Takes {
		if len(states[i]) > 0 {
			st := localState{states[i], now.Add(d.Limits[i].Reset)}
			if f.states[t.Key] = st; st.until.After(f.until) {
				f.until = st.until
			}
		} else {
			delete(f.states, t.Key)
		}
	}
	return d, nil
}
