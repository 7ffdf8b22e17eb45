package testserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func ask(t *testing.T, s *RedisServer, args ...string) string {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return reply
}

func TestRedisKillAndRestart(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	ask(t, s, "SET", "k", "v")
	if got := ask(t, s, "GET", "k"); got != "v" {
		t.Fatalf("GET = %q", got)
	}
	first := s.Pid()
	s.Kill()
	if _, err := s.Do("PING"); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Kill() // once more is no harm
	s.Restart()
	if got := ask(t, s, "GET", "k"); got != "" {
		t.Errorf("GET after the restart = %q, want nothing: it keeps nothing on disk", got)
	}
	if s.Pid() == first {
		t.Error("the restarted server has the pid of the killed one")
	}
}

func TestRedisThatKeepsItsData(t *testing.T) {
	t.Parallel()
	s := Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	ask(t, s, "SET", "k", "v")
	s.Restart()
	if got := ask(t, s, "GET", "k"); got != "v" {
		t.Errorf("GET after the restart = %q, want what was written before the crash", got)
	}
}

func TestRedisFrozen(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s.Stop()
	fmt.Fprintf(conn, "PING\r\n")
	conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Fatalf("a frozen server answered (%d bytes)", n)
	}
	s.Cont()
	conn.SetReadDeadline(time.Now().Add(startTimeout))
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "+PONG\r\n" {
		t.Fatalf("after Cont: %q, %v", line, err)
	}
}

func TestSharedRedisIsOne(t *testing.T) {
	t.Parallel()
	a := SharedRedis(t)
	t.Run("another test", func(t *testing.T) {
		if b := SharedRedis(t); a != b {
			t.Error("the second test got a server of its own")
		}
	})
	if got := ask(t, a, "PING"); got != "PONG" {
		t.Errorf("PING = %q after another user of the shared server ended", got)
	}
}

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	set := RedisSentinel(t)
	if at, err := set.PrimaryAddr(); err != nil || at != set.Primary.Addr {
		t.Fatalf("PrimaryAddr = %q, %v; want %q", at, err, set.Primary.Addr)
	}
	ask(t, set.Primary, "SET", "k", "v")
	poll(t, "replication", func() error {
		if got, err := set.Replica.Do("GET", "k"); err != nil || got != "v" {
			return fmt.Errorf("GET from the replica: %q, %v", got, err)
		}
		return nil
	})
	set.Primary.Kill()
	set.AwaitFailover(t)
	if got := ask(t, set.Replica, "GET", "k"); got != "v" {
		t.Errorf("GET from the new primary = %q", got)
	}
	ask(t, set.Replica, "SET", "k", "w")
}

func TestClusterServesAllSlots(t *testing.T) {
	t.Parallel()
	c := SharedRedisCluster(t)
	served := 0
	for i := range 30 {
		key := fmt.Sprintf("key%d", i)
		for _, n := range c.Nodes {
			_, err := n.Do("SET", key, "v")
			if err == nil {
				served++
			} else if !strings.HasPrefix(err.Error(), "MOVED ") {
				t.Fatalf("SET %s: %v", key, err)
			}
		}
	}
	if served != 30 {
		t.Errorf("%d of 30 keys were served, each by one node", served)
	}
}

// TestChildrenDieWithACrashedTest starts a server in a copy of this binary,
// kills that one, and sees the server go.
func TestChildrenDieWithACrashedTest(t *testing.T) {
	if os.Getenv("BATON_TESTSERVER_CRASH") != "" {
		s := Redis(t)
		// A child of a child may write on for a while.
		writer := exec.Command("sh", "-c", `i=0; while [ $i -lt 10000 ] && : >"$1/$i"; do i=$((i + 1)); [ $i != 100 ] || echo; done 2>/dev/null`, "sh", filepath.Dir(s.dir))
		writes, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := writes.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("addr:", s.Addr, s.dir)
		select {} // until killed
	}
	t.Parallel()
	require(t, "redis-server", "redis-server")
	if !diesWithParent {
		t.Skip("only Linux ends children with their parent")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildrenDieWithACrashedTest$", "-test.v", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), "BATON_TESTSERVER_CRASH=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	at, dir, lines := "", "", bufio.NewScanner(out)
	for at == "" && lines.Scan() {
		if _, words, ok := strings.Cut(lines.Text(), "addr: "); ok {
			at, dir, _ = strings.Cut(words, " ")
		}
	}
	if at == "" {
		t.Fatal("the child started no server")
	}
	if _, err := do(at, "PING"); err != nil {
		t.Fatalf("the server does not answer while its parent lives: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	poll(t, "the end of the orphan", func() error {
		if _, err := do(at, "PING"); err == nil {
			return fmt.Errorf("it still answers on %s", at)
		}
		return nil
	})
	poll(t, "the end of its directory", func() error {
		if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) {
			return fmt.Errorf("%s is left behind: %v", filepath.Dir(dir), err)
		}
		return nil
	})
}

// recorder is a TB that remembers how a test would have ended.
type recorder struct {
	Program
	skipped, failed string
}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	panic(r)
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	panic(r)
}

func (r *recorder) run(f func(TB)) {
	defer func() {
		if p := recover(); p != nil && p != any(r) {
			panic(p)
		}
	}()
	f(r)
}

func TestMissingBinary(t *testing.T) {
	start := func(t TB) { require(t, "no-such-server", "no-such-package") }

	t.Setenv("BATON_REQUIRE_SERVERS", "")
	announced.Store("no-such-server", true) // it is not really missed
	var r recorder
	r.run(start)
	if r.failed != "" || !strings.Contains(r.skipped, "no-such-server") {
		t.Errorf("skipped %q, failed %q: want a skip that names the server", r.skipped, r.failed)
	}

	t.Setenv("BATON_REQUIRE_SERVERS", "1")
	r = recorder{}
	r.run(start)
	if r.skipped != "" || !strings.Contains(r.failed, "no-such-package") {
		t.Errorf("skipped %q, failed %q: want a failure that names the package", r.skipped, r.failed)
	}
}

func TestNothingStartsUnlessAsked(t *testing.T) {
	t.Setenv("BATON_REQUIRE_SERVERS", "")
	announced.Store("bash", true)
	var r recorder
	r.run(func(t TB) { require(t, "bash", "bash") }) // which is installed
	if !strings.Contains(r.skipped, "BATON_REQUIRE_SERVERS=1") {
		t.Errorf("skipped %q, want a skip that names the variable", r.skipped)
	}
	p := new(Program)
	defer p.Close()
	if path := require(p, "bash", "bash"); path == "" {
		t.Error("a program may start nothing either")
	}
}

func TestLong(t *testing.T) {
	for set, want := range map[string]bool{"": true, "1": false} {
		t.Setenv("BATON_LONG", set)
		var r recorder
		r.run(func(t TB) { Long(t) })
		if skipped := strings.Contains(r.skipped, "BATON_LONG=1"); skipped != want {
			t.Errorf("BATON_LONG=%q: skipped %v (%q)", set, skipped, r.skipped)
		}
	}
}

func TestServerThatDoesNotStart(t *testing.T) {
	require(t, "redis-server", "redis-server")
	var r recorder
	defer r.Close()
	r.run(func(t TB) { Redis(t, "--no-such-option", "1") })
	if !strings.Contains(r.failed, "no-such-option") {
		t.Errorf("failed %q: want what the server said", r.failed)
	}
}

func TestEverythingGoesWithTheTest(t *testing.T) {
	var dir, at string
	t.Run("test", func(t *testing.T) {
		s := Redis(t)
		dir, at = s.dir, s.Addr
	})
	if dir == "" {
		t.Skip("no server was started")
	}
	if _, err := do(at, "PING"); err == nil {
		t.Error("the server survived its test")
	}
	if left, _ := filepath.Glob(dir + "*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What was not tested is said once, by name.
func TestSkipIsAnnounced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stderr")
	open := func() (*os.File, error) { return os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) }
	for range 3 {
		announce(open, "lost-server")
	}
	said, err := os.ReadFile(file)
	if err != nil || strings.Count(string(said), "\n") != 1 {
		t.Fatalf("said %q, error %v", said, err)
	}
	for _, word := range []string{"internal/testserver", "lost-server", "make test"} {
		if !strings.Contains(string(said), word) {
			t.Errorf("%q does not name %s", said, word)
		}
	}
}

// A server that was stopped answers no request, whatever else the machine does.
func TestStopReturnsWhenTheServerStandsStill(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	for range 20 {
		s.Stop()
		c, err := net.Dial("tcp", s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "PING\r\n")
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // for what must not come
		if n, err := c.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d bytes, %v, from a server that stands still", n, err)
		}
		s.Cont()
		c.Close()
	}
}

func TestVariableNamesAnotherServer(t *testing.T) {
	const other = "/nowhere/valkey-server"
	t.Setenv("BATON_SERVER_REDIS", other)
	p := new(Program)
	defer p.Close()
	if path := require(p, "redis-server", "redis-server"); path != other {
		t.Errorf("the server is %q, want %q", path, other)
	}
	if path := require(p, "bash", "bash"); path == "" {
		t.Error("what has no variable is not found")
	}
}
