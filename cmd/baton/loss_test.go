//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// A holder whose connection swallows everything must have stopped its command, a
// stubborn one that needs KILL, before the server grants the lock to the next waiter.
// Both commands write down when they ran.
func TestCommandIsStoppedBeforeTheStoreGivesTheLockAway(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	proxy := faultproxy.New(t, server.Addr)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")

	holder := exec.Command("baton", "-b", "redis://"+proxy.Addr, "run", "--ttl", "3s", "k", "--", "helper", "beat", first)
	var said strings.Builder
	holder.Stderr = &said
	start(t, holder)
	awaitText(t, first, "\n")
	next := exec.Command("baton", "-b", "redis://"+server.Addr, "run", "k", "--", "helper", "beat", second)
	start(t, next)
	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)

	if err := holder.Wait(); holder.ProcessState.ExitCode() != exitLost {
		t.Errorf("the holder ended with %v, want exit code %d:\n%s", err, exitLost, said.String())
	}
	if !strings.Contains(said.String(), "could not be renewed in time") {
		t.Errorf("it did not say why:\n%s", said.String())
	}
	if !strings.Contains(said.String(), "had to be killed") {
		t.Errorf("the command was stubborn and yet it was not killed:\n%s", said.String())
	}
	awaitText(t, second, "\n")
	last, began := beats(t, first), beats(t, second)
	if gap := began[0] - last[len(last)-1]; gap <= 0 {
		t.Errorf("the first command still ran %v after the second one had begun", -gap)
	} else {
		t.Logf("%v between the end of the first command and the beginning of the second", gap)
	}
}

// beats reads the times at which a command ran.
func beats(t *testing.T, file string) (times []time.Duration) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil && strings.HasSuffix(line, "\n") {
			times = append(times, time.Duration(n))
		}
	}
	if len(times) == 0 {
		t.Fatalf("%s is empty", file)
	}
	return times
}

func pidIn(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// start starts a program that is killed at the end of the test.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // a second time if it has ended
	})
}

// awaitText waits until a file contains a text.
func awaitText(t *testing.T, file, text string) {
	t.Helper()
	poll(t, func() error {
		got, err := os.ReadFile(file)
		if err == nil && !strings.Contains(string(got), text) {
			err = fmt.Errorf("%s has no %q: %q", file, text, got)
		}
		return err
	})
}

func poll(t *testing.T, look func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		err := look()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

// Writing a message that no process reads any more must not kill baton: what the
// command has started would run on.
func TestLossWithoutAReader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, pid := "sqlite:"+filepath.Join(dir, "x.db"), filepath.Join(dir, "pid")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("baton", "-b", store, "run", "--ttl", "3s", "--grace", "50ms", "k", "--", "helper", "wait-for", pid)
	holder.Stderr = write
	start(t, holder)
	write.Close()
	awaitText(t, pid, "")
	read.Close()
	if out, err := exec.Command("baton", "-b", store, "break", "--yes", "k").CombinedOutput(); err != nil {
		t.Fatalf("break: %v: %s", err, out)
	}
	if err := holder.Wait(); holder.ProcessState.ExitCode() != exitLost {
		t.Errorf("the holder ended with %v, want exit code %d", err, exitLost)
	}
	if n := pidIn(t, pid); runs(n) {
		t.Errorf("process %d, which the command had started, still runs", n)
	}
}

// A request to release the lock is printed to a pipe that is full. That does not keep the
// command from being stopped when the lease is lost.
func TestLossAfterAMessageThatNobodyReads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, log := "sqlite:"+filepath.Join(dir, "x.db"), filepath.Join(dir, "log")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := write.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{4096, 1} {
		if failed := raw.Control(func(fd uintptr) {
			for err = nil; err == nil; {
				_, err = unix.Write(int(fd), make([]byte, size))
			}
		}); failed != nil || !errors.Is(err, unix.EAGAIN) {
			t.Fatal(failed, err)
		}
	}
	if err := exec.Command("baton", "-b", store, "ls").Run(); err != nil { // the holder would say that it makes the file
		t.Fatal(err)
	}
	holder := exec.Command("baton", "-b", store, "run", "--ttl", "3s", "--on-ask", "USR1", "k", "--", "helper", "trap", log)
	holder.Stderr = write
	start(t, holder)
	write.Close()
	awaitText(t, log, "ready")
	ask := exec.Command("baton", "-b", store, "ask", "k", "why")
	start(t, ask)
	awaitText(t, log, "user defined signal 1")
	if out, err := exec.Command("baton", "-b", store, "break", "--yes", "k").CombinedOutput(); err != nil {
		t.Fatalf("break: %v: %s", err, out)
	}
	awaitText(t, log, "terminated")
	if err := ask.Wait(); err != nil {
		t.Errorf("ask: %v", err)
	}
	go func() { _, _ = io.Copy(io.Discard, read) }()
	if err := holder.Wait(); holder.ProcessState.ExitCode() != exitLost {
		t.Errorf("the holder ended with %v, want exit code %d", err, exitLost)
	}
}
