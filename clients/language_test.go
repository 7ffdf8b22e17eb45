//go:build unix

package clients

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// Abilities that not every client has.
const (
	several     = "several locks in one session, other requests"
	told        = "hears of a loss while it works"
	renews      = "the lock is renewed while the program works"
	bounded     = "a bound for a process that is stopped"
	final       = "`once` records a failure that is final"
	anyNumber   = "infinity is no bound, NaN is refused"
	threaded    = "may be used by several threads"
	interrupted = "a signal, or an interrupt, ends a wait"
	forgotten   = "a lock that the program forgets is free"
	forked      = "the child of a fork cannot use the lock, nor release it"
	spawned     = "a child process does not keep the lock"
	freed       = "the lock of a process that dies is free at once"
	settles     = "several rules in one `take`, a cost that is known later"
)

var abilities = []string{several, told, renews, bounded, final, anyNumber, threaded, interrupted, forgotten, forked, spawned, freed, settles}

// A language is a client: one for the agent, or one for servers.
type language struct {
	name   string
	files  []string
	driver func(*testing.T) []string // a command
	cannot map[string]string         // of abilities, with the reason in README.md
	http   bool                      // it is for servers
}

// everyday are the clients of every test run. Only the long tests try the others.
var everyday = []string{"Python", "Node", "Python, HTTP", "Node, HTTP"}

// wanted skips the test of a language that only the long tests try.
func (l language) wanted(t *testing.T) {
	t.Helper()
	if !slices.Contains(everyday, l.name) {
		testserver.Long(t)
	}
}

// tried are the clients of this run, for tests of several at once: those of the agent, or
// those of servers.
func tried(http bool) (some []language) {
	for _, l := range languages {
		if l.http == http && (os.Getenv("BATON_LONG") == "1" || slices.Contains(everyday, l.name)) {
			some = append(some, l)
		}
	}
	return some
}

func (l language) can(ability string) bool { return l.cannot[ability] == "" }

// cannotHTTP adds to cannot what no client for servers can.
func cannotHTTP(cannot map[string]string) map[string]string {
	cannot[several], cannot[bounded], cannot[freed] = "no session", "its `ttl`", "after its `ttl`"
	return cannot
}

const java = "java/src/main/java/io/github/batonhq/baton/"

var (
	languages = []language{
		{"Python", []string{"python/baton/__init__.py", "python/baton/common.py"}, driveWith(pythonProgram, "-B", "testdata/driver.py"), map[string]string{
			told:    "no: ask `check`",
			settles: "by `ask`",
		}, false},
		{"Node", []string{"node/baton.mjs"}, driveWith(testserver.Node, "testdata/driver.mjs"), map[string]string{
			interrupted: "no",
			forgotten:   "no",
			forked:      "no fork",
			settles:     "by `ask`",
		}, false},
		{"PHP", []string{"php/baton.php"}, driveWith(testserver.PHP, "testdata/driver.php"), map[string]string{
			told:     "no: ask `check`",
			threaded: "no threads",
			spawned:  "only by `descriptors`",
			settles:  "by `ask`",
		}, false},
		{"Java", []string{java + "Baton.java", java + "Session.java", java + "Json.java"}, javaDriver, map[string]string{
			settles:   "by `ask`",
			told:      "no: ask `check`",
			anyNumber: "a `Duration`",
			forgotten: "no",
			forked:    "no fork",
		}, false},
		{"bash", []string{"bash/baton.sh"}, driveWith(testserver.Bash, "testdata/driver.sh"), map[string]string{
			several:     "no: one lock at a time",
			told:        "no: ask `baton_check`",
			final:       "no",
			anyNumber:   "an integer",
			threaded:    "no threads",
			interrupted: "no",
			forgotten:   "no",
			settles:     "no",
		}, false},
		{"Python, HTTP", []string{"python/baton/http.py"}, driveWith(pythonProgram, "-B", "testdata/driver.py"), cannotHTTP(map[string]string{
			told: "no: ask `check`",
		}), true},
		{"Node, HTTP", []string{"node/baton_http.mjs"}, driveWith(testserver.Node, "testdata/driver.mjs"), cannotHTTP(map[string]string{
			interrupted: "no",
			forgotten:   "no",
			forked:      "no fork",
		}), true},
		{"PHP, HTTP", []string{"php/baton_http.php"}, driveWith(testserver.PHP, "testdata/driver.php"), cannotHTTP(map[string]string{
			told:     "no: ask `check`",
			renews:   "no: `check` renews it",
			threaded: "no threads",
		}), true},
		{"Java, HTTP", []string{java + "BatonHttp.java"}, javaDriver, cannotHTTP(map[string]string{
			settles:   "by `ask`",
			told:      "no: ask `check`",
			anyNumber: "a `Duration`",
			forgotten: "no",
			forked:    "no fork",
		}), true},
	}

	buildJava = compile("javac", "-Werror", "-Xlint:all,-serial,-try", "--release", "17", "-sourcepath", "java/src/main/java",
		"-d", "BUILT/java", "testdata/Driver.java")

	// javaFlags are for programs that end soon.
	javaFlags = []string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"}
)

func javaDriver(t *testing.T) []string {
	t.Helper()
	program := testserver.Java(t)
	if err := buildJava(); err != nil {
		t.Fatal(err)
	}
	return slices.Concat([]string{program}, javaFlags, []string{"-cp", filepath.Join(built, "java"), "Driver"})
}

// driveWith is the command that runs a script.
func driveWith(program func(testserver.TB) string, args ...string) func(*testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		return append([]string{program(t)}, args...)
	}
}

// pythonProgram is the interpreter itself, not a script that finds it.
func pythonProgram(t testserver.TB) string {
	t.Helper()
	found := testserver.Python(t)
	path, err := realPython(found)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return path
}

var realPython = func() func(string) (string, error) {
	var once sync.Once
	var out []byte
	var err error
	return func(found string) (string, error) {
		once.Do(func() { out, err = exec.Command(found, "-c", "import sys; print(sys.executable)").Output() })
		return strings.TrimSpace(string(out)), err
	}
}()

// A process is a program of testdata, which is told what to do:
//
//	lock KEY WAIT_MS BOUND KIND [VALUE] "-" for none; BOUND is max_hold_ms, or the ttl of a lock over HTTP; the kind is "shared"
//	                                    or "2/3"; a number may be "NaN" or "inf"; the answer has the token
//	try KEY                             the answer has the token, or "none"
//	check                               the answer has the milliseconds that are left
//	unlock
//	forget                              it drops what it knows of the lock
//	told                                waits for a loss
//	once KEY WAIT_MS WORK TEXT          the work is to return TEXT as the "result", to "fail" for good with it, to "raise" another
//	                                    error, or to "block", which it says, until the pipe TEXT ends; the answer has the result,
//	                                    and the number of the attempt, 0 if it has run nothing
//	take RULE KEY COST                  the answer is "true" or "false", what remains, and when to come again, -1 for never
//	settle RULE KEY COST SPENT          takes COST of KEY and of KEY-also as an estimate, and settles it as SPENT, and as 0 then; the
//	                                    answer has what remained, and what remains of each in the end
//	leader KEY                          the answer has value and token, or "none"
//	raise KEY                           an error comes out of the work under the lock
//	interrupt KEY                       a signal, or an interrupt, ends the wait for the lock
//	threads KEY                         several threads use the client at once
//	count KEY FILE TIMES                raises the number in a file, each time under the lock
//	spawn FILE                          starts a child that lives until the pipe FILE ends
//	fork                                a child that was forked uses the lock, and ends
//	api KEY                             what only this language has
//
// It answers with a line: "ok", "held", "lost", "failed", "raised" or "error", and more. Before an error that has the
// result of the work it says "kept", and the result.
type process struct {
	t    *testing.T
	l    language
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  chan string
	gone chan struct{}
}

// start starts a process that uses the agent at the socket, or the servers at the URLs.
func (l language) start(t *testing.T, socket string) *process {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	command := l.driver(t)
	p := &process{t: t, l: l, cmd: exec.Command(command[0], command[1:]...), out: make(chan string, 100), gone: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "BATON_AGENT="+socket, fmt.Sprintf("TTL=%d", ttl.Milliseconds()), "CLIENTS="+here, "PYTHONPATH="+filepath.Join(here, "python"))
	if strings.HasPrefix(socket, "http:") {
		p.cmd.Env = append(p.cmd.Env, "BATON_SERVER="+socket)
	}
	p.cmd.Stderr = t.Output()
	p.cmd.WaitDelay = time.Second // a child may keep the output
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testserver.Start(p.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			p.out <- in.Text()
		}
		_ = p.cmd.Wait() // it is killed
		close(p.gone)
	}()
	t.Cleanup(func() { p.kill(); <-p.gone })
	return p
}

func (p *process) kill() { _ = p.cmd.Process.Kill() } // fails only if it has ended

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) send(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatalf("%s: %v", p.l.name, err)
	}
}

func (p *process) answer() string {
	p.t.Helper()
	return p.answerWithin(patience)
}

func (p *process) answerWithin(patience time.Duration) string {
	p.t.Helper()
	select {
	case line := <-p.out:
		return line
	case <-p.gone:
		select {
		case line := <-p.out:
			return line
		default:
			p.t.Fatalf("%s has ended", p.l.name)
		}
	case <-time.After(patience):
		p.t.Fatalf("%s does not answer", p.l.name)
	}
	return ""
}

// expect waits for an answer that begins with want.
func (p *process) expect(want, why string) string {
	p.t.Helper()
	return p.expectWithin(patience, want, why)
}

func (p *process) expectWithin(patience time.Duration, want, why string) string {
	p.t.Helper()
	got := p.answerWithin(patience)
	if got != want && !strings.HasPrefix(got, want+" ") {
		p.t.Fatalf("%s: %s: it answers %q, want %q", p.l.name, why, got, want)
	}
	return got
}

// must sends an order to the process, and expects an answer.
func (p *process) must(want, format string, args ...any) string {
	p.t.Helper()
	p.send(format, args...)
	return p.expect(want, fmt.Sprintf(format, args...))
}

// number is the rest of an answer that begins with "ok".
func (p *process) number(format string, args ...any) int64 {
	p.t.Helper()
	got := p.must("ok", format, args...)
	n, err := strconv.ParseInt(strings.TrimPrefix(got, "ok "), 10, 64)
	if err != nil {
		p.t.Fatalf("%s: %s: %q is no number", p.l.name, fmt.Sprintf(format, args...), got)
	}
	return n
}

// lock locks a key, and returns the token.
func (p *process) lock(key string) int64 {
	p.t.Helper()
	return p.number("lock %s - - -", key)
}

// promise asks how long the lock is certain, and returns the end. The request is sent after this
// function began, so the end is too early, not too late.
func (p *process) promise() time.Time {
	p.t.Helper()
	asked := time.Now()
	left := time.Duration(p.number("check")) * time.Millisecond
	if left <= 0 || left > ttl {
		p.t.Errorf("%s: check tells %v of a TTL of %v", p.l.name, left, ttl)
	}
	return asked.Add(left)
}

// awaitLoss returns once check says that the lock is lost.
func (p *process) awaitLoss() {
	p.t.Helper()
	for late := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		p.send("check")
		if got := p.answer(); strings.HasPrefix(got, "lost ") {
			return
		} else if time.Now().After(late) {
			p.t.Fatalf("%s: after the loss check answers %q", p.l.name, got)
		}
	}
}
