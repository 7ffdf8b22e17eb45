//go:build unix

// Package clitest is for the tests of the commands baton and baton-lab: it runs scripts,
// and checks that the output is safe.
package clitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

// Main runs the tests of a package. In a process that a script starts, it runs the
// command of that name.
func Main(m *testing.M, commands map[string]func()) {
	// Programs with the race detector sleep for a second before they end.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	// Under nohup HUP is ignored, and every child inherits that. A signal that is caught
	// here has its default action in the children; those that are a command begin here,
	// too.
	if commands[filepath.Base(os.Args[0])] == nil && signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	testscript.Main(m, commands)
}

// Scripts runs each script of a folder as a test. Besides the commands of testscript and
// those in more, a script may use
//
//	exits CODE PROGRAM ARG…   run a program and demand its exit code
//	start NAME PROGRAM ARG…   start one in the background; what it prints goes to NAME.out and NAME.err
//	signal NAME SIGNAL        send it a signal: INT, KILL, …
//	ends NAME CODE            wait for it and demand its exit code, or the signal's name;
//	                          CODE|CODE is either
//	[!] await FILE REGEXP     wait until the file has such a line, or, with !, has none
//	gone FILE                 wait until the process whose number is in the file is gone
//	[!] runs FILE             demand that it runs now, or, with !, that it does not
//	json PATH REGEXP          demand a value in the JSON that the last program printed
//
// The default store is a SQLite file of the script's own.
func Scripts(t *testing.T, dir string, setup func(*testscript.Env) error, more map[string]func(*testscript.TestScript, bool, []string)) {
	commands := map[string]func(*testscript.TestScript, bool, []string){
		"exits": exits, "start": start, "signal": sendSignal, "ends": ends,
		"await": await, "gone": gone, "runs": running, "json": demandJSON,
	}
	maps.Copy(commands, more)
	testscript.Run(t, testscript.Params{
		Dir:                dir,
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			if err := os.Chmod(env.WorkDir, 0o755); err != nil { // whatever the umask: an agent looks at it
				return err
			}
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			env.Setenv("GORACE", os.Getenv("GORACE"))
			env.Values[programs{}] = map[string]*program{}
			if setup != nil {
				return setup(env)
			}
			return nil
		},
		Cmds: commands,
	})
}

// Patience bounds every wait. Nothing takes nearly that long on an idle machine.
const Patience = 30 * time.Second

func exits(ts *testscript.TestScript, neg bool, args []string) {
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

func start(ts *testscript.TestScript, neg bool, args []string) {
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
		_ = cmd.Process.Kill() // it has ended, in a script that passed
	})
}

var Signals = map[string]syscall.Signal{
	"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH,
	"KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
}

func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || Signals[args[1]] == 0 {
		ts.Fatalf("usage: signal NAME SIGNAL")
	}
	ts.Check(started(ts, args[0]).cmd.Process.Signal(Signals[args[1]]))
}

func ends(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ends NAME CODE")
	}
	p := started(ts, args[0])
	select {
	case <-p.done:
	case <-time.After(Patience):
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

func await(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] await FILE REGEXP")
	}
	want := regexp.MustCompile("(?m)" + args[1])
	var text []byte
	Eventually(ts, func() bool {
		text, _ = os.ReadFile(ts.MkAbs(args[0])) // the file may not exist yet
		return want.Match(text) != neg
	}, func() {
		base, _, _ := strings.Cut(args[0], ".")
		if _, ok := ts.Value(programs{}).(map[string]*program)[base]; ok {
			ts.Logf("%s", printed(ts, base))
		}
		ts.Fatalf("%s has no line that matches %#q:\n%s", args[0], args[1], text)
	})
}

func gone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: gone FILE")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	Eventually(ts, func() bool { return !Runs(pid) }, func() { ts.Fatalf("process %d still runs", pid) })
}

func running(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] runs FILE")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	if Runs(pid) == neg {
		ts.Fatalf("process %d runs: %v", pid, neg)
	}
}

// Runs reports whether a process exists, and has not ended uncollected.
func Runs(pid int) bool {
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

// Eventually waits until happened is true, and calls late if that takes longer than
// Patience.
func Eventually(ts *testscript.TestScript, happened func() bool, late func()) {
	deadline := time.After(Patience)
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

func demandJSON(ts *testscript.TestScript, neg bool, args []string) {
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
