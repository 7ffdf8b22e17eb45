package testserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// RedisServer is one redis-server process.
type RedisServer struct {
	Process

	// Addr is where it listens: "127.0.0.1:port". It survives Restart.
	Addr string
}

// Do sends one command on a new connection and returns the reply as text: array elements
// are separate lines, and a missing value is empty. An error reply is an error.
func (s *RedisServer) Do(args ...string) (string, error) { return do(s.Addr, args...) }

// Redis starts a single Redis that keeps nothing on disk: after a Restart it is empty.
// args are arguments of redis-server, for example "--appendonly", "yes", "--appendfsync",
// "always".
func Redis(t TB, args ...string) *RedisServer {
	t.Helper()
	return redis(t, nil, args)
}

func redis(t TB, env, args []string) *RedisServer {
	t.Helper()
	return redisNode(t, env, func() ([]string, error) {
		// Otherwise a replica waits 5 s for further ones.
		return append([]string{"--repl-diskless-sync-delay", "0"}, args...), nil
	})
}

var sharedRedis shared[*RedisServer]

// SharedRedis returns the single Redis that the tests of this binary share. They touch
// only their own keys and do not stop it.
func SharedRedis(t TB) *RedisServer {
	t.Helper()
	return sharedRedis.get(t, func(t TB) *RedisServer { return Redis(t) })
}

// redisNode starts a redis-server. If another program took the port meanwhile, it tries
// another port.
func redisNode(t TB, env []string, more func() ([]string, error)) *RedisServer {
	t.Helper()
	path := require(t, "redis-server", "redis-server")
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			t.Fatalf("start redis: %v", err)
		}
		extra, err := more()
		if err != nil {
			t.Fatalf("start redis: %v", err)
		}
		args := append([]string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--logfile", "",
		}, extra...)
		s, err := startRedis(t, path, freshDir(t), port, env, args)
		if err == nil {
			return s
		}
		if !errors.Is(err, errExited) || attempt == 5 {
			t.Fatalf("start redis: %v", err)
		}
	}
}

func startRedis(t TB, path, dir string, port int, env, args []string) (*RedisServer, error) {
	s := &RedisServer{Addr: addr(port)}
	s.Process = Process{t: t, path: path, args: args, env: env, dir: dir, ready: func(pid int) error {
		info, err := s.Do("INFO")
		if err != nil {
			return err
		}
		// Another server may have taken the port first.
		if !hasLine(info, "process_id:"+strconv.Itoa(pid)) {
			return errors.New("another server answers on " + s.Addr)
		}
		if hasLine(info, "loading:1") {
			return errors.New("it is loading its data")
		}
		return nil
	}}
	if err := s.start(); err != nil {
		return nil, err
	}
	t.Cleanup(s.Kill)
	return s, nil
}

func hasLine(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimRight(l, "\r\n") == line {
			return true
		}
	}
	return false
}

// SentinelSet is a primary, its replica, and one Sentinel that watches them with a quorum
// of one. Until AwaitFailover the Sentinel is patient with a silent primary: a busy
// machine must not look like a dead primary.
type SentinelSet struct {
	Name     string // of the set: "mymaster"
	Primary  *RedisServer
	Replica  *RedisServer
	Sentinel *RedisServer

	known map[*RedisServer]string // each server's address for the others
}

// follow makes a server a replica of the primary at that address, or a primary if the
// address is its own or "".
func (s *SentinelSet) follow(server *RedisServer, primary string) error {
	host, port, err := net.SplitHostPort(s.known[server])
	if err != nil {
		return err
	}
	_, err1 := server.Do("CONFIG", "SET", "replica-announce-ip", host)
	_, err2 := server.Do("CONFIG", "SET", "replica-announce-port", port)
	if primary != "" && primary != s.known[server] {
		if host, port, err = net.SplitHostPort(primary); err == nil {
			_, err = server.Do("REPLICAOF", host, port)
		}
	}
	return errors.Join(err1, err2, err)
}

// Rejoin makes a restarted server follow the primary that the Sentinel names, as a
// service manager would. Without it the server is a primary.
func (s *SentinelSet) Rejoin(server *RedisServer) error {
	primary, err := s.PrimaryAddr()
	if err != nil {
		return err
	}
	return s.follow(server, primary)
}

// Settled returns the server that the Sentinel calls the primary, and an error unless the
// other one follows it.
func (s *SentinelSet) Settled() (primary *RedisServer, err error) {
	at, err := s.PrimaryAddr()
	if err != nil {
		return nil, err
	}
	primary, replica := s.Primary, s.Replica
	if at == s.known[replica] {
		primary, replica = replica, primary
	}
	_, port, _ := net.SplitHostPort(at) // the Sentinel has it from us
	for _, want := range []string{"role:slave", "master_port:" + port, "master_link_status:up"} {
		if err := infoSays(replica, "replication", want); err != nil {
			return primary, err
		}
	}
	return primary, infoSays(primary, "replication", "role:master")
}

// RedisSentinel starts a SentinelSet whose replica is in sync.
func RedisSentinel(t TB) *SentinelSet {
	t.Helper()
	return RedisSentinelBehind(t, func(addr string) string { return addr })
}

// RedisSentinelBehind is RedisSentinel whose servers reach each other at the addresses
// that behind returns. The Sentinel tells clients those addresses as well.
func RedisSentinelBehind(t TB, behind func(addr string) string) *SentinelSet {
	t.Helper()
	set := &SentinelSet{Name: "mymaster", Primary: Redis(t), Replica: Redis(t)}
	set.known = map[*RedisServer]string{set.Primary: behind(set.Primary.Addr), set.Replica: behind(set.Replica.Addr)}
	if err := errors.Join(set.follow(set.Primary, ""), set.follow(set.Replica, set.known[set.Primary])); err != nil {
		t.Fatalf("make a replica: %v", err)
	}
	poll(t, "the replica in sync", func() error {
		info, err := set.Primary.Do("INFO", "replication")
		if err == nil && !strings.Contains(info, "state=online") {
			err = errors.New("the primary does not send to it yet")
		}
		return errors.Join(infoSays(set.Replica, "replication", "master_link_status:up"), err)
	})

	set.Sentinel = Sentinel(t, set.Name, set.known[set.Primary], 1, 10*time.Minute)
	_, replicaPort, _ := net.SplitHostPort(set.known[set.Replica])
	poll(t, "the sentinel that knows its replica", func() error {
		known, err := set.Sentinel.Do("SENTINEL", "REPLICAS", set.Name)
		if err == nil && !(hasLine(known, replicaPort) && hasLine(known, "slave")) { // else "slave,disconnected"
			err = errors.New("it has not met the replica yet")
		}
		return err
	})
	return set
}

// Sentinel starts a Sentinel that watches a primary. A server that was silent for
// downAfter is down for it; the primary is down if quorum Sentinels agree.
func Sentinel(t TB, name, primary string, quorum int, downAfter time.Duration) *RedisServer {
	t.Helper()
	host, port, err := net.SplitHostPort(primary)
	if err != nil {
		t.Fatalf("start sentinel: %v", err)
	}
	path := require(t, "redis-server", "redis-server")
	for attempt := 1; ; attempt++ {
		own, err := freePort()
		if err != nil {
			t.Fatalf("start sentinel: %v", err)
		}
		dir := freshDir(t)
		conf := filepath.Join(dir, "sentinel.conf") // Sentinel writes to it
		err = os.WriteFile(conf, fmt.Appendf(nil, `port %d
bind 127.0.0.1
protected-mode no
dir %s
sentinel monitor %s %s %s %d
sentinel down-after-milliseconds %[3]s %[7]d
sentinel failover-timeout %[3]s 3000
sentinel parallel-syncs %[3]s 2
`, own, dir, name, host, port, quorum, downAfter.Milliseconds()), 0o600)
		if err != nil {
			t.Fatalf("start sentinel: %v", err)
		}
		s, err := startRedis(t, path, dir, own, nil, []string{conf, "--sentinel"})
		if err == nil {
			return s
		}
		if !errors.Is(err, errExited) || attempt == 5 {
			t.Fatalf("start sentinel: %v", err)
		}
	}
}

// PrimaryAddr asks the Sentinel where the primary is.
func (s *SentinelSet) PrimaryAddr() (string, error) {
	reply, err := s.Sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Name)
	if err != nil {
		return "", err
	}
	host, port, ok := strings.Cut(reply, "\n")
	if !ok {
		return "", fmt.Errorf("the sentinel does not know %q", s.Name)
	}
	return net.JoinHostPort(host, port), nil
}

// AwaitFailover makes the Sentinel notice a dead primary within half a second, and
// returns when it names the replica and the replica accepts writes.
func (s *SentinelSet) AwaitFailover(t TB) {
	t.Helper()
	if _, err := s.Sentinel.Do("SENTINEL", "SET", s.Name, "down-after-milliseconds", "500"); err != nil {
		t.Fatalf("the fail-over: %v", err)
	}
	poll(t, "the fail-over", func() error {
		at, err := s.PrimaryAddr()
		if err != nil {
			return err
		}
		if at != s.known[s.Replica] {
			return fmt.Errorf("the primary is still %s", at)
		}
		return infoSays(s.Replica, "replication", "role:master")
	})
}

// Cluster is a Redis Cluster of three primaries without replicas.
type Cluster struct {
	Nodes [3]*RedisServer
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		addrs[i] = n.Addr
	}
	return addrs
}

// RedisCluster starts a Cluster that serves all slots. It takes two to three seconds, so
// SharedRedisCluster is often better.
func RedisCluster(t TB) *Cluster {
	t.Helper()
	var c Cluster
	var buses [3]int
	for i := range c.Nodes {
		c.Nodes[i] = redisNode(t, nil, func() ([]string, error) {
			// The default, port + 10000, may be taken.
			bus, err := freePort()
			buses[i] = bus
			return []string{
				"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
				"--cluster-node-timeout", "2000", "--cluster-port", strconv.Itoa(bus),
			}, err
		})
	}
	must := func(n *RedisServer, args ...string) {
		t.Helper()
		if _, err := n.Do(args...); err != nil {
			t.Fatalf("make a redis cluster: %s: %v", strings.Join(args, " "), err)
		}
	}
	const slots = 16384
	for i, n := range c.Nodes {
		first, next := i*slots/len(c.Nodes), (i+1)*slots/len(c.Nodes)
		must(n, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		must(n, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(next-1))
	}
	for i, n := range c.Nodes[1:] {
		host, port, _ := net.SplitHostPort(n.Addr) // it is one of ours
		must(c.Nodes[0], "CLUSTER", "MEET", host, port, strconv.Itoa(buses[i+1]))
	}
	for _, n := range c.Nodes {
		poll(t, "the cluster at "+n.Addr, func() error {
			info, err := n.Do("CLUSTER", "INFO")
			if err != nil {
				return err
			}
			for _, want := range []string{"cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3"} {
				if !hasLine(info, want) {
					return errors.New("not yet " + want)
				}
			}
			return nil
		})
	}
	for _, n := range c.Nodes { // from now on a busy machine must not look like a dead node
		must(n, "CONFIG", "SET", "cluster-node-timeout", "60000")
	}
	return &c
}

var sharedCluster shared[*Cluster]

// SharedRedisCluster returns the Cluster that the tests of this binary share. They touch
// only their own keys and do not stop it.
func SharedRedisCluster(t TB) *Cluster {
	t.Helper()
	return sharedCluster.get(t, RedisCluster)
}

func infoSays(s *RedisServer, section, line string) error {
	info, err := s.Do("INFO", section)
	if err == nil && !hasLine(info, line) {
		err = errors.New("not yet " + line)
	}
	return err
}

// poll repeats ask until it returns nil.
func poll(t TB, what string, ask func() error) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
