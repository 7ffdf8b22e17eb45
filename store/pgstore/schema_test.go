package pgstore

import (
	"errors"
	"fmt"
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
	exec(t, old, `CREATE OR REPLACE FUNCTION baton_schema() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 0'`)
	held := hold(t, old, writer("k"))

	s := openOn(t, newPool(t, url, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["search_path"] = `"its ""own", public`
	}))
	if v, err := schemaVersion(t.Context(), s.pool); v != SchemaVersion || err != nil {
		t.Errorf("the tables are of version %d, %v, want %d", v, err, SchemaVersion)
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

// Tables of an older version, with a lock that is held, are refused with the command
// that replaces them, and are replaced under the lock. Tables of a newer one serve.
func TestOtherVersions(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	owner := openAt(t, url)
	held := hold(t, owner, writer("k"))
	older := func() {
		exec(t, owner, `DROP TABLE baton_limit, baton_limit_id CASCADE`)
		exec(t, owner, `CREATE OR REPLACE FUNCTION baton_schema() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 0'`)
	}
	older()
	if _, err := owner.Take(t.Context(), take(window(5), 1, "k")); !errors.As(err, new(*SchemaError)) || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("without a table: %v", err)
	}
	pool := newPool(t, url)
	if _, err := New(t.Context(), pool, Config{}); !errors.As(err, new(*SchemaError)) || !strings.Contains(err.Error(), "baton schema apply") {
		t.Errorf("an older version: %v", err)
	}
	next := openOn(t, pool)
	if d := mustTake(t, next, take(window(5), 1, "k")); !d.OK {
		t.Errorf("%+v", d)
	}
	mustBe(t, next, held, driver.Held)

	exec(t, owner, fmt.Sprintf(`CREATE OR REPLACE FUNCTION baton_schema() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT %d'`, SchemaVersion+1))
	worker, database := workerOf(t, owner, url)
	at := Server{Addrs: []string{server.Addr}, User: worker, Database: database, SSLMode: "disable"}
	s, err := Open(t.Context(), at, Config{})
	if err != nil {
		t.Fatalf("a newer version: %v", err)
	}
	defer s.Close()
	mustBe(t, s, held, driver.Held)
	if found := examined(t, s); len(found) != 0 {
		t.Errorf("a newer version: found %q", found)
	}
	older()
	if _, err := Open(t.Context(), at, Config{}); !isCode(err, "42501") {
		t.Errorf("an older version, and a user who may not replace it: %v", err)
	}
	release(t, next, held)
}

// workerOf makes a user who may use the tables of the database, and no more.
func workerOf(t *testing.T, owner *Store, url string) (user, database string) {
	t.Helper()
	exec(t, owner, `DO $$ BEGIN CREATE ROLE worker LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`)
	exec(t, owner, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	exec(t, owner, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker`)
	database, _, _ = strings.Cut(url[strings.LastIndexByte(url, '/')+1:], "?")
	return "worker", database
}
