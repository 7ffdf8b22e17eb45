//go:build unix

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/batonhq/baton/internal/testserver"
)

// Each script in testdata/redis has a Redis server of its own in BATON_STORE,
// its address in ADDR and its socket in SOCKET. More commands:
//
//	redis COMMAND ARG…   speak to the server
//	freeze, thaw         stop the server, which keeps its connections, and let it go on
func TestRedisScripts(t *testing.T) {
	t.Parallel()
	testserver.Redis(t) // or skip, once and not for every script
	runScripts(t, "testdata/redis", func(env *testscript.Env) error {
		socket := filepath.Join(env.WorkDir, "redis.sock")
		server := testserver.Redis(scriptTB{env}, "--unixsocket", socket)
		env.Values[redisKey{}] = server
		env.Setenv("ADDR", server.Addr)
		env.Setenv("SOCKET", socket)
		env.Setenv("BATON_STORE", "redis://"+server.Addr)
		return nil
	})
}

func TestRedisClusterAndSentinel(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"cluster", "sentinel"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var url string
			if kind == "cluster" {
				url = "redis+cluster://" + strings.Join(testserver.RedisCluster(t).Addrs(), ",")
			} else {
				set := testserver.RedisSentinel(t)
				url = "redis+sentinel://" + set.Sentinel.Addr + "/" + set.Name
			}
			runScripts(t, "testdata/redis-any", func(env *testscript.Env) error {
				env.Setenv("BATON_STORE", url)
				return nil
			})
		})
	}
}

type redisKey struct{}

func cmdRedis(ts *testscript.TestScript, neg bool, args []string) {
	answer, err := ts.Value(redisKey{}).(*testserver.RedisServer).Do(args...)
	if (err != nil) != neg {
		ts.Fatalf("redis %s: %q, %v", strings.Join(args, " "), answer, err)
	}
	fmt.Fprintln(ts.Stdout(), answer)
}

func cmdFreeze(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Value(redisKey{}).(*testserver.RedisServer).Stop()
}

func cmdThaw(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Value(redisKey{}).(*testserver.RedisServer).Cont()
}

// scriptTB lets a script own a server.
type scriptTB struct{ env *testscript.Env }

func (s scriptTB) Helper()          {}
func (s scriptTB) Cleanup(f func()) { s.env.Defer(f) }
func (s scriptTB) Skipf(format string, args ...any) {
	s.env.T().Skip(fmt.Sprintf(format, args...))
}

func (s scriptTB) Fatalf(format string, args ...any) {
	s.env.T().Fatal(fmt.Sprintf(format, args...))
}
