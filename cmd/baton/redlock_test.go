//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/batonhq/baton/internal/testserver"
)

// Each script has three durable Redis servers of its own in BATON_STORE, their
// addresses in A, B and C. "redis", "freeze" and "thaw" are about the third.
func TestRedlockScripts(t *testing.T) {
	t.Parallel()
	testserver.NeedRedis(t)
	for _, dir := range []string{"testdata/redis-any", "testdata/redlock"} {
		runScripts(t, dir, func(env *testscript.Env) error {
			nodes := testserver.RedisNodes(scriptTB{env}, 3, "--appendonly", "yes", "--appendfsync", "always")
			for i, name := range []string{"A", "B", "C"} {
				env.Setenv(name, nodes[i].Addr)
			}
			env.Values[redisKey{}] = nodes[2]
			env.Setenv("BATON_STORE", "redlock://"+strings.Join(testserver.Addrs(nodes), ",")+"?durable=true")
			return nil
		})
	}
}
