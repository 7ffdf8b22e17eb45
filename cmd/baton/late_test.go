//go:build unix

package main

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const manyLate = 10 // a race that the code leaves to chance goes wrong for some of these

// late starts commands under leases and stops their batons. Then between waits until
// the leases have ended, and the commands end with success, so that each baton finds
// both at once when it goes on. late returns the batons when they have ended, and what
// they said.
func late(t *testing.T, dir, command, ttl string, between func()) (holders []*exec.Cmd, said []*strings.Builder) {
	t.Helper()
	file := func(i int, name string) string { return filepath.Join(dir, fmt.Sprint(name, i)) }
	for i := range manyLate {
		holder := exec.Command("baton", "-b", lateStore(dir), command, "--ttl", ttl, fmt.Sprint("k", i), "--", "helper", "hold", file(i, "pid"), file(i, "go"))
		said = append(said, new(strings.Builder))
		holder.Stderr = said[i]
		start(t, holder)
		awaitText(t, file(i, "pid"), "")
		stopAside(t, dir, holder.Process)
		holders = append(holders, holder)
	}
	between()
	for i, holder := range holders {
		pid := pidIn(t, file(i, "pid"))
		if err := os.WriteFile(file(i, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		poll(t, func() error {
			if runs(pid) {
				return fmt.Errorf("the command, process %d, still runs", pid)
			}
			return nil
		})
		if err := holder.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	for _, holder := range holders {
		_ = holder.Wait() // with a code that the caller looks at
	}
	return holders, said
}

// stopAside stops a baton while the test holds the store's write lock: a baton stopped
// in the middle of a write would keep all other processes from the file.
func stopAside(t *testing.T, dir string, baton *os.Process) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "x.db")+"?_txlock=immediate&_busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	alone, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := baton.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(baton.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the baton is not stopped: %v, %#x", err, status)
	}
	if err := alone.Rollback(); err != nil {
		t.Fatal(err)
	}
}

func lateStore(dir string) string { return "sqlite:" + filepath.Join(dir, "x.db") }

// A baton sees at the same time that its command and its lease have ended. What it does
// then is not left to chance.
func TestEndAndLossAreSeenTogether(t *testing.T) {
	t.Parallel()
	follow := []string{"run", "-w", "30s", "KEY", "--", "helper", "exit", "0"}
	for _, c := range []struct {
		command, ttl string
		next         []string
		code         int
	}{
		{"run", "5s", follow, exitLost},
		{"elect", "5s", follow, 0},
		{"run", "1m", []string{"break", "--yes", "KEY"}, exitLost}, // the store says it
	} {
		t.Run(c.command+" "+c.next[0], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			holders, said := late(t, dir, c.command, c.ttl, func() {
				for i := range manyLate {
					args := append([]string{"-b", lateStore(dir)}, c.next...)
					args[slices.Index(args, "KEY")] = fmt.Sprint("k", i)
					if out, err := exec.Command("baton", args...).CombinedOutput(); err != nil {
						t.Fatalf("the next one: %v:\n%s", err, out)
					}
				}
			})
			for i, holder := range holders {
				if code := holder.ProcessState.ExitCode(); code != c.code || !strings.Contains(said[i].String(), "the command ended by itself, with 0") {
					t.Errorf("holder %d ended with %d, want %d:\n%s", i, code, c.code, said[i])
				}
			}
		})
	}
}

// A success that came before baton saw the loss is recorded, if no other attempt has
// begun.
func TestSuccessOfAnExpiredAttemptIsRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	holders, said := late(t, dir, "once", "5s", func() {
		poll(t, func() error {
			out, err := exec.Command("baton", "-b", lateStore(dir), "ls", "-o", "json", "once/").Output()
			if err == nil && strings.TrimSpace(string(out)) != "[]" {
				err = fmt.Errorf("these have not run out: %s", out)
			}
			return err
		})
	})
	for i, holder := range holders {
		out, err := exec.Command("baton", "-b", lateStore(dir), "once", "show", "-o", "json", fmt.Sprint("k", i)).Output()
		if code := holder.ProcessState.ExitCode(); err != nil || code != 0 || !strings.Contains(string(out), `"done"`) {
			t.Errorf("holder %d ended with %d, and of it is known, %v:\n%s\nit said:\n%s", i, code, err, out, said[i])
		}
	}
}
