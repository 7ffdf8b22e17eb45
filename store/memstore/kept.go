package memstore

import (
	"context"
	"iter"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/record"
)

// records are few and seldom used, compared with locks: one mutex guards them.
type records struct {
	mu     sync.Mutex
	states map[string]record.State
}

// BeginAttempt implements driver.Records.
func (s *Store) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	if err := check.Begin(a, keep); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, a.Key, func(st *record.State, now int64) (bool, error) { return st.Begin(a, now, keep) })
}

// FinishAttempt implements driver.Records.
func (s *Store) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	if err := check.Finish(a, o, keep); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, a.Key, func(st *record.State, now int64) (bool, error) { return st.Finish(a, o, now, keep) })
}

// FindRecord implements driver.Records.
func (s *Store) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	if err := check.Key(key); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, key, (*record.State).Find)
}

// ForgetRecord implements driver.Records.
func (s *Store) ForgetRecord(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	_, err := s.record(ctx, key, (*record.State).Forget)
	return err
}

// ListRecords implements driver.RecordLister.
func (s *Store) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		s.records.mu.Lock()
		var keys []string
		for key := range s.records.states {
			if strings.HasPrefix(key, prefix) {
				keys = append(keys, key)
			}
		}
		s.records.mu.Unlock()
		if err := s.check(ctx); err != nil {
			yield(driver.Record{}, err)
			return
		}
		for _, key := range keys {
			if err := s.check(ctx); err != nil {
				yield(driver.Record{}, err)
				return
			}
			s.records.mu.Lock()
			st, now := s.records.states[key], s.now().Microseconds()
			s.records.mu.Unlock()
			if st.Exists(now) && !yield(st.Listed(key, now), nil) {
				return
			}
		}
	}
}

func (s *Store) record(ctx context.Context, key string, act func(*record.State, int64) (changed bool, err error)) (driver.Record, error) {
	s.records.mu.Lock()
	defer s.records.mu.Unlock()
	if err := s.check(ctx); err != nil {
		return driver.Record{}, err
	}
	now := s.now().Microseconds()
	st := s.records.states[key]
	changed, err := act(&st, now)
	if err != nil {
		return driver.Record{}, err
	}
	if changed {
		s.records.put(key, st, now)
	}
	return st.Record(key, now), nil
}

// put also looks at a few other records, wherever the map begins, and drops those that
// have expired: more than a caller can add.
func (r *records) put(key string, st record.State, now int64) {
	if r.states == nil {
		r.states = make(map[string]record.State)
	}
	looked := 0
	for k, other := range r.states {
		if looked++; looked > 4 {
			break
		}
		if !other.Exists(now) {
			delete(r.states, k)
		}
	}
	if st.Token == 0 {
		delete(r.states, key)
		return
	}
	r.states[key] = st
}

// overrides of limits, by key.
type overrides struct {
	mu  sync.Mutex
	all map[string]rate.Override
}

// SetOverride implements limits.Overrider.
func (s *Store) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil {
		return err
	}
	s.overrides.mu.Lock()
	defer s.overrides.mu.Unlock()
	if err := s.check(ctx); err != nil {
		return err
	}
	now, all := s.now().Microseconds(), s.overrides.all
	maps.DeleteFunc(all, func(_ string, kept rate.Override) bool { return kept.Until <= now })
	if keep == 0 {
		delete(all, o.Key)
		return nil
	}
	if _, stands := all[o.Key]; !stands && len(all) >= limits.MaxOverrides {
		return &limits.OverridesFullError{Key: o.Key, Store: traits.Store}
	}
	if all == nil {
		s.overrides.all = make(map[string]rate.Override)
	}
	s.overrides.all[o.Key] = rate.NewOverride(o, now, keep)
	return nil
}

// Overrides implements limits.Overrider.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	s.overrides.mu.Lock()
	defer s.overrides.mu.Unlock()
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	now := s.now().Microseconds()
	for key, kept := range s.overrides.all {
		if o, stands := kept.At(key, now); stands {
			all = append(all, o)
		}
	}
	return all, nil
}
