//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	// Programs with the race detector sleep for a second before they end.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	// Under nohup HUP is ignored, and every child would inherit that. What is caught here
	// is as usual in the children; those that are baton or helper begin here, too.
	if name := filepath.Base(os.Args[0]); name != "baton" && name != "helper" && signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	testscript.Main(m, map[string]func(){"baton": manned, "helper": helper})
}

// manned is baton as at a terminal, unless CRON says otherwise: most scripts wait for what
// it says, or look at that.
func manned() {
	if os.Getenv("CRON") == "" {
		attended = func(*os.File) bool { return true }
	}
	main()
}

// Each script in testdata/script is a case. Beside the commands of testscript
// it may use
//
//	exits CODE PROGRAM ARG…   run a program and demand its exit code
//	start NAME PROGRAM ARG…   start one in the background; what it prints goes to NAME.out and NAME.err
//	signal NAME SIGNAL        send it a signal: INT, KILL, …
//	ends NAME CODE            wait for it and demand its exit code, or the signal's name;
//	                          CODE|CODE is either
//	waiting N KEY             wait until N requests wait in the queue of a lock
//	[!] await FILE REGEXP     wait until the file has such a line, or, with !, has none
//	gone FILE                 wait until the process whose number is in the file is gone
//	[!] runs FILE             demand that it runs now, or, with !, that it does not
//	lint FILE…                demand that Prometheus' own tool, if it is there, accepts these metrics
//	json PATH REGEXP          demand a value in the JSON that the last program printed
//
// The store is a SQLite file of the script's own.
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/script", nil)
}

func runScripts(t *testing.T, dir string, setup func(*testscript.Env) error) {
	docs, err := filepath.Abs("../../docs")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                dir,
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			if err := os.Chmod(env.WorkDir, 0o755); err != nil { // whatever the umask is: an agent looks at it
				return err
			}
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			env.Setenv("GORACE", os.Getenv("GORACE"))
			env.Setenv("DOCS", docs)
			env.Setenv("TAB", "\t")
			env.Setenv("DAY", time.Now().Format(time.DateOnly))
			env.Setenv("ESC", "\x1b[2J")
			env.Setenv("RTL", "a\u202eb")
			env.Setenv("LONG", strings.Repeat("k", 513))
			env.Values[programs{}] = map[string]*program{}
			if setup != nil {
				return setup(env)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits, "start": cmdStart, "signal": cmdSignal, "ends": cmdEnds,
			"await": cmdAwait, "waiting": cmdWaiting, "gone": cmdGone, "runs": cmdRuns, "json": cmdJSON, "lint": cmdLint,
			"redis": cmdRedis, "sql": cmdSQL, "freeze": cmdFreeze, "thaw": cmdThaw,
		},
	})
}

// patience bounds every wait. Nothing takes nearly that long on an idle
// machine.
const patience = 30 * time.Second

func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	err := ts.Exec(args[1], args[2:]...)
	failure, ok := errors.AsType[*exec.ExitError](err)
	if err != nil && !ok {
		ts.Fatalf("%v", err)
	}
	code := 0
	if ok {
		code = failure.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

type programs struct{}

type program struct {
	cmd  *exec.Cmd
	done chan error
}

func started(ts *testscript.TestScript, name string) *program {
	p := ts.Value(programs{}).(map[string]*program)[name]
	if p == nil {
		ts.Fatalf("%s was not started", name)
	}
	return p
}

func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME PROGRAM ARG…")
	}
	path := ""
	for dir := range strings.SplitSeq(ts.Getenv("PATH"), string(os.PathListSeparator)) {
		if file := filepath.Join(dir, args[1]); path == "" && exec.Command(file).Err == nil {
			if _, err := os.Stat(file); err == nil {
				path = file
			}
		}
	}
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "PWD="+cmd.Dir)
	for _, name := range []string{"HOME", "XDG_STATE_HOME", "PATH", "TMPDIR", "WORK", "BATON_STORE", "BATON_HANDLE", "CRON"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	out, err := os.Create(ts.MkAbs(args[0] + ".out"))
	ts.Check(err)
	defer out.Close()
	errs, err := os.Create(ts.MkAbs(args[0] + ".err"))
	ts.Check(err)
	defer errs.Close()
	cmd.Stdout, cmd.Stderr = out, errs
	ts.Check(cmd.Start())
	p := &program{cmd, make(chan error, 1)}
	go func() { p.done <- cmd.Wait() }()
	ts.Value(programs{}).(map[string]*program)[args[0]] = p
	ts.Defer(func() {
		_ = cmd.Process.Kill() // ended already, in a script that passed
	})
}

var signals = map[string]syscall.Signal{
	"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH,
	"KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
}

func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || signals[args[1]] == 0 {
		ts.Fatalf("usage: signal NAME SIGNAL")
	}
	ts.Check(started(ts, args[0]).cmd.Process.Signal(signals[args[1]]))
}

func cmdEnds(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ends NAME CODE")
	}
	p := started(ts, args[0])
	select {
	case <-p.done:
	case <-time.After(patience):
		ts.Fatalf("%s has not ended\n%s", args[0], printed(ts, args[0]))
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	got := strconv.Itoa(status.ExitStatus())
	if status.Signaled() {
		got = status.Signal().String()
	}
	if !slices.Contains(strings.Split(args[1], "|"), got) {
		ts.Fatalf("%s ended with %s, want %s\n%s", args[0], got, args[1], printed(ts, args[0]))
	}
}

func printed(ts *testscript.TestScript, name string) string {
	return fmt.Sprintf("%s.out:\n%s%s.err:\n%s", name, ts.ReadFile(name+".out"), name, ts.ReadFile(name+".err"))
}

func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] await FILE REGEXP")
	}
	want := regexp.MustCompile("(?m)" + args[1])
	var text []byte
	eventually(ts, func() bool {
		text, _ = os.ReadFile(ts.MkAbs(args[0])) // may not be there yet
		return want.Match(text) != neg
	}, func() {
		base, _, _ := strings.Cut(args[0], ".")
		if _, ok := ts.Value(programs{}).(map[string]*program)[base]; ok {
			ts.Logf("%s", printed(ts, base))
		}
		ts.Fatalf("%s has no line that matches %#q:\n%s", args[0], args[1], text)
	})
}

// cmdWaiting is for scripts that look at the queue: baton says "waiting" before it
// takes its position.
func cmdWaiting(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waiting N KEY")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	eventually(ts, func() bool {
		ts.Check(ts.Exec("baton", "show", "-o", "json", args[1]))
		var shown struct{ Waiters []any }
		ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &shown))
		return len(shown.Waiters) >= want
	}, func() { ts.Fatalf("no %d wait for %s", want, args[1]) })
}

func cmdGone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: gone FILE")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	eventually(ts, func() bool { return !runs(pid) }, func() { ts.Fatalf("process %d still runs", pid) })
}

func cmdRuns(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] runs FILE")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	if runs(pid) == neg {
		ts.Fatalf("process %d runs: %v", pid, neg)
	}
}

// runs reports whether a process exists and is not merely waiting to be
// collected.
func runs(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil { // no /proc, or collected meanwhile
		return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	_, fields, _ := strings.Cut(string(stat), ") ")
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // the first may end before others
	return !strings.HasPrefix(fields, "Z") || len(threads) > 1
}

func eventually(ts *testscript.TestScript, happened func() bool, late func()) {
	deadline := time.After(patience)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !happened() {
		select {
		case <-look.C:
		case <-deadline:
			late()
		}
	}
}

func cmdLint(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: lint FILE…")
	}
	tool, err := exec.LookPath("promtool")
	if err != nil {
		ts.Logf("without promtool")
		return
	}
	for _, file := range args {
		cmd := exec.Command(tool, "check", "metrics")
		cmd.Stdin = strings.NewReader(ts.ReadFile(file))
		if out, err := cmd.CombinedOutput(); err != nil {
			ts.Fatalf("promtool of %s: %v\n%s", file, err, out)
		}
	}
}

func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: json PATH REGEXP")
	}
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	for step := range strings.SplitSeq(args[0], ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
		case []any:
			if step == "length" {
				v = len(at)
				break
			}
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(at) {
				ts.Fatalf("no %s in %v", args[0], at)
			}
			v = at[i]
		default:
			ts.Fatalf("no %s in %v", args[0], at)
		}
	}
	got := fmt.Sprintf("%T:%v", v, v)
	if !regexp.MustCompile("^(" + args[1] + ")$").MatchString(got) {
		ts.Fatalf("%s is %s, want %s", args[0], got, args[1])
	}
}
