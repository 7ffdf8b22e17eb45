//go:build unix

package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/batonhq/baton/internal/testserver"
)

// The scripts share a database with each other and with one that knows nothing
// of the server.
func TestMySQLScripts(t *testing.T) {
	t.Parallel()
	server := testserver.SharedMariaDB(t)
	for _, dir := range []string{"testdata/redis-any", "testdata/mysql"} {
		runScripts(t, dir, func(env *testscript.Env) error {
			env.Setenv("ADDR", server.Addr)
			env.Setenv("BATON_STORE", "mysql://root@"+server.Addr+"/baton")
			return nil
		})
	}
}
