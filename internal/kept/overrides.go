package kept

import (
	"context"
	"encoding/json"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

type Overrides struct{ texts Texts }

func NewOverrides(texts Texts) Overrides { return Overrides{texts} }

const (
	// shortestLeft is the least Left of an override that has ended by this machine's
	// clock but not by the store's: long enough for the next look.
	shortestLeft = 3 * time.Second

	// grace is the permitted difference between the clocks of the machine that set an
	// override and of the one that reads it. It matters for stores that do not tell the
	// time left.
	grace = time.Minute
)

// SetOverride implements limits.Overrider, by a List and a Swap. If the key has another
// override than expected, it repeats the Swap.
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

// Overrides implements limits.Overrider, by one List. It skips texts of other programs.
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
	b, _ := json.Marshal(line{o.N, o.Period.String(), o.Burst, until.UTC()}) // cannot fail
	return string(b)
}

// parse is the inverse of textOf. ok is false for any other text.
func parse(key, text string) (o limits.Override, until time.Time, ok bool) {
	var l line
	if json.Unmarshal([]byte(text), &l) != nil || l.Until.IsZero() {
		return o, until, false
	}
	period, err := time.ParseDuration(l.Period)
	o = limits.Override{Key: key, N: l.N, Period: period, Burst: l.Burst}
	return o, l.Until, err == nil && limits.CheckOverride(o, 1) == nil
}
