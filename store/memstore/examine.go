package memstore

import (
	"context"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
)

// Examine implements driver.Examiner.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	var found findings.Table
	found.Say(true, "this-process", driver.Note, "between processes of one machine use sqlite:PATH, between machines a store with a server (baton help stores)",
		"these locks are known to this process alone: every other process, and the next run of this one, begins with none")
	return found, s.check(ctx)
}
