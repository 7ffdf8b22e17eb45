//go:build unix

package main

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/batonhq/baton/internal/testserver"
)

// Each script in testdata/etcd has a prefix of its own on a shared etcd in
// BATON_STORE.
func TestEtcdScripts(t *testing.T) {
	t.Parallel()
	server := testserver.SharedEtcd(t)
	runScripts(t, "testdata/etcd", func(env *testscript.Env) error {
		env.Setenv("BATON_STORE", "etcd://"+server.Addr+"/"+filepath.Base(env.WorkDir))
		return nil
	})
}
