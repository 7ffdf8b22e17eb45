//go:build unix

// Package clients tests the clients of the agent in other languages, as processes of
// their own, on an agent over a store in memory.
package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/agent"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/internal/testserver"
)

const (
	patience = time.Minute
	ttl      = 3 * time.Second
)

// A host has an agent and a folder in which its processes work.
type host struct {
	t     *testing.T
	dir   string
	store *batontest.Store
	stop  func() // the agent
}

func newHost(t *testing.T) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "clients-") // t.TempDir makes paths that are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{t: t, dir: dir, store: batontest.New(t)}
	locks, err := baton.New(h.store, baton.Config{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	server, err := agent.New(locks, agent.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := agent.Listen(h.file("agent.sock"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	h.serve(server, l)
	return h
}

func (h *host) serve(server *agent.Server, l net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(h.stop)
}

func (h *host) file(name string) string { return filepath.Join(h.dir, name) }

// A language is one that has a client.
type language struct {
	name  string
	count string                                      // a script that raises the number in a file $2 times
	hold  string                                      // one that locks the key "k", writes "held", and starts a child that lives as long as the input
	run   func(h *host, script, arg string) *exec.Cmd // a script
}

var languages = []language{{
	name: "python",
	count: `
import baton, sys
last = 0
for i in range(int(sys.argv[1])):
    with baton.lock("n") as lock:
        assert lock.token > last, "the token does not rise"
        last = lock.token
        with open("number") as f: n = int(f.read())
        with open("number", "w") as f: f.write(str(n + 1))
`,
	hold: `
import baton, subprocess
lock = baton.lock("k")
print("held", flush=True)
subprocess.run(["cat"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
`,
	run: func(h *host, script, arg string) *exec.Cmd {
		return h.command(testserver.Python(h.t), "-B", "-c", script, arg)
	},
}, {
	name: "bash",
	count: `
. "$CLIENTS/bash/baton.sh"
for ((i = 0; i < $1; i++)); do
	baton_lock n || { echo "$BATON_ERROR" >&2; exit 1; }
	read -r n <number
	echo $((n + 1)) >number
	baton_unlock || { echo "$BATON_ERROR" >&2; exit 1; }
done
`,
	hold: `
. "$CLIENTS/bash/baton.sh"
baton_lock k || exit
echo held
cat <&0 >/dev/null 2>&1 &
wait
`,
	run: func(h *host, script, arg string) *exec.Cmd {
		return h.command(testserver.Bash(h.t), "-c", script, "bash", arg)
	},
}}

// command is one that finds the clients and the agent.
func (h *host) command(program string, args ...string) *exec.Cmd {
	h.t.Helper()
	clients, err := os.Getwd()
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "BATON_AGENT="+h.file("agent.sock"), "CLIENTS="+clients, "PYTHONPATH="+filepath.Join(clients, "python"))
	cmd.WaitDelay = time.Second // a child may keep the output
	return cmd
}

// must runs a script that ends well, and returns what it prints.
func (h *host) must(l language, script, arg string) string {
	h.t.Helper()
	out, err := l.run(h, script, arg).CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", l.name, err, out)
	}
	return string(out)
}

// Processes in all languages raise one number: no two of them at the same time.
func TestNoUpdateIsLost(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if err := os.WriteFile(h.file("number"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const each, times = 3, 40
	var wg sync.WaitGroup
	for _, l := range languages {
		for range each {
			cmd := l.run(h, l.count, strconv.Itoa(times))
			wg.Go(func() {
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", l.name, err, out)
				}
			})
		}
	}
	wg.Wait()
	got, err := os.ReadFile(h.file("number"))
	if want := len(languages) * each * times; err != nil || strings.TrimSpace(string(got)) != strconv.Itoa(want) {
		t.Errorf("the number is %s, %v, want %d", got, err, want)
	}
}

// A process that is killed hands its lock over to the next one, in whatever language, and
// although a child of it lives on.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	type process struct {
		*exec.Cmd
		out *lines
	}
	start := func(l language) process {
		p := process{l.run(h, l.hold, ""), &lines{came: make(chan struct{})}}
		p.Stdout, p.Stderr = p.out, os.Stderr
		if _, err := p.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
		return p
	}
	for _, from := range languages {
		for _, to := range languages {
			first := start(from)
			first.out.await(t)
			second := start(to)
			h.awaitWaiter("k")
			if err := first.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			second.out.await(t)
			t.Logf("%s to %s: %v", from.name, to.name, time.Since(killed))
			_ = second.Process.Kill()
			_ = second.Wait()
		}
	}
}

// awaitWaiter waits until a client of the agent waits for key.
func (h *host) awaitWaiter(key string) {
	h.t.Helper()
	conn, err := net.Dial("unix", h.file("agent.sock"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewScanner(conn)
	for late := time.Now().Add(patience); in.Scan() && !strings.Contains(in.Text(), `"waiting"`); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			break
		}
		fmt.Fprintf(conn, `{"id":1,"do":"who","key":%q}`+"\n", key)
	}
	if !strings.Contains(in.Text(), `"waiting"`) {
		h.t.Fatalf("no client waits: %v, %s", in.Err(), in.Text())
	}
}

// lines is an output, of which the first is awaited.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	came chan struct{}
	once sync.Once
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.once.Do(func() { close(l.came) })
	return l.text.Write(p)
}

func (l *lines) await(t *testing.T) {
	t.Helper()
	select {
	case <-l.came:
	case <-time.After(patience):
		t.Fatal("it has not got the lock")
	}
}

// What each client does in what may happen.
func TestBehaviour(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			release := h.store.Hold("held", "another host")
			if out := h.must(l, behaviour[l.name], ""); !strings.HasSuffix(out, "done\n") {
				t.Errorf("it printed %s", out)
			}
			release()

			// The lock is lost while the process works.
			cmd := l.run(h, lost[l.name], "")
			out := &lines{came: make(chan struct{})}
			cmd.Stdout, cmd.Stderr = out, out
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			out.await(t)
			h.store.Lose("lost")
			fmt.Fprintln(in, "go on")
			if err := cmd.Wait(); err != nil || !strings.HasSuffix(out.text.String(), "lost\n") {
				t.Errorf("after the loss: %v, %s", err, out.text.String())
			}

			// There is no agent.
			h.stop()
			if out := h.must(l, gone[l.name], ""); out != "gone\n" {
				t.Errorf("without an agent: %s", out)
			}
		})
	}
}

var behaviour = map[string]string{
	"python": `
import baton, os
with baton.lock("k", wait=5, max_hold=60) as lock:
    assert isinstance(lock.token, int) and lock.token > 0
    assert 0.5 < lock.check() < 3, lock.check()
    try:
        baton.lock("k", wait=0)
        assert False, "the lock is held twice"
    except baton.Held as e:
        assert e.args[0] == "held" and str(os.getpid()) in e.args[1], e
    pid = os.fork()
    if pid == 0:
        try:
            lock.check()
            os._exit(1)
        except baton.Error:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the child used the session"
    who = baton.Session().ask("who", key="k")["locks"]
    assert [w["pid"] for w in who] in ([os.getpid()], [0]), who
    lock.unlock()
    lock.unlock()
second = baton.lock("k", wait=0)
assert second.token > lock.token
second.unlock()
try:
    baton.lock("held", wait=0.2)
    assert False
except baton.Held as e:
    assert "another host" in e.args[1], e
try:
    baton.lock("held", wait=0.0004)  # which is not 0: no wait
    assert False
except baton.Held as e:
    assert "deadline" in e.args[1], e
with baton.lock("r", shared=True), baton.lock("r", wait=0, shared=True):
    pass
with baton.lock("p", permits=(2, 3)):
    try:
        baton.lock("p", wait=0, permits=(2, 3))
        assert False
    except baton.Held:
        pass
session = baton.Session()
a, b = baton.Lock(session, "a"), baton.Lock(session, "b\u00e9\n".strip())
try:
    baton.Lock(session, "a")
    assert False
except baton.Error as e:
    assert e.args[0] == "nested", e
try:
    session.ask("lock", key="x", wait=5)
    assert False
except baton.Error as e:
    assert e.args[0] == "bad" and "wait_ms" in e.args[1], e
a.unlock()
session.close()
baton.lock("b\u00e9", wait=5).unlock()
try:
    with baton.lock("k"):
        raise KeyError("of the work")
except KeyError:
    pass
print("done")
`,
	"bash": `
. "$CLIENTS/bash/baton.sh"
set -u
fail() { echo "failed: $* ($BATON_ERROR)"; exit 1; }
code() { local want=$1 got=0; shift; "$@" || got=$?; [[ $got == "$want" ]] || fail "$@" "is $got, want $want"; }
baton_lock k 5000 60000 || fail lock
[[ $BATON_TOKEN =~ ^[0-9]+$ ]] || fail "token $BATON_TOKEN"
first=$BATON_TOKEN
(code 69 baton_check; code 69 baton_unlock; code 69 baton_lock other) || exit
[[ $(baton_check; echo $?) == 69 ]] || fail "check in a substitution"
baton_check 500 || fail check
code 79 baton_check 60000
code 69 baton_lock other
baton_unlock || fail unlock
[[ -z ${BATON_TOKEN-} ]] || fail "a token without a lock"
code 79 baton_check
code 75 baton_lock held 0
code 75 baton_lock held 200
code 69 baton_lock 'a"b'
code 69 baton_lock $'\e'
baton_lock k 0 || fail again
[[ $BATON_TOKEN -gt $first ]] || fail "the token does not rise"
baton_unlock || fail unlock
set -e
baton_lock k 0
baton_check
baton_unlock
echo done
`,
}

var lost = map[string]string{
	"python": `
import baton, sys
lock = baton.lock("lost")
print("held", flush=True)
sys.stdin.readline()
try:
    lock.check()
except baton.Lost as e:
    assert "not know it any more" in e.args[1], e
try:
    lock.unlock()
except baton.Lost:
    print("lost")
`,
	"bash": `
. "$CLIENTS/bash/baton.sh"
baton_lock lost || exit
echo held
read -r _
baton_check && exit 1
[[ $BATON_ERROR == *'"cause":"gone"'* ]] || { echo "$BATON_ERROR"; exit 2; }
baton_unlock && exit 3
echo lost
`,
}

var gone = map[string]string{
	"python": `
import baton
try:
    baton.lock("k")
except baton.Error as e:
    assert e.args[0] == "agent", e
    print("gone")
`,
	"bash": `
. "$CLIENTS/bash/baton.sh"
baton_lock k || { [[ $? == 69 ]] && echo gone; }
`,
}

// What was promised outlives an agent that is stopped, if the process has not looked.
func TestPromiseOutlivesTheAgent(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		h := newHost(t)
		cmd := l.run(h, l.hold, "")
		out := &lines{came: make(chan struct{})}
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		out.await(t)
		h.stop()
		if n := len(h.store.Holders("k")); n != 1 {
			t.Errorf("%s: when the agent has ended there are %d holders", l.name, n)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for late := time.Now().Add(patience); len(h.store.Holders("k")) != 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("%s: the lock does not expire", l.name)
			}
		}
	}
}

// An agent that is late, or answers what was not asked, is not believed.
func TestAnswersThatAreNotBelieved(t *testing.T) {
	t.Parallel()
	scripts := map[string]string{
		"python": `
import baton
def lost(f):
    try:
        return f() < 0
    except baton.Lost:
        return True
lock = baton.lock("late")
assert lost(lock.check)
lock = baton.lock("stale")
assert lost(lock.check) and lost(lock.check)
print("done")
`,
		"bash": `
. "$CLIENTS/bash/baton.sh"
baton_lock late || exit
baton_check; [[ $? == 79 ]] || exit 1
baton_unlock
baton_lock stale || exit
baton_check; [[ $? == 79 ]] || exit 2
baton_check; [[ $? == 79 && $BATON_ERROR == "no lock" ]] || exit 3
baton_lock late || exit
TMOUT=0.1
baton_check; [[ $? == 79 ]] || exit 4
baton_check; [[ $? == 79 && $BATON_ERROR == "no lock" ]] || exit 5
echo done
`,
	}
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.stop()
			listener, err := agent.Listen(h.file("agent.sock"), 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go answerBadly(conn)
				}
			}()
			if out := h.must(l, scripts[l.name], ""); out != "done\n" {
				t.Errorf("%s printed %s", l.name, out)
			}
		})
	}
}

// answerBadly is an agent that is slow to answer a check of the lock "late", and answers
// one of the lock "stale" with what another request was answered.
func answerBadly(conn net.Conn) {
	defer conn.Close()
	fmt.Fprintln(conn, `{"ok":true,"v":1,"store":"memory"}`)
	in := bufio.NewScanner(conn)
	for stale := false; in.Scan(); {
		var r struct {
			ID      int64
			Do, Key string
		}
		if json.Unmarshal(in.Bytes(), &r) != nil {
			return
		}
		switch {
		case r.Do == "lock":
			stale = r.Key == "stale"
			fmt.Fprintf(conn, `{"id":%d,"ok":true,"token":"1","remaining_ms":60000}`+"\n", r.ID)
		case r.Do == "check" && stale:
			fmt.Fprintln(conn, `{"id":1,"ok":true,"remaining_ms":60000}`)
		case r.Do == "check":
			time.Sleep(time.Second) // more than what is left
			fmt.Fprintf(conn, `{"id":%d,"ok":true,"remaining_ms":900}`+"\n", r.ID)
		default:
			fmt.Fprintf(conn, `{"id":%d,"ok":true}`+"\n", r.ID)
		}
	}
}

// The Python of the pages runs.
func TestPages(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, page := range []string{"../docs/agent.md", "python/README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```python\n(.*?)```").FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			t.Errorf("%s has no Python", page)
		}
		for _, block := range blocks {
			h.must(languages[0], "write = pay = print\n"+strings.ReplaceAll(block[1], "pay()", "print()"), "")
		}
	}
}

// The clients stay small enough to be read before they are copied.
func TestClientsAreSmall(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"python/baton.py", "bash/baton.sh"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n > 125 {
			t.Errorf("%s has %d lines", name, n)
		}
	}
}
