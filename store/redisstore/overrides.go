package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

var _ limits.Overrider = (*Store)(nil)

// SetOverride implements limits.Overrider: one script, by the clock of the server. In
// Cluster all overrides lie on one slot. Redis may forget an override, as it may forget
// what was taken: see Take. If the server keeps something else under the name of the
// overrides, the error is a *limits.Error.
func (s *Store) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil {
		return err
	}
	kept := rate.NewOverride(o, 0, keep)
	end := strconv.FormatInt(kept.Until, 10)
	v, err := s.overrides(ctx, o.Key, strings.TrimSuffix(kept.Text(), end), end)
	if err == nil && number(v[0]) == 0 {
		err = &limits.OverridesFullError{Key: o.Key, Store: traits.Store}
	}
	return err
}

// Overrides implements limits.Overrider: one script.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	v, err := s.overrides(ctx, "", "", "0")
	if err != nil {
		return nil, err
	}
	if len(v)%2 != 0 {
		return nil, strange(overrideScript, v)
	}
	now := number(v[1])
	for i := 2; i < len(v); i += 2 {
		// What others have put there is left out.
		if kept, ok := rate.ParseOverride(text(v[i+1])); ok {
			if o, stands := kept.At(text(v[i]), now); stands {
				all = append(all, o)
			}
		}
	}
	return all, nil
}

// overrides runs the script override, and returns an answer that begins with 0 or 1.
func (s *Store) overrides(ctx context.Context, key, numbers, keep string) ([]any, error) {
	name := s.names.overrides()
	answer, err := s.run(ctx, overrideScript, []string{name}, []string{key, numbers, keep, strconv.Itoa(limits.MaxOverrides)})
	if err != nil {
		return nil, err
	}
	v := list(answer)
	switch {
	case len(v) == 2 && number(v[0]) == 2:
		return nil, &limits.Error{Key: key, Reason: fmt.Sprintf(
			"redis has a %s under the name %q, where overrides of limits are kept: remove it", text(v[1]), name)}
	case len(v) == 0 || key == "" && len(v) < 2:
		return nil, strange(overrideScript, answer)
	}
	return v, nil
}
