//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/batonhq/baton/internal/testserver"
)

// The scripts that know nothing of the server run on PostgreSQL, too, and
// through a pooler.
func TestPostgresScripts(t *testing.T) {
	t.Parallel()
	server := testserver.SharedPostgres(t)
	for name, url := range map[string]func(database string) string{
		"direct":    server.URL,
		"pgbouncer": testserver.PgBouncer(t, server).URL,
	} {
		t.Run(name, func(t *testing.T) {
			runScripts(t, "testdata/redis-any", func(env *testscript.Env) error {
				env.Setenv("BATON_STORE", url(server.Database(scriptTB{env})))
				return nil
			})
		})
	}
}

// These know that the server is PostgreSQL: BATON_STORE is an empty database, at
// SERVER, and "sql" runs SQL in it as another program would, or what is in a file with
// "-f".
func TestPostgresOwnScripts(t *testing.T) {
	t.Parallel()
	server := testserver.SharedPostgres(t)
	runScripts(t, "testdata/postgres", func(env *testscript.Env) error {
		database := server.Database(scriptTB{env})
		env.Values[sqlKey{}] = func(text string) (string, error) { return server.Query(database, text) }
		env.Setenv("BATON_STORE", server.URL(database))
		env.Setenv("SERVER", server.Addr+"/"+database+"?sslmode=disable")
		return nil
	})
}

type sqlKey struct{}

func cmdSQL(ts *testscript.TestScript, neg bool, args []string) {
	text := strings.Join(args, " ")
	if args[0] == "-f" {
		text = ts.ReadFile(args[1])
	}
	answer, err := ts.Value(sqlKey{}).(func(string) (string, error))(text)
	if (err != nil) != neg {
		ts.Fatalf("sql: %q, %v", answer, err)
	}
	fmt.Fprintln(ts.Stdout(), answer)
}
