package once

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver/check"
)

// Config says how a Runner runs. The zero Config is ready to use. Programs that share
// operations need not agree on it.
type Config struct {
	// Keep is how long an outcome is kept after it was recorded, at least. A later call
	// runs the operation again. 1s to ten years. Defaults to 24h.
	Keep time.Duration

	// Remember is how long the store remembers that an attempt began, or failed. The
	// outcome of an attempt that takes longer cannot be recorded. 1s to ten years.
	// Defaults to a week, or to Keep if that is longer.
	Remember time.Duration

	// Failure is the text of an error that is not final, or of a panic, which the store
	// keeps until the next attempt begins: for people (Find, List, "baton once show"),
	// never for callers of Do. It is kept in clear text, and cut after check.MaxFailure
	// bytes. Defaults to the text of the error.
	Failure func(error) string

	// Lock says how operations are locked while they run. Its TTL is how long other
	// callers wait after an attempt has crashed, its MaxHold bounds an attempt, and its
	// Owner is shown in records, too. Its Logger also gets outcomes that could not be
	// recorded as errors, and each attempt and each replay at the debug level.
	Lock baton.Config

	// Events are called when something happens to operations. Defaults to none.
	Events *Events
}

// The defaults of a Config.
const (
	DefaultKeep     = 24 * time.Hour
	DefaultRemember = 7 * 24 * time.Hour
)

func (c *Config) complete() error {
	c.Keep = cmp.Or(c.Keep, DefaultKeep)
	c.Remember = cmp.Or(c.Remember, max(DefaultRemember, c.Keep))
	for field, d := range map[string]time.Duration{"Keep": c.Keep, "Remember": c.Remember} {
		if d < check.MinRecordKeep || d > check.MaxRecordKeep {
			return &baton.ConfigError{Field: field, Reason: fmt.Sprintf("is %v; it is between %v and %v", d, check.MinRecordKeep, check.MaxRecordKeep)}
		}
	}
	if c.Failure == nil {
		c.Failure = error.Error
	}
	if c.Lock.Owner == "" {
		c.Lock.Owner = check.DefaultOwner()
	}
	if c.Lock.Logger == nil {
		c.Lock.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Events == nil {
		c.Events = &Events{}
	}
	return nil
}
