package kept

import (
	"context"
	"encoding/json"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// Overrides is a limits.Overrider over texts.
type Overrides struct{ texts Texts }

// NewOverrides returns the overrides that lie in texts.
func NewOverrides(texts Texts) Overrides { return Overrides{texts} }

const (
	// shortestLeft is what Overrides tells at least of an override whose time is over by
	// the clock of this machine, and not by the store: long enough for the next look.
	shortestLeft = 3 * time.Second

	// grace is by how much the clocks of the machine that set an override and of the one
	// that looks may differ, before it ends although a store that does not tell the time
	// keeps it.
	grace = time.Minute
)

// SetOverride implements limits.Overrider, by a List and a Swap. What replaces or removes an
// override repeats the Swap if the override is another than was supposed.
func (s *Overrides) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil {
		return err
	}
	old, next := never, ""
	if keep > 0 {
		old = ""
		others := 0
		for is, err := range s.texts.List(ctx, OverridesFolder, "") {
			switch {
			case err != nil:
				return err
			case is.Key == o.Key:
				old = is.Text
			default:
				others++
			}
		}
		if others >= limits.MaxOverrides {
			return &limits.OverridesFullError{Key: o.Key, Store: s.texts.Store}
		}
		next = textOf(o, time.Now().Add(keep))
	}
	for {
		is, swapped, err := s.texts.Swap(ctx, OverridesFolder, o.Key, old, next, keep)
		if swapped || err != nil || is.Text == next {
			return err
		}
		old = is.Text
	}
}

// Overrides implements limits.Overrider, by one List. It leaves out what is no override.
func (s *Overrides) Overrides(ctx context.Context) (all []limits.Override, err error) {
	for is, err := range s.texts.List(ctx, OverridesFolder, "") {
		if err != nil {
			return nil, err
		}
		o, until, ok := parse(is.Key, is.Text)
		if o.Left = is.Left; ok && o.Left == 0 {
			left := time.Until(until)
			o.Left, ok = max(left, shortestLeft), left > -grace
		}
		if ok {
			all = append(all, o)
		}
	}
	return all, nil
}

// A line is the text of an override, in JSON.
type line struct {
	N      int64     `json:"n"`
	Period string    `json:"period"` // "1m0s"; "0s": that of the limit
	Burst  int64     `json:"burst"`
	Until  time.Time `json:"until"` // by the clock of the machine that set it
}

func textOf(o limits.Override, until time.Time) string {
	b, _ := json.Marshal(line{o.N, o.Period.String(), o.Burst, until.UTC()}) // nothing in it can fail
	return string(b)
}

// parse is the reverse of textOf. ok is false for any other text.
func parse(key, text string) (o limits.Override, until time.Time, ok bool) {
	var l line
	if json.Unmarshal([]byte(text), &l) != nil || l.Until.IsZero() {
		return o, until, false
	}
	period, err := time.ParseDuration(l.Period)
	o = limits.Override{Key: key, N: l.N, Period: period, Burst: l.Burst}
	return o, l.Until, err == nil && limits.CheckOverride(o, 1) == nil
}
