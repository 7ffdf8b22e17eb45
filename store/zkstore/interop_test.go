package zkstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/zkstore"
)

// These tests run the real programs of other projects beside ours, as separate
// processes, on one path.

const contenderEnv = "BATON_ZKSTORE_CONTENDER"

func TestMain(m *testing.M) {
	if os.Getenv(contenderEnv) != "" {
		if err := contend(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if classes != "" {
		os.RemoveAll(classes)
	}
	os.Exit(code)
}

var (
	classes string // where Contender.class is, once it was compiled
	compile sync.Mutex
)

// contenderClass compiles Contender.java for all tests, and returns where to.
func contenderClass(t *testing.T) string {
	t.Helper()
	compile.Lock()
	defer compile.Unlock()
	if classes != "" {
		return classes
	}
	dir, err := os.MkdirTemp("", "baton-classes-")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("javac", "-cp", strings.Join(jars, ":"), "-d", dir, "testdata/Contender.java").CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		t.Fatalf("javac: %v\n%s", err, out)
	}
	classes = dir
	return dir
}

// contend is our side: like Contender.java, with two goroutines that share the
// sections.
func contend(addr, key, kind, dir, sections string) error {
	ctx := context.Background()
	session := 20 * time.Second
	if sections == "hold" {
		session = 4 * time.Second // the test waits for its end
	}
	store, err := zkstore.Open(ctx, zkstore.Server{Addrs: []string{addr}, Session: session}, zkstore.Config{})
	if err != nil {
		return err
	}
	locks, err := baton.New(store, baton.Config{TTL: session / 2})
	if err != nil {
		return err
	}
	var options []baton.Option
	if kind == "read" {
		options = append(options, baton.Shared())
	}
	fmt.Println("ready")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	if sections == "hold" {
		if _, err := locks.Lock(ctx, key, options...); err != nil {
			return err
		}
		fmt.Println("held")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	n, err := strconv.Atoi(sections)
	if err != nil {
		return err
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for range n / len(errs) {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				lease, err := locks.Lock(ctx, key, options...)
				cancel()
				if err == nil {
					err = errors.Join(section(dir, kind == "read"), lease.Unlock())
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println("done")
	return store.Close()
}

// section must not be entered by two at once: the counter would lose an increment.
func section(dir string, reads bool) error {
	writer, readers, counter := filepath.Join(dir, "writer"), filepath.Join(dir, "readers"), filepath.Join(dir, "counter")
	if reads {
		own := filepath.Join(readers, fmt.Sprint(os.Getpid(), ".", rand.Uint64()))
		if err := os.WriteFile(own, nil, 0o600); err != nil {
			return err
		}
		defer os.Remove(own)
		if _, err := os.Stat(writer); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("overlap: a reader beside a writer (%w)", err)
		}
		time.Sleep(rand.N(3 * time.Millisecond)) // the work
		return nil
	}
	f, err := os.OpenFile(writer, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("overlap: two writers: %w", err)
	}
	f.Close()
	if others, err := os.ReadDir(readers); err != nil || len(others) > 0 {
		return fmt.Errorf("overlap: a writer beside %d readers (%w)", len(others), err)
	}
	text, err := os.ReadFile(counter)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	time.Sleep(rand.N(2 * time.Millisecond)) // the work
	if err := os.WriteFile(counter, []byte(strconv.Itoa(n+1)), 0o600); err != nil {
		return err
	}
	return os.Remove(writer)
}

var jars = []string{"/usr/share/java/curator-recipes.jar", "/usr/share/java/slf4j-simple.jar"}

// party is one process of a meeting.
type party struct {
	name     string
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *bufio.Reader
	sections int // that count
}

// meeting is a path on which processes meet.
type meeting struct {
	t    *testing.T
	addr string
	key  string
	dir  string
	all  []*party
}

func meet(t *testing.T) *meeting {
	t.Helper()
	server := testserver.SharedZooKeeper(t)
	m := &meeting{t: t, addr: server.Addr, key: strings.ReplaceAll(t.Name(), "/", "-"), dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(m.dir, "readers"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "counter"), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *meeting) join(name string, cmd *exec.Cmd, counts int) *party {
	m.t.Helper()
	p := &party{name: name, cmd: cmd, sections: counts}
	var err1, err2 error
	p.in, err1 = cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		m.t.Fatalf("%s: %v", name, err)
	}
	p.out = bufio.NewReader(out)
	m.t.Cleanup(func() {
		p.in.Close()
		_ = cmd.Process.Kill() // fails if it has ended
		_ = cmd.Wait()
	})
	m.all = append(m.all, p)
	return p
}

func (m *meeting) ours(kind, sections string) *party {
	cmd := exec.Command(os.Args[0], m.addr, m.key, kind, m.dir, sections)
	cmd.Env = append(os.Environ(), contenderEnv+"=1")
	return m.join("Baton "+kind, cmd, counts(kind, sections))
}

func (m *meeting) curator(kind, sections string) *party {
	for _, jar := range jars {
		testserver.NeedJar(m.t, jar, "libcurator-recipes-java")
	}
	cmd := testserver.JavaCommand(m.t, append([]string{contenderClass(m.t)}, jars...), "Contender", m.addr, "/"+m.key, kind, m.dir, sections)
	return m.join("Curator "+kind, cmd, counts(kind, sections))
}

func (m *meeting) kazoo(sections string) *party {
	testserver.NeedJar(m.t, "/usr/lib/python3/dist-packages/kazoo", "python3-kazoo")
	cmd := exec.Command("/usr/bin/python3", "testdata/contender.py", m.addr, "/"+m.key, m.dir, sections)
	return m.join("kazoo", cmd, counts("", sections))
}

func counts(kind, sections string) int {
	n, err := strconv.Atoi(sections)
	if err != nil || kind == "read" {
		return 0
	}
	return n
}

func (m *meeting) expect(p *party, want string) {
	m.t.Helper()
	line, err := p.out.ReadString('\n')
	if got := strings.TrimSpace(line); got != want {
		m.t.Fatalf("%s said %q (%v), want %q", p.name, got, err, want)
	}
}

func (m *meeting) begin(p *party) {
	m.t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		m.t.Fatalf("%s: %v", p.name, err)
	}
}

// run lets all begin at once and expects that all end well.
func (m *meeting) run() {
	m.t.Helper()
	want := 0
	for _, p := range m.all {
		m.expect(p, "ready")
		want += p.sections
	}
	for _, p := range m.all {
		m.begin(p)
	}
	for _, p := range m.all {
		m.expect(p, "done")
	}
	text, err := os.ReadFile(filepath.Join(m.dir, "counter"))
	if got := string(text); err != nil || got != strconv.Itoa(want) {
		m.t.Errorf("the counter is %s after %d sections (%v): updates were lost", got, want, err)
	}
}

func TestCuratorMutex(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	m := meet(t)
	for range 2 {
		m.ours("write", "300")
		m.curator("mutex", "100")
	}
	m.run()
}

func TestCuratorReadWriteLock(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	m := meet(t)
	m.ours("write", "100")
	m.ours("read", "100")
	m.curator("write", "60")
	m.curator("read", "60")
	m.run()
}

func TestKazooLock(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	m := meet(t)
	for range 2 {
		m.ours("write", "300")
		m.kazoo("100")
	}
	m.run()
}

// A process that is killed frees the lock with its session.
func TestTheKilledFreeTheLock(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	sides := map[string]func(m *meeting) (holder, next *party){
		"Curator's mutex": func(m *meeting) (*party, *party) { return m.curator("mutex", "hold"), m.ours("write", "2") },
		"kazoo's lock":    func(m *meeting) (*party, *party) { return m.kazoo("hold"), m.ours("write", "2") },
		"ours, Curator's mutex waits": func(m *meeting) (*party, *party) {
			return m.ours("write", "hold"), m.curator("mutex", "1")
		},
		"ours, Curator's readers wait": func(m *meeting) (*party, *party) {
			return m.ours("write", "hold"), m.curator("read", "1")
		},
		"ours, kazoo waits": func(m *meeting) (*party, *party) { return m.ours("write", "hold"), m.kazoo("1") },
	}
	// All at once: most of the time is the wait for the end of the sessions.
	var wg sync.WaitGroup
	for name, side := range sides {
		wg.Go(func() {
			t.Run(name, func(t *testing.T) {
				m := meet(t)
				holder, next := side(m)
				m.expect(holder, "ready")
				m.expect(next, "ready")
				m.begin(holder)
				m.expect(holder, "held")
				m.begin(next)
				if err := holder.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				m.expect(next, "done")
			})
		})
	}
	wg.Wait()
}

// A LeaderSelector leads under a mutex of Curator's on its path.
func TestCuratorLeaderSelector(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	m := meet(t)
	m.ours("write", "100")
	m.curator("selector", "15")
	m.run()
}

// TestCuratorRecipesApart shows what docs/coming-from/jvm-locks.md warns of: Baton does not
// see what these recipes have on the path of its lock.
func TestCuratorRecipesApart(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	for _, kind := range []string{"semaphore", "latch"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			m := meet(t)
			holder, next := m.curator(kind, "hold"), m.ours("write", "2")
			m.expect(holder, "ready")
			m.expect(next, "ready")
			m.begin(holder)
			m.expect(holder, "held")
			m.begin(next)
			m.expect(next, "done") // while the other holds
		})
	}
}
