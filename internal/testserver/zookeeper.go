package testserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// zookeeperJar is the server as Debian installs it. It names the other jars.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

// ZooKeeperServer is one ZooKeeper process.
type ZooKeeperServer struct {
	Process

	// Addr is where it listens for clients: "127.0.0.1:port". It survives
	// Restart.
	Addr string
}

// NeedZooKeeper skips the test if it may not start ZooKeeper.
func NeedZooKeeper(t TB) {
	t.Helper()
	java(t)
}

// java returns the path of java, and the class path of the server.
func java(t TB) (path, classes string) {
	t.Helper()
	path = require(t, "java", "openjdk-17-jdk-headless")
	return path, NeedJar(t, zookeeperJar, "zookeeper")
}

// NeedJar is require for a file of a package without a binary.
func NeedJar(t TB, file, install string) (path string) {
	t.Helper()
	return find(t, file, install, func() (string, error) {
		_, err := os.Stat(file)
		return file, err
	})
}

// ZooKeeper starts a single server with the default ticks of 2 s. It keeps its data
// through a Restart, and does not wait for the disk. lines are added to its
// configuration, for example "tickTime=200"; those that begin with "-" are for the Java
// machine.
func ZooKeeper(t TB, lines ...string) *ZooKeeperServer {
	t.Helper()
	return zooKeeperOn(t, freshDir(t), lines...)
}

// ZooKeeperOn is ZooKeeper with the data in the directory data below dir.
func ZooKeeperOn(t TB, dir string, lines ...string) *ZooKeeperServer {
	t.Helper()
	return zooKeeperOn(t, dir, lines...)
}

func zooKeeperOn(t TB, dir string, lines ...string) *ZooKeeperServer {
	t.Helper()
	path, classes := java(t)
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			t.Fatalf("start zookeeper: %v", err)
		}
		s := newZooKeeper(t, path, classes, dir, port, "org.apache.zookeeper.server.ZooKeeperServerMain", lines)
		if err := s.configure(port, lines); err != nil {
			t.Fatalf("start zookeeper: %v", err)
		}
		err = s.start()
		if err == nil {
			t.Cleanup(s.Kill)
			return s
		}
		if !errors.Is(err, errExited) || attempt == 5 {
			t.Fatalf("start zookeeper: %v", err)
		}
	}
}

var sharedZooKeeper shared[*ZooKeeperServer]

// SharedZooKeeper returns the single server that the tests of this binary share. They
// touch only their own nodes and do not stop it.
func SharedZooKeeper(t TB) *ZooKeeperServer {
	t.Helper()
	return sharedZooKeeper.get(t, func(t TB) *ZooKeeperServer { return ZooKeeper(t) })
}

func newZooKeeper(t TB, java, classes, dir string, port int, main string, lines []string) *ZooKeeperServer {
	s := &ZooKeeperServer{Addr: addr(port)}
	args := []string{
		"-Xms64m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
	}
	if !stalls(t) {
		args = append(args, "-Dzookeeper.forceSync=no")
	}
	for _, l := range lines {
		if strings.HasPrefix(l, "-") {
			args = append(args, l)
		}
	}
	args = append(args, "-cp", dir+":"+classes+":/usr/share/java/slf4j-simple.jar", main, filepath.Join(dir, "zoo.cfg"))
	s.Process = Process{t: t, path: java, args: args, dir: dir, ready: func(int) error {
		// The server may never answer a request that arrives during its start.
		conf, err := s.ask("conf", 500*time.Millisecond)
		if err != nil {
			return err
		}
		// Another server may have taken the port first.
		if !strings.Contains(conf, dir) {
			return fmt.Errorf("another server answers on %s, or it is not ready: %.60q", s.Addr, conf)
		}
		_, err = s.Mode()
		return err
	}}
	return s
}

func (s *ZooKeeperServer) configure(port int, lines []string) error {
	data := filepath.Join(s.dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	text := fmt.Sprintf(`tickTime=2000
dataDir=%s
clientPort=%d
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
`, data, port)
	for _, l := range lines { // the last line of a name wins
		if !strings.HasPrefix(l, "-") {
			text += l + "\n"
		}
	}
	return os.WriteFile(filepath.Join(s.dir, "zoo.cfg"), []byte(text), 0o600)
}

// Ask sends one of ZooKeeper's commands of four letters.
func (s *ZooKeeperServer) Ask(command string) (string, error) {
	return s.ask(command, 5*time.Second)
}

func (s *ZooKeeperServer) ask(command string, within time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(within)) // an error shows at the next use
	if _, err := io.WriteString(c, command); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// Mode is the role of the server: "standalone", "leader", "follower".
func (s *ZooKeeperServer) Mode() (string, error) {
	text, err := s.Ask("srvr")
	if err != nil {
		return "", err
	}
	for l := range strings.Lines(text) {
		if mode, ok := strings.CutPrefix(l, "Mode: "); ok {
			return strings.TrimSpace(mode), nil
		}
	}
	return "", fmt.Errorf("it does not serve: %.60q", text)
}

// Counters are the counts of a server.
type Counters struct {
	Requests int64 // packets received, those of Ask and pings included
	Commits  int64 // transactions, failed ones included
}

// Count reads the counters. Only differences mean something.
func (s *ZooKeeperServer) Count(t TB) Counters {
	t.Helper()
	text, err := s.Ask("srvr")
	if err != nil {
		t.Fatalf("count: %v", err)
	}
	var c Counters
	for l := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(l), ": ")
		switch name {
		case "Received":
			c.Requests, err = strconv.ParseInt(value, 10, 64)
		case "Zxid":
			c.Commits, err = strconv.ParseInt(strings.TrimPrefix(value, "0x"), 16, 64)
		}
		if err != nil {
			t.Fatalf("count: %v", err)
		}
	}
	return c
}

// Ensemble is three ZooKeeper servers that elect a leader.
type Ensemble struct {
	Nodes [3]*ZooKeeperServer
}

// Addrs returns the addresses of all nodes.
func (e *Ensemble) Addrs() []string {
	addrs := make([]string, len(e.Nodes))
	for i, n := range e.Nodes {
		addrs[i] = n.Addr
	}
	return addrs
}

// AwaitLeader returns the index of the node that leads, once one does.
func (e *Ensemble) AwaitLeader(t TB) int {
	t.Helper()
	leader := -1
	poll(t, "a leader", func() error {
		for i, n := range e.Nodes {
			if mode, err := n.Mode(); err == nil && mode == "leader" {
				leader = i
				return nil
			}
		}
		return errors.New("nobody leads")
	})
	return leader
}

// ZooKeeperEnsemble starts an Ensemble. peer, if not nil, returns the address by which
// node from reaches an address of node to; nodes count from 0. It is called twice for
// each pair, before any node starts: first for the address for elections, then for the
// one for a leader's followers. For elections a node also tells the others its own
// address, and nodes with a greater index use that. lines are as in ZooKeeper.
func ZooKeeperEnsemble(t TB, peer func(from, to int, addr string) string, lines ...string) *Ensemble {
	t.Helper()
	path, classes := java(t)
	var e Ensemble
	var quorum, election [3]int
	for i := range e.Nodes {
		var err1, err2, err3 error
		var client int
		quorum[i], err1 = freePort()
		election[i], err2 = freePort()
		client, err3 = freePort()
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatalf("start zookeeper: %v", err)
		}
		e.Nodes[i] = newZooKeeper(t, path, classes, freshDir(t), client, "org.apache.zookeeper.server.quorum.QuorumPeerMain", lines)
	}
	for i, n := range e.Nodes {
		_, port, _ := net.SplitHostPort(n.Addr) // it is one of ours
		client, _ := strconv.Atoi(port)
		own := []string{"initLimit=10", "syncLimit=5"}
		for j := range e.Nodes {
			votes, at := addr(election[j]), addr(quorum[j])
			if peer != nil && i != j {
				votes, at = peer(i, j, votes), peer(i, j, at)
			}
			_, port, _ := net.SplitHostPort(votes) // it is one of ours
			own = append(own, fmt.Sprintf("server.%d=%s:%s", j+1, at, port))
		}
		if err := n.configure(client, slices.Concat(own, lines)); err != nil {
			t.Fatalf("start zookeeper: %v", err)
		}
		if err := os.WriteFile(filepath.Join(n.dir, "data", "myid"), []byte(strconv.Itoa(i+1)), 0o600); err != nil {
			t.Fatalf("start zookeeper: %v", err)
		}
	}
	errs := make([]error, len(e.Nodes))
	var wg sync.WaitGroup
	for i, n := range e.Nodes {
		t.Cleanup(n.Kill)
		wg.Go(func() { errs[i] = n.start() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("start zookeeper: %v", err)
	}
	return &e
}

var sharedEnsemble shared[*Ensemble]

// SharedZooKeeperEnsemble returns the Ensemble that the tests of this binary share. They
// touch only their own nodes and do not stop it.
func SharedZooKeeperEnsemble(t TB) *Ensemble {
	t.Helper()
	return sharedEnsemble.get(t, func(t TB) *Ensemble { return ZooKeeperEnsemble(t, nil) })
}

// RunJava runs a Java source of one file to its end and returns its output.
func RunJava(t TB, jars []string, source string, args ...string) (string, error) {
	t.Helper()
	cmd := JavaCommand(t, jars, source, args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// JavaCommand makes the command that runs a class, or a source of one file, with the
// jars.
func JavaCommand(t TB, jars []string, class string, args ...string) *exec.Cmd {
	t.Helper()
	path, _ := java(t)
	cmd := exec.Command(path, slices.Concat([]string{
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
		"-cp", strings.Join(jars, ":"), class,
	}, args)...)
	cmd.SysProcAttr = childAttr()
	return cmd
}
