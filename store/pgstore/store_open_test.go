package pgstore

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// A pooler that does not pass the search path on would lead to other tables than
// those that the program asks for.
func TestSchemaBehindAPooler(t *testing.T) {
	t.Parallel()
	testserver.NeedPgBouncer(t)
	server := testserver.SharedPostgres(t)
	name := server.Database(t)
	plain := newPool(t, server.URL(name))
	if _, err := plain.Exec(t.Context(), `CREATE SCHEMA "its own"`); err != nil {
		t.Fatal(err)
	}
	config := Server{Addrs: []string{server.Addr}, User: "postgres", Database: name, SSLMode: "disable", Schema: "its own"}
	s, err := Open(t.Context(), config, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := hold(t, s, writer("k"))

	bouncer := testserver.PgBouncer(t, server, "ignore_startup_parameters = search_path, default_transaction_isolation, enable_seqscan, "+
		"plan_cache_mode, lock_timeout, idle_in_transaction_session_timeout, extra_float_digits")
	config.Addrs = []string{bouncer.Addr}
	other, err := Open(t.Context(), config, Config{})
	if e, ok := errors.AsType[*SearchPathError](err); !ok || e.Want != "its own" || e.Found != "public" || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("behind a pooler: %v, want a *SearchPathError", err)
	}
	if err == nil {
		other.Close()
	}
	var made int
	if err := plain.QueryRow(t.Context(), `SELECT count(*) FROM pg_class WHERE relname = 'baton_lock'`).Scan(&made); err != nil || made != 1 {
		t.Errorf("there are %d sets of tables, %v, want 1", made, err)
	}
	mustBe(t, s, c, driver.Held)
}

// The connections of a pool lead to different tables. Those that do not lead to the
// ones that the store found grant nothing.
func TestPoolWithTwoSearchPaths(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	openAt(t, url)
	if _, err := newPool(t, url).Exec(t.Context(), `CREATE SCHEMA other`); err != nil {
		t.Fatal(err)
	}
	openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = "other" }))

	var astray atomic.Bool
	pool := newPool(t, url, func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
			if astray.Load() {
				cc.RuntimeParams["search_path"] = "other"
			}
			return nil
		}
	})
	s := openOn(t, pool)
	c := hold(t, s, writer("k"))
	mustBe(t, s, c, driver.Held) // on a connection of its own, which is made now
	astray.Store(true)
	busy, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // one that was found is closed
		g, err := s.Acquire(t.Context(), writer("k"))
		e, ok := errors.AsType[*SearchPathError](err)
		if !ok || e.Want != "public" || e.Found != "other" || !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "search_path") {
			t.Errorf("on another connection: %+v, %v, want a *SearchPathError", g, err)
		}
	}
	busy.Release()
	mustRefuse(t, s, "k")
	mustBe(t, s, c, driver.Held)
}

// A store that does not let its user in is no store that is away: to try again does not help.
func TestDenied(t *testing.T) {
	t.Parallel()
	server, _ := database(t)
	for name, at := range map[string]Server{
		"no such user":     {User: "nobody_of_that_name", Database: "postgres"},
		"no such database": {User: "postgres", Database: "nothing_of_that_name"},
	} {
		at.Addrs = []string{server.Addr}
		s, err := Open(t.Context(), at, Config{})
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, driver.ErrDenied) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s: %v, want driver.ErrDenied", name, err)
		}
	}
}
