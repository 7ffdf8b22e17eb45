package badstores

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

type keptOverride struct {
	limits.Override // Left is the time from when it was set
	until           time.Time
}

// SetOverride implements limits.Overrider, but for the bug.
func (s *Limits) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil && s.bug != TakesBadOverrides {
		return err
	}
	if err := ctx.Err(); err != nil && s.bug != OverridesAfterEnd {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bug == FoldsOverrides {
		o.Key = strings.ToLower(o.Key)
	}
	if s.bug == OverridesRefresh {
		delete(s.states, o.Key)
	}
	now := time.Now()
	if s.bug != CountsEndedOverrides {
		s.overrides = slices.DeleteFunc(s.overrides, func(k keptOverride) bool { return s.ended(k, now) })
	}
	i := slices.IndexFunc(s.overrides, func(k keptOverride) bool { return k.Key == o.Key })
	o.Left = keep
	if s.bug == CutsOverrides && o.N > 1000 {
		o.N, o.Burst = int64(float32(o.N)), int64(float32(o.Burst))
	}
	kept := keptOverride{o, now.Add(keep)}
	switch {
	case keep == 0:
		if i >= 0 && s.bug != KeepsRemovedOverrides {
			s.overrides = slices.Delete(s.overrides, i, i+1)
		}
	case i >= 0 && s.bug != PilesOverrides:
		s.overrides[i] = kept
	case len(s.overrides) >= limits.MaxOverrides && s.bug != AnyNumberOfOverrides:
		return &limits.OverridesFullError{Key: o.Key, Store: "broken"}
	default:
		s.overrides = append(s.overrides, kept)
	}
	return nil
}

// Overrides implements limits.Overrider, but for the bug.
func (s *Limits) Overrides(ctx context.Context) (all []limits.Override, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, k := range s.overrides {
		if s.ended(k, now) {
			continue
		}
		if s.bug != OverridesNeverAge {
			k.Left = max(k.until.Sub(now), 1)
		}
		all = append(all, k.Override)
	}
	return all, nil
}

func (s *Limits) ended(k keptOverride, now time.Time) bool {
	return s.bug != OverridesForEver && !now.Before(k.until)
}
