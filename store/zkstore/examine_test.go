package zkstore

import (
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// names returns the names of the findings, and checks what every finding needs.
func names(t *testing.T, s *Store) []string {
	t.Helper()
	found, err := s.Examine(t.Context())
	if err != nil {
		t.Errorf("examine: %v", err)
	}
	var names []string
	for _, f := range found {
		if f.Name == "" || f.What == "" || f.Mend == "" {
			t.Errorf("a finding lacks something: %+v", f)
		}
		names = append(names, f.Name)
	}
	return names
}

func TestExamineFindsNothingInASoundEnsemble(t *testing.T) {
	t.Parallel()
	testserver.NeedZooKeeper(t)
	e := testserver.ZooKeeperEnsemble(t, nil, "-Dzookeeper.forceSync=yes")
	s := mustOpen(t, Server{Addrs: e.Addrs(), User: "joe", Password: "secret"}, Config{Root: "/sound"})
	hold(t, s, writer("k"))
	if got := names(t, s); got != nil {
		t.Errorf("found %v", got)
	}
}

func TestExamineFindsPlantedFaults(t *testing.T) {
	t.Parallel()
	testserver.NeedZooKeeper(t)
	for _, c := range []struct {
		name  string
		lines []string
		at    Server
		cfg   Config
		held  bool // take a lock first
		want  []string
		not   []string
	}{
		{
			name: "by default", held: true, want: []string{"acl-open", "standalone", "force-sync"},
			not: []string{"session-timeout", "session-bounds", "session-long", "root-missing", "tick", "min-session", "max-connections", "commands", "version"},
		},
		{name: "a missing root", cfg: Config{Root: "/missing"}, want: []string{"root-missing"}},
		{name: "a short session", at: Server{Session: 4 * time.Second}, want: []string{"session-timeout"}, not: []string{"session-bounds"}},
		{name: "a session out of bounds", at: Server{Session: time.Hour}, want: []string{"session-bounds"}, not: []string{"session-long"}},
		{
			name: "bounds of a server", lines: []string{"minSessionTimeout=1000", "maxSessionTimeout=120000", "maxClientCnxns=60"},
			at: Server{Session: time.Minute}, want: []string{"session-long", "min-session", "max-connections"}, not: []string{"tick"},
		},
		{
			name: "a long tick, synced", lines: []string{"tickTime=10000", "-Dzookeeper.forceSync=yes"}, held: true,
			want: []string{"tick"}, not: []string{"min-session", "force-sync"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var server *testserver.ZooKeeperServer
			if c.lines == nil {
				server = testserver.SharedZooKeeper(t)
			} else {
				server = testserver.ZooKeeper(t, c.lines...)
			}
			c.at.Addrs = []string{server.Addr}
			if c.cfg.Root == "" && c.held {
				c.cfg.Root = "/" + driver.NewID()
			}
			s := mustOpen(t, c.at, c.cfg)
			if c.held {
				hold(t, s, writer("k"))
			}
			got := names(t, s)
			for _, w := range c.want {
				if !slices.Contains(got, w) {
					t.Errorf("found %v, want %s", got, w)
				}
			}
			for _, w := range c.not {
				if slices.Contains(got, w) {
					t.Errorf("found %s, which is not there", w)
				}
			}
		})
	}
}

// What a server of another kind would say about itself.
func TestExamineReadsWhatServersSay(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	for want, say := range map[string]string{
		"commands":  "srvr is not executed because it is not in the whitelist.\n",
		"version":   "Zookeeper version: 3.4.14-4c25d480, built on 2019\nMode: follower\n",
		"observer":  "Zookeeper version: 3.8.0-5a02a05, built on 2022\nMode: observer\n",
		"read-only": "Zookeeper version: 3.8.0-5a02a05, built on 2022\nMode: read-only\n",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			var canned atomic.Bool
			session := &Session{Dial: func(network, address string, timeout time.Duration) (net.Conn, error) {
				if !canned.Load() {
					return net.DialTimeout(network, address, timeout)
				}
				ours, theirs := net.Pipe()
				go func() {
					defer theirs.Close()
					if _, err := io.ReadFull(theirs, make([]byte, 4)); err == nil {
						_, _ = io.WriteString(theirs, say) // the other side may have gone
					}
				}()
				return ours, nil
			}}
			conn, _, err := zk.Connect([]string{server.Addr}, 30*time.Second, session.Option(), zk.WithLogger(silent), zk.WithLogInfo(false))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			s, err := New(t.Context(), conn, session, Config{Root: "/said"})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			canned.Store(true)
			if got := names(t, s); !slices.Contains(got, want) {
				t.Errorf("found %v, want %s", got, want)
			}
		})
	}
}

func TestExamineWithoutPermission(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	direct := plain(t, server.Addr)
	root := "/" + driver.NewID()
	if _, err := direct.Create(root, nil, 0, zk.DigestACL(zk.PermAll, "joe", "secret")); err != nil {
		t.Fatal(err)
	}
	s := openOn(t, root, server.Addr)
	if got := names(t, s); !slices.Contains(got, "acl-refused") {
		t.Errorf("found %v, want acl-refused", got)
	}
	if _, err := s.Acquire(t.Context(), writer("k")); err == nil || !strings.Contains(err.Error(), "access list") {
		t.Errorf("acquire: %v", err)
	}
}
