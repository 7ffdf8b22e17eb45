package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/rate"
)

// Without any of these a store that fails is an error of the caller's.

// FailOpen allows everything while the store fails, or takes longer than after
// for an answer. Result.By is ByOpen then.
//
// The stores on PostgreSQL and MySQL go on for a quarter of a second with what was
// sent when a context ends: so much longer those wait who have asked when the
// store falls silent, and nobody who asks after they were answered.
func FailOpen(after time.Duration) Option { return failure{by: ByOpen, after: after} }

// FailClosed refuses everything while the store fails, or takes longer than after
// for an answer, as FailOpen has it. Result.By is ByClosed then.
func FailClosed(after time.Duration) Option { return failure{by: ByClosed, after: after} }

// FailLocal decides within this process while the store fails, or takes longer
// than after for an answer, as FailOpen has it: about a share of each limit, one
// of so many instances, rounded down. Together they never allow more than the
// limit, beside what the store allows: what a process has given out of its share
// counts on when the store fails again. Result.By is ByLocal then.
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

// probeEvery is how often a store that failed is asked again.
const probeEvery = 100 * time.Millisecond

// fallback stands in for a store that fails.
type fallback struct {
	failure

	mu     sync.Mutex
	failed bool
	probe  time.Time // when the store may be asked next

	known  rate.Known
	states map[string]localState
	until  time.Time // when the last of them is over
}

type localState struct {
	state rate.State
	until time.Time
}

// take asks the store, or decides in its place: then about so much of each limit,
// if wanted is above zero, for who asks the store for a batch.
func (f *fallback) take(ctx context.Context, store driver.Limits, r driver.TakeRequest, wanted int64) (driver.Taken, Source, error) {
	if f.by == ByStore {
		t, err := store.Take(ctx, r)
		return t, ByStore, err
	}
	ask, probe := f.ask()
	if !ask {
		return f.stand(r, wanted)
	}
	short, cancel := context.WithTimeout(ctx, f.after)
	defer cancel()
	var t driver.Taken
	var err error
	if probe {
		t, err = takeBy(short, store, r)
	} else {
		t, err = store.Take(short, r)
	}
	switch {
	case err == nil:
		f.set(false)
		return t, ByStore, nil
	case ctx.Err() != nil:
		return t, ByStore, err // the caller's own end says nothing about the store
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrUnknown), errors.Is(err, context.DeadlineExceeded):
		f.set(true)
		return f.stand(r, wanted)
	}
	return t, ByStore, err
}

// takeBy returns when the context ends, although some stores go on with what was
// sent. That takes a goroutine, which is not worth its cost while the store works.
func takeBy(ctx context.Context, store driver.Limits, r driver.TakeRequest) (driver.Taken, error) {
	type answer struct {
		t   driver.Taken
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		t, err := store.Take(ctx, r)
		answered <- answer{t, err}
	}()
	select {
	case a := <-answered:
		return a.t, a.err
	case <-ctx.Done():
		return driver.Taken{}, errors.Join(ErrUnknown, ctx.Err())
	}
}

// ask reports whether the store is to be asked: always while it works, and by
// one request now and then, a probe, while it does not.
func (f *fallback) ask() (ask, probe bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.failed {
		return true, false
	}
	now := time.Now()
	if now.Before(f.probe) {
		return false, false
	}
	f.probe = now.Add(max(probeEvery, f.after))
	return true, true
}

func (f *fallback) set(failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if failed {
		f.probe = time.Now().Add(max(probeEvery, f.after))
	} else if f.states != nil && time.Now().After(f.until) {
		f.states = nil // nobody sweeps them while the store works
	}
	f.failed = failed
}

// stand decides in place of the store.
func (f *fallback) stand(r driver.TakeRequest, wanted int64) (driver.Taken, Source, error) {
	if f.by == ByLocal {
		t, err := f.decide(r, wanted)
		return t, ByLocal, err
	}
	t := driver.Taken{OK: f.by == ByOpen, At: time.Now().UnixMicro(), Limits: make([]driver.Decision, len(r.Takes))}
	if !t.OK {
		t.Retry = max(probeEvery, f.after)
	}
	for i := range t.Limits {
		t.Limits[i] = driver.Decision{OK: t.OK, Retry: t.Retry}
	}
	return t, f.by, nil
}

// decide decides about this process's share.
func (f *fallback) decide(r driver.TakeRequest, wanted int64) (driver.Taken, error) {
	whole := r.Takes
	r.Takes = append([]driver.Take(nil), whole...)
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
	if none || err != nil { // the share is nothing, or cannot be counted
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
		if looked++; looked == 3*driver.MaxTakes {
			break
		}
	}
	states := make([]rate.State, len(r.Takes))
	for i, t := range r.Takes {
		states[i] = f.states[t.Key].state
	}
	d, _ := q.Decide(states, now.UnixMicro())
	d.Retry = 0
	for i := range d.Limits {
		x := &d.Limits[i]
		if x.Retry == driver.Never && r.Takes[i].Cost <= whole[i].Limit.Capacity() {
			x.Retry = max(probeEvery, f.after) // it is above the share, and not above the limit
		}
		d.Retry = max(d.Retry, x.Retry)
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
