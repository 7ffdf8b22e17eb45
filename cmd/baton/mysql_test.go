package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/batonhq/baton/internal/testserver"
)

// The scripts that know nothing of the server run on a database, too.
func TestMySQLScripts(t *testing.T) {
	t.Parallel()
	server := testserver.SharedMariaDB(t)
	runScripts(t, "testdata/redis-any", func(env *testscript.Env) error {
		env.Setenv("BATON_STORE", "mysql://root@"+server.Addr+"/baton")
		return nil
	})
}
