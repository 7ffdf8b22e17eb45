package pgstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
)

// An administrator made the tables in public. A program of a newer release, whose
// search path begins with another schema that it may write to, brings those up to
// date and makes no second set.
func TestMigrateStaysWhereTheTablesAre(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	old := openAt(t, url)
	exec(t, old, `CREATE SCHEMA "its ""own"`)
	exec(t, old, `CREATE OR REPLACE FUNCTION baton_schema() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 3'`)
	held := hold(t, old, writer("k"))

	s := openOn(t, newPool(t, url, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["search_path"] = `"its ""own", public`
	}))
	if s.schema != SchemaVersion {
		t.Errorf("the tables are of version %d, want %d", s.schema, SchemaVersion)
	}
	var made int
	if err := s.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = '"its ""own"'::regnamespace)
		+ (SELECT count(*) FROM pg_proc WHERE pronamespace = '"its ""own"'::regnamespace)`).Scan(&made); err != nil || made != 0 {
		t.Errorf("%d tables and functions were made in the other schema, %v", made, err)
	}
	mustRefuse(t, s, "k")
	mustBe(t, s, held, driver.Held)
	mustBe(t, old, held, driver.Held)
	if path := ""; s.pool.QueryRow(t.Context(), `SHOW search_path`).Scan(&path) != nil || !strings.HasPrefix(path, `"its`) {
		t.Errorf("the search path is %q afterwards", path)
	}
}

// Version 4 downgrades and takes several locks in a way that is not safe. With its
// tables this program does neither, and says what to do.
func TestUnsoundFunctionsAreNotUsed(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	owner := openAt(t, url)
	exec(t, owner, `CREATE OR REPLACE FUNCTION baton_schema() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 4'`)
	pool := newPool(t, url)
	s, err := New(t.Context(), pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	held := hold(t, s, writer("k"))
	_, downgrade := s.Downgrade(t.Context(), held, writer("k").TTL)
	_, together := s.AcquireAll(t.Context(), writers("a", "b"))
	for what, err := range map[string]error{"Downgrade": downgrade, "AcquireAll": together} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "baton schema apply") {
			t.Errorf("%s: %v, want errors.ErrUnsupported and what to do", what, err)
		}
	}
	mustBe(t, s, held, driver.Held)
	if found := strings.Join(examined(t, s), " "); found != "schema" {
		t.Errorf("found %q", found)
	}
	next := openOn(t, pool)
	if _, err := next.Downgrade(t.Context(), held, writer("k").TTL); err != nil {
		t.Error(err)
	}
	holdAll(t, next, writers("a", "b")...)
}
