package pgstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// Tables that are older than overrides serve locks and limits. Overrides say what to do.
func TestOverridesInAnOldDatabase(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	owner := openAt(t, url)
	exec(t, owner, `CREATE OR REPLACE FUNCTION baton_schema() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 6'`)
	exec(t, owner, `DROP VIEW baton_overrides`)
	exec(t, owner, `DROP TABLE baton_override`)
	exec(t, owner, `DROP FUNCTION baton_override_set_1`)
	s, err := New(t.Context(), newPool(t, url), Config{}) // which does not migrate
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	o := limits.Override{Key: "k", N: 5}
	_, errLook := s.Overrides(t.Context())
	for what, err := range map[string]error{"set": s.SetOverride(t.Context(), o, time.Hour), "removed": s.SetOverride(t.Context(), o, 0), "looked up": errLook} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "baton schema apply") {
			t.Errorf("%s without the table: %v", what, err)
		}
	}
	mustTake(t, s, take(bucket(5), 1, "k"))
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := openAt(t, url)
	if err := again.SetOverride(t.Context(), o, time.Hour); err != nil {
		t.Error(err)
	}
	if all, err := again.Overrides(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}
