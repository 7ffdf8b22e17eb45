package memstore

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

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
