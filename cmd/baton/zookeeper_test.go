//go:build unix

package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/batonhq/baton/internal/testserver"
)

// Each script in testdata/zookeeper has a root of its own in BATON_STORE.
func TestZooKeeperScripts(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	runScripts(t, "testdata/zookeeper", func(env *testscript.Env) error {
		env.Setenv("BATON_STORE", "zk://"+server.Addr+"/scripts")
		return nil
	})
}

// A ZooKeeper whose sessions are too short for the default TTL.
func TestZooKeeperQuickScripts(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "tickTime=1000")
	runScripts(t, "testdata/zookeeper-quick", func(env *testscript.Env) error {
		env.Setenv("BATON_STORE", "zk://"+server.Addr+"/scripts")
		return nil
	})
}
