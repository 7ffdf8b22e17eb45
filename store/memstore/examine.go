package memstore

import (
	"context"

	"github.com/batonhq/baton/driver"
)

// Examine implements driver.Examiner.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	return []driver.Finding{{
		Name: "this-process", Severity: driver.Note,
		What: "these locks are known to this process alone: every other process, and the next run of this one, begins with none",
		Mend: "between processes of one machine use sqlite:PATH, between machines a store with a server (baton help stores)",
	}}, s.check(ctx)
}
