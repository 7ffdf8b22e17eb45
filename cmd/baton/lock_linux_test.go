package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// If baton cannot write the handle, it leaves no lock behind.
func TestLockWhoseHandleCannotBeWritten(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no full device here: %v", err)
	}
	t.Cleanup(func() { full.Close() })
	read, unread, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unread.Close() })
	read.Close()
	for _, c := range []struct {
		name   string
		stdout *os.File
		form   string
		want   string
	}{
		{"full", full, "text", "no space left on device"},
		{"full JSON", full, "json", "no space left on device"},
		{"no reader", unread, "text", "broken pipe"},
		{"no reader of JSON", unread, "json", "broken pipe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store := "sqlite:" + filepath.Join(t.TempDir(), "x.db")
			lock := exec.Command("baton", "-b", store, "lock", "--ttl", "1h", "-o", c.form, "k")
			var said bytes.Buffer
			lock.Stdout, lock.Stderr = c.stdout, &said
			if err := lock.Run(); lock.ProcessState.ExitCode() != exitFailed || !strings.Contains(said.String(), c.want) {
				t.Errorf("it ended with %v, want exit code %d and %q:\n%s", err, exitFailed, c.want, said.String())
			}
			isFree(t, store)
		})
	}
}

// A signal ends baton also when it has the lock already, and cannot hand it over.
func TestLockIsInterruptedWhileItWrites(t *testing.T) {
	t.Parallel()
	store := "sqlite:" + filepath.Join(t.TempDir(), "x.db")
	lock := exec.Command("baton", "-b", store, "lock", "--ttl", "1h", "k")
	lock.Stdout = fullPipe(t)
	start(t, lock)
	awaitHeld(t, store)
	if err := lock.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := awaitEnd(t, lock); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	isFree(t, store)
}

// fullPipe is the write end of a full pipe. The read end is open, but nothing reads it.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close(); write.Close() })
	size, err := unix.FcntlInt(read.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := write.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	return write
}

func awaitHeld(t *testing.T, store string) {
	t.Helper()
	poll(t, func() error {
		out, err := exec.Command("baton", "-b", store, "show", "-o", "json", "k").Output()
		if err == nil && !bytes.Contains(out, []byte(`"token"`)) {
			err = fmt.Errorf("nobody holds the lock: %s", out)
		}
		return err
	})
}

func isFree(t *testing.T, store string) {
	t.Helper()
	if out, err := exec.Command("baton", "-b", store, "run", "-n", "k", "--", "helper", "exit", "0").CombinedOutput(); err != nil {
		t.Errorf("the lock is not free: %v: %s", err, out)
	}
}

// awaitEnd waits for a program to end, and returns its exit code.
func awaitEnd(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	select {
	case <-ended:
		return cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("%v has not ended", cmd.Args)
		return 0
	}
}
