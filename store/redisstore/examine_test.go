package redisstore

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// soundly makes a server that nothing is wrong with but what noted says. A
// busy machine makes any command slow.
var soundly = []string{
	"slowlog-log-slower-than", "-1", "appendonly", "yes", "appendfsync", "everysec", "requirepass", "secret",
}

var noted = []string{"appendfsync", "fork"}

func openOn(t *testing.T, addr string, cfg ...Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), Server{Addrs: []string{addr}, Password: "secret"}, append(cfg, Config{})[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func examine(t *testing.T, s *Store) map[string]driver.Finding {
	t.Helper()
	all, err := s.Examine(t.Context())
	if err != nil {
		t.Fatalf("examine: %v", err)
	}
	found := map[string]driver.Finding{}
	for _, f := range all {
		if f.What == "" || f.Mend == "" {
			t.Errorf("a finding without words: %+v", f)
		}
		if strings.Contains(f.What+f.Mend, "secret") {
			t.Errorf("a finding tells a secret: %+v", f)
		}
		found[f.Name] = f
	}
	return found
}

func namesOf(found map[string]driver.Finding) []string {
	var all []string
	for name := range found {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// command sends a command on a connection that knows the password.
func command(t *testing.T, s *Store, args ...string) {
	t.Helper()
	if err := s.client.Primaries(t.Context(), func(n wire.Node) error {
		_, err := n.Do(t.Context(), args...)
		return err
	}); err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
}

// TestExamineFindsPlantedFaults plants each fault in a real server and demands
// that it, and nothing else, is found.
func TestExamineFindsPlantedFaults(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	set := func(name, value string) func(*testing.T, *Store) {
		return func(t *testing.T, s *Store) { command(t, s, "CONFIG", "SET", name, value) }
	}
	for _, c := range []struct {
		name     string
		severity driver.Severity
		plant    func(*testing.T, *Store)
	}{
		{"appendfsync", driver.Note, func(*testing.T, *Store) {}},
		{"maxmemory-policy", driver.Unsafe, set("maxmemory-policy", "volatile-lru")},
		{"maxmemory", driver.Unsafe, set("maxmemory", "1100000")},
		{"persistence", driver.Unsafe, func(t *testing.T, s *Store) {
			command(t, s, "CONFIG", "SET", "appendonly", "no")
			command(t, s, "CONFIG", "SET", "save", "")
		}},
		{"persistence", driver.Unsafe, func(t *testing.T, s *Store) {
			command(t, s, "CONFIG", "SET", "appendonly", "no")
			command(t, s, "CONFIG", "SET", "save", "3600 1")
		}},
		{"appendfsync", driver.Unsafe, set("appendfsync", "no")},
		{"maxclients", driver.Unsafe, func(t *testing.T, s *Store) {
			for range 4 {
				other := openOn(t, s.server.Addrs[0])
				command(t, other, "PING")
			}
			command(t, s, "CONFIG", "SET", "maxclients", "5")
		}},
		{"slowlog", driver.Slow, func(t *testing.T, s *Store) {
			command(t, s, "CONFIG", "SET", "slowlog-log-slower-than", "0")
			command(t, s, "SET", "secret", "secret")
		}},
		{"client-output-buffer-limit", driver.Slow, set("client-output-buffer-limit", "pubsub 32768 8192 60")},
		{"auth", driver.Note, func(t *testing.T, s *Store) { command(t, s, "ACL", "SETUSER", "default", "nopass") }},
		{"hidden", driver.Note, func(t *testing.T, s *Store) { command(t, s, "ACL", "SETUSER", "default", "-config") }},
		{"evicted-keys", driver.Unsafe, func(t *testing.T, s *Store) {
			command(t, s, "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
			command(t, s, "SET", "k", "v")
			command(t, s, "CONFIG", "SET", "maxmemory", "1")
			eventually(t, "an eviction", 30*time.Second, func() bool {
				var info map[string]string
				err := s.client.Primaries(t.Context(), func(n wire.Node) (err error) {
					_, _ = n.Do(t.Context(), "SET", "other", "v") // refused when nothing is left to evict
					info, err = serverInfo(t.Context(), n)
					return err
				})
				return err == nil && info["evicted_keys"] != "0"
			})
			command(t, s, "CONFIG", "SET", "maxmemory", "0")
			command(t, s, "CONFIG", "SET", "maxmemory-policy", "noeviction")
		}},
		{"last-save", driver.Unsafe, func(t *testing.T, s *Store) {
			command(t, s, "CONFIG", "SET", "save", "3600 1")
			if err := s.client.Primaries(t.Context(), func(n wire.Node) error {
				answer, err := n.Do(t.Context(), "CONFIG", "GET", "dir")
				if err != nil {
					return err
				}
				return os.Mkdir(filepath.Join(fields(answer)["dir"], "dump.rdb"), 0o700) // in the way
			}); err != nil {
				t.Fatal(err)
			}
			command(t, s, "BGSAVE", "SCHEDULE") // the log may be in the making
			eventually(t, "a save that fails", 30*time.Second, func() bool {
				var info map[string]string
				_ = s.client.Primaries(t.Context(), func(n wire.Node) (err error) {
					info, err = serverInfo(t.Context(), n)
					return err
				})
				return info["rdb_last_bgsave_status"] == "err"
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			plain, err := Open(t.Context(), Server{Addrs: []string{server.Addr}}, Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			for i := 0; i+1 < len(soundly); i += 2 {
				command(t, plain, "CONFIG", "SET", soundly[i], soundly[i+1])
			}
			s := openOn(t, server.Addr, Config{AllowEviction: true})
			command(t, s, "SLOWLOG", "RESET")
			c.plant(t, s)
			found := examine(t, s)
			f, ok := found[c.name]
			if !ok || f.Severity != c.severity {
				t.Errorf("found %v, want %s (%v)", found, c.name, c.severity)
			}
			for name := range found {
				if name != c.name && !slices.Contains(noted, name) {
					t.Errorf("found %s, too: %+v", name, found[name])
				}
			}
		})
	}
}

func TestExamineReplication(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	primary := testserver.Redis(t)
	host, port, _ := net.SplitHostPort(primary.Addr)
	second := testserver.Redis(t, "--replicaof", host+" "+port)
	s := mustNew(t, dial(t, primary.Addr))
	eventually(t, "the replica", 30*time.Second, func() bool {
		info, err := primary.Do("INFO", "replication")
		return err == nil && strings.Contains(info, "state=online")
	})
	if f := examine(t, s)["min-replicas-to-write"]; f.Severity != driver.Unsafe || !strings.Contains(f.What, "to-write 0") {
		t.Errorf("no replica has to follow: %+v", f)
	}
	command(t, s, "CONFIG", "SET", "min-replicas-to-write", "1")
	if found := examine(t, s); found["replication"].What == "" || found["min-replicas-to-write"].What != "" {
		t.Errorf("one has to follow: found %v", namesOf(found))
	}
	command(t, s, "CONFIG", "SET", "min-replicas-to-write", "2")
	if f := examine(t, s)["min-replicas-to-write"]; f.Severity != driver.Unsafe || !strings.Contains(f.What, "refuses all writes") {
		t.Errorf("more have to follow than there are: %+v", f)
	}

	// A replica is refused, and says what it is.
	_, err := Open(t.Context(), Server{Addrs: []string{second.Addr}}, Config{})
	refused, ok := errors.AsType[driver.Refusal](err)
	if !ok {
		t.Fatalf("a replica is not refused: %v", err)
	}
	if f, ok := refused.Finding(); !ok || f.Name != "replica" || f.Severity != driver.Unsafe || !strings.Contains(f.Mend, primary.Addr) {
		t.Errorf("a replica: %+v", f)
	}
}

func TestExamineCluster(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.RedisCluster(t)
	s, err := Open(t.Context(), Server{Addrs: cluster.Addrs(), Cluster: true}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	found := examine(t, s)
	for _, name := range []string{"cluster-require-full-coverage", "cluster-replicas", "persistence"} {
		if f := found[name]; f.What == "" || strings.Contains(f.What, " (on ") {
			t.Errorf("%s, which is true of all nodes: %+v", name, f)
		}
	}
	if _, ok := found["cluster-slots"]; ok {
		t.Errorf("a whole cluster: %v", namesOf(found))
	}

	// One node differs.
	if _, err := cluster.Nodes[1].Do("CONFIG", "SET", "cluster-require-full-coverage", "no"); err != nil {
		t.Fatal(err)
	}
	if f := examine(t, s)["cluster-require-full-coverage"]; !strings.Contains(f.What, cluster.Nodes[0].Addr) || strings.Contains(f.What, cluster.Nodes[1].Addr) {
		t.Errorf("on two of three: %+v", f)
	}

	// Slots that no node serves.
	for _, n := range cluster.Nodes {
		if _, err := n.Do("CLUSTER", "DELSLOTS", "16383"); err != nil {
			t.Fatal(err)
		}
	}
	if f := examine(t, s)["cluster-slots"]; f.Severity != driver.Unsafe || !strings.HasPrefix(f.What, "1 of 16384") {
		t.Errorf("one slot is served by no primary: %+v", f)
	}
}

func TestExamineSentinel(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	closed := testserver.FreeAddr(t)
	s, err := Open(t.Context(), Server{Addrs: []string{set.Sentinel.Addr, closed}, Master: set.Name}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	found := examine(t, s)
	if f := found["sentinels"]; f.Severity != driver.Unsafe || !strings.Contains(f.What, "one Sentinel") {
		t.Errorf("one Sentinel: %+v", f)
	}
	if f := found["sentinel-unreachable"]; f.Severity != driver.Unsafe || !strings.Contains(f.What, closed) || strings.Contains(f.What, set.Sentinel.Addr) {
		t.Errorf("one is away: %+v", f)
	}
	if _, err := set.Sentinel.Do("SENTINEL", "SET", set.Name, "quorum", "2"); err != nil {
		t.Fatal(err)
	}
	if f := examine(t, s)["sentinel-quorum"]; f.Severity != driver.Unsafe || !strings.Contains(f.What, "cannot come about") {
		t.Errorf("a quorum of two with one Sentinel: %+v", f)
	}
}

// States into which a test can bring no server.
func TestJudgeFacts(t *testing.T) {
	t.Parallel()
	config := map[string]string{"appendfsync": "always", "save": ""}
	good := func() facts {
		return facts{info: map[string]string{"redis_version": "7.2.4", "role": "master", "maxmemory_policy": "noeviction", "aof_enabled": "1"}, config: config}
	}
	for _, c := range []struct {
		name  string
		plant func(*facts)
	}{
		{"", func(*facts) {}},
		{"replica", func(f *facts) { f.info["role"] = "slave" }},
		{"version", func(f *facts) { f.info["redis_version"] = "6.2.14" }},
		{"fork", func(f *facts) { f.info["latest_fork_usec"] = "1500000" }},
		{"last-save", func(f *facts) { f.info["aof_last_write_status"] = "err" }},
		{"cluster-slots-failed", func(f *facts) {
			f.cluster = map[string]string{"cluster_slots_assigned": "16384", "cluster_slots_fail": "5461", "cluster_state": "fail"}
		}},
		{"cluster-state", func(f *facts) {
			f.cluster = map[string]string{"cluster_slots_assigned": "16384", "cluster_slots_fail": "0", "cluster_state": "fail"}
		}},
		{"replica-lag", func(f *facts) {
			f.config = map[string]string{"min-replicas-to-write": "1", "appendfsync": "always"}
			f.info["connected_slaves"], f.info["min_slaves_good_slaves"] = "1", "1"
			f.info["slave0"] = "ip=10.0.0.2,port=6379,state=online,offset=1,lag=42"
		}},
	} {
		f := good()
		c.plant(&f)
		var got []string
		for _, found := range new(Store).judge(f) {
			if found.Name != "replication" {
				got = append(got, found.Name)
			}
		}
		if strings.Join(got, " ") != c.name {
			t.Errorf("found %q, want %q", got, c.name)
		}
	}

	three := func(quorum string) []sentinelFacts {
		return []sentinelFacts{{address: "a", master: map[string]string{"num-other-sentinels": "2", "quorum": quorum}}}
	}
	if found := judgeSentinels(three("2")); len(found) != 0 {
		t.Errorf("three Sentinels with a quorum of two: %v", found)
	}
	if found := judgeSentinels(three("1")); len(found) != 1 || found[0].Name != "sentinel-quorum" {
		t.Errorf("three Sentinels with a quorum of one: %v", found)
	}
}

func TestServerTime(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	s := mustNew(t, dial(t, testserver.SharedRedis(t).Addr))
	before := time.Now().Add(-time.Second)
	at, err := s.ServerTime(t.Context())
	if err != nil || at.Before(before) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("the server says %v, error %v", at, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ServerTime(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
