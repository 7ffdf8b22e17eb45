package pgstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// examined names what Examine finds, without what every server of the tests
// has: they do not wait for the disk.
func examined(t *testing.T, s *Store) (names []string) {
	t.Helper()
	all, err := s.Examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.What == "" || f.Mend == "" && f.Severity > driver.Note {
			t.Errorf("%+v: it says nothing, or has no remedy", f)
		}
		if f.Name != "fsync" && f.Name != "idle-timeout" {
			names = append(names, f.Name)
		}
	}
	return names
}

// TestExamine plants one fault at a time.
func TestExamine(t *testing.T) {
	t.Parallel()
	testserver.NeedPostgres(t)
	server := testserver.Postgres(t) // the other tests take many connections
	for want, plant := range map[string]func(t *testing.T, server *testserver.PostgresServer, url string) *Store{
		"": func(t *testing.T, _ *testserver.PostgresServer, url string) *Store { return openAt(t, url) },
		"schema": func(t *testing.T, _ *testserver.PostgresServer, url string) *Store {
			s := openAt(t, url)
			exec(t, s, `DROP FUNCTION baton_schema()`)
			return s
		},
		"search-path": func(t *testing.T, _ *testserver.PostgresServer, url string) *Store {
			s := openAt(t, url)
			exec(t, s, `CREATE SCHEMA other`)
			exec(t, s, `CREATE TABLE other.baton_lock (k bytea)`)
			return openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = "public, other" }))
		},
		"unlogged": func(t *testing.T, _ *testserver.PostgresServer, url string) *Store {
			s := openAt(t, url)
			exec(t, s, `ALTER TABLE baton_claim SET UNLOGGED`)
			return s
		},
		"autovacuum": func(t *testing.T, _ *testserver.PostgresServer, url string) *Store {
			s := openAt(t, url)
			exec(t, s, `ALTER TABLE baton_lock SET (autovacuum_enabled = false)`)
			return s
		},
		"privileges": func(t *testing.T, _ *testserver.PostgresServer, url string) *Store {
			owner := openAt(t, url)
			exec(t, owner, `DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$`)
			exec(t, owner, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO reader`)
			exec(t, owner, `REVOKE INSERT ON baton_limit_id FROM reader`)
			s := openAt(t, strings.Replace(url, "postgres@", "reader@", 1))
			all, err := s.Examine(t.Context())
			if err != nil || !slices.ContainsFunc(all, func(f driver.Finding) bool { return strings.Contains(f.Mend, "ON baton_limit_id TO") }) {
				t.Errorf("%+v, %v", all, err)
			}
			exec(t, owner, `REVOKE INSERT ON baton_lock FROM reader`)
			return s
		},
		"read-only":          settingOf("default_transaction_read_only", "on"),
		"isolation":          settingOf("default_transaction_isolation", "serializable"),
		"synchronous-commit": settingOf("synchronous_commit", "off"),
		"pool-size": func(t *testing.T, _ *testserver.PostgresServer, url string) *Store {
			return openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 1 }))
		},
		"pooler": func(t *testing.T, server *testserver.PostgresServer, url string) *Store {
			testserver.NeedPgBouncer(t)
			return openAt(t, strings.Replace(url, server.Addr, testserver.PgBouncer(t, server).Addr, 1))
		},
		"idle-in-transaction": func(t *testing.T, _ *testserver.PostgresServer, url string) *Store {
			s := openAt(t, url)
			c := hold(t, s, writer("k"))
			if err := s.InTx(t.Context(), begin(t, s, pgx.ReadCommitted), leased(c)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a session that is idle", 20*time.Second, func() bool {
				all, err := s.Examine(context.Background())
				return err == nil && slices.ContainsFunc(all, func(f driver.Finding) bool { return f.Name == "idle-in-transaction" })
			})
			return s
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			s := plant(t, server, server.URL(server.Database(t)))
			if got := strings.Join(examined(t, s), " "); got != want {
				t.Errorf("found %q, want %q", got, want)
			}
		})
	}
}

// settingOf changes a setting of the program's sessions once the tables are
// there.
func settingOf(name, value string) func(*testing.T, *testserver.PostgresServer, string) *Store {
	return func(t *testing.T, _ *testserver.PostgresServer, url string) *Store {
		openAt(t, url)
		return openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }))
	}
}

// What concerns a whole server needs one of its own.
func TestExamineServer(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t, "-c", "full_page_writes=off", "-c", "autovacuum=off", "-c", "max_connections=10",
		"-c", "superuser_reserved_connections=0")
	s := openOn(t, newPool(t, server.URL("postgres"), func(c *pgxpool.Config) { c.MaxConns = 10 }))
	for range 10 {
		conn, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		if s.pool.Stat().AcquiredConns() == 8 {
			break
		}
	}
	other, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Join(examined(t, s), " ")
	if found != "full-page-writes autovacuum connections" {
		t.Errorf("found %q", found)
	}
	all, _ := s.Examine(t.Context())
	if !slices.ContainsFunc(all, func(f driver.Finding) bool { return f.Name == "fsync" && f.Severity == driver.Unsafe }) {
		t.Error("fsync = off was not found")
	}
	other.Close(t.Context())
}

// A standby is refused when it is met at first, and found when the server
// became one later.
func TestStandby(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t)
	s := openAt(t, server.URL("postgres"))
	server.Demote()
	awaitReachable(t, s)
	if got := strings.Join(examined(t, s), " "); got != "standby" {
		t.Errorf("found %q", got)
	}
	if _, err := s.Acquire(t.Context(), writer("k")); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "standby") {
		t.Errorf("acquire on a standby: %v", err)
	}
	_, err := New(t.Context(), s.pool, Config{})
	if !errors.As(err, new(*StandbyError)) {
		t.Errorf("New on a standby: %v", err)
	}
	if refusal, ok := errors.AsType[driver.Refusal](err); !ok {
		t.Error("it is no refusal")
	} else if f, ok := refusal.Finding(); !ok || f.Name != "standby" {
		t.Errorf("%+v", f)
	}
	if _, err := Open(t.Context(), Server{Addrs: []string{server.Addr}, User: "postgres", Database: "template1"}, Config{}); !errors.As(err, new(*StandbyError)) {
		t.Errorf("Open on a standby without tables: %v", err)
	}
}

// Of several servers the primary is used, and found again when it moves.
func TestOpenFindsThePrimary(t *testing.T) {
	t.Parallel()
	standby, primary := testserver.Postgres(t), testserver.Postgres(t)
	standby.Demote()
	s, err := Open(t.Context(), Server{Addrs: []string{standby.Addr, primary.Addr}, User: "postgres", Database: "postgres"}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	old := hold(t, s, writer("k"))
	primary.Demote() // and it knows of no primary
	eventually(t, "a refusal", 20*time.Second, func() bool {
		_, err := s.Acquire(t.Context(), writer("k"))
		return errors.Is(err, driver.ErrUnavailable)
	})
	standby.Promote() // it never heard of the locks: the promise that tokens rise is kept by the clock
	if err := Migrate(t.Context(), newPool(t, standby.URL("postgres"))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a grant by the new primary", 20*time.Second, func() bool {
		g, err := s.Acquire(t.Context(), writer("k"))
		if err == nil && g.Token <= old.Ticket {
			t.Errorf("token %d after %d", g.Token, old.Ticket)
		}
		return err == nil
	})
}

// A user who lacks only the rights of records or overrides is told so.
func TestExamineRightsOfRecordsAndOverrides(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	owner := openAt(t, url)
	worker, database := workerOf(t, owner, url)
	s, err := Open(t.Context(), Server{Addrs: []string{server.Addr}, User: worker, Database: database, SSLMode: "disable"}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, planted := range []struct{ sql, want string }{
		{`REVOKE INSERT ON baton_kept FROM worker`, "privileges-records"},
		{`GRANT INSERT ON baton_kept TO worker`, ""},
		{`ALTER TABLE baton_kept SET UNLOGGED`, "unlogged"},
	} {
		for sql := range strings.SplitSeq(planted.sql, ";") {
			exec(t, owner, sql)
		}
		if found := strings.Join(examined(t, s), " "); found != planted.want {
			t.Errorf("after %s: found %q, want %q", planted.sql, found, planted.want)
		}
	}
}

// What cannot be planted here is judged as it would be found.
func TestJudge(t *testing.T) {
	t.Parallel()
	sound := facts{
		version: 150018, fsync: "on", fullPages: "on", commit: "on", isolation: "read committed", idleTimeout: "30s",
		autovacuum: "on", connections: 5, maxConnections: 100, schema: SchemaVersion, host: "127.0.0.1", poolSize: 5,
	}
	if all := judge(sound); len(all) != 0 {
		t.Errorf("a sound server: %+v", all)
	}
	for want, change := range map[string]func(*facts){
		"search-path":          func(f *facts) { f.homes = []string{"a", "b"} },
		"server-version":       func(f *facts) { f.version = 110022 },
		"schema":               func(f *facts) { f.schema = SchemaVersion - 1 },
		"asynchronous-standby": func(f *facts) { f.replicas = 1 },
		"synchronous-commit":   func(f *facts) { f.syncNames, f.commit = "*", "local" },
		"long-transaction":     func(f *facts) { f.oldestTransaction = 21 * time.Second },
		"idle-timeout":         func(f *facts) { f.idleTimeout = "0" },
		"plaintext":            func(f *facts) { f.host = "db1" },
	} {
		f := sound
		change(&f)
		if all := judge(f); len(all) != 1 || all[0].Name != want {
			t.Errorf("%s: found %+v", want, all)
		}
	}
}

func TestServerTime(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	before := time.Now()
	at, err := s.ServerTime(t.Context())
	if err != nil || at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("%v, %v: it is the clock of this machine", at, err)
	}
}

// A database whose encoding cannot hold every owner is refused.
func TestEncoding(t *testing.T) {
	t.Parallel()
	server, _ := database(t)
	if _, err := server.Query("postgres", `CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'`); err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, server.URL("latin1"))
	if _, err := New(t.Context(), pool, Config{}); !errors.As(err, new(*EncodingError)) {
		t.Errorf("%v, want an *EncodingError", err)
	}
}

// What keeps old rows from being cleaned up is a snapshot, or a change.
func TestOldestTransaction(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, other := openAt(t, url), openAt(t, url)
	idle := begin(t, other, pgx.ReadCommitted)
	if f, err := s.facts(t.Context()); err != nil || f.oldestTransaction != 0 {
		t.Errorf("without a snapshot: %v, %v", f.oldestTransaction, err)
	}
	if err := idle.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	dump := begin(t, other, pgx.RepeatableRead)
	if _, err := dump.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	if f, err := s.facts(t.Context()); err != nil || f.oldestTransaction <= 0 {
		t.Errorf("with a snapshot: %v, %v", f.oldestTransaction, err)
	}
}
