package testserver

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Ready is the line that a worker prints when it works.
const Ready = "ready"

// A Worker is a copy of the test's program. Its TestMain sees the arguments, prints
// Ready, works until its standard input ends, and exits with 0. It ends with the test at
// the latest.
type Worker struct {
	t     TB
	cmd   *exec.Cmd
	stdin io.Closer
}

// StartWorker starts a Worker and returns when it is ready. Its standard error is the
// test's.
func StartWorker(t TB, args ...string) *Worker {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("start a worker: %v", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("start a worker: %v", err)
	}
	if err := Start(cmd); err != nil {
		t.Fatalf("start a worker: %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // no effect after Kill or Stop
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || strings.TrimSpace(line) != Ready {
		t.Fatalf("the worker said %q: %v", line, err)
	}
	return &Worker{t: t, cmd: cmd, stdin: stdin}
}

// PID is the number of the worker's process.
func (w *Worker) PID() int { return w.cmd.Process.Pid }

// Kill ends the worker with SIGKILL, and returns when it has ended. Its last requests may
// still be on their way.
func (w *Worker) Kill() {
	w.t.Helper()
	if err := w.cmd.Process.Kill(); err != nil {
		w.t.Fatalf("kill a worker: %v", err)
	}
	_ = w.cmd.Wait() // "signal: killed"
}

// Stop ends the worker's standard input, and returns when it has ended. It fails the test
// if the worker exits with an error.
func (w *Worker) Stop() {
	w.t.Helper()
	w.stdin.Close()
	if err := w.cmd.Wait(); err != nil {
		w.t.Fatalf("stop a worker: %v", err)
	}
}
