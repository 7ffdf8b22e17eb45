//go:build unix

package supervise

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is also what the tests run. They are not parallel: a
// supervisor waits for every child of its process.
func TestMain(m *testing.M) {
	if role := os.Getenv("SUPERVISE_ROLE"); role != "" {
		play(role, os.Getenv("SUPERVISE_FILE"))
	}
	os.Exit(m.Run())
}

func play(role, file string) {
	say := func() {
		if err := os.WriteFile(file+".new", []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			os.Exit(98)
		}
		if err := os.Rename(file+".new", file); err != nil {
			os.Exit(98)
		}
	}
	switch role {
	case "polite":
		say()
		<-time.After(time.Hour)
	case "stubborn":
		signal.Ignore(unix.SIGTERM)
		say()
		<-time.After(time.Hour)
	case "parent of stubborn":
		self, err := os.Executable()
		if err != nil {
			os.Exit(98)
		}
		child := exec.Command(self)
		child.Env = append(os.Environ(), "SUPERVISE_ROLE=stubborn")
		if child.Start() != nil {
			os.Exit(98)
		}
		for {
			if _, err := os.Stat(file); err == nil {
				os.Exit(7)
			}
			<-time.After(time.Millisecond)
		}
	}
	os.Exit(99)
}

// begin starts this binary in a role, and waits until it has begun.
func begin(t *testing.T, role string) (c *Child, pid int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pid")
	c, err := Start(Command{
		Path:  os.Args[0],
		Args:  []string{"supervised"},
		Env:   append(os.Environ(), "SUPERVISE_ROLE="+role, "SUPERVISE_FILE="+file),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop(0) })
	await(t, func() bool {
		text, err := os.ReadFile(file)
		pid, _ = strconv.Atoi(string(text))
		return err == nil
	})
	return c, pid
}

func await(t *testing.T, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !happened(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
		<-time.After(time.Millisecond)
	}
}

const long = 30 * time.Second

func TestStopPolite(t *testing.T) {
	c, _ := begin(t, "polite")
	if c.Gone() {
		t.Error("it is gone before it was stopped")
	}
	if got := c.Stop(long); got != (Outcome{}) {
		t.Errorf("Stop = %+v, want nobody killed or left", got)
	}
	<-c.Done()
	if !c.Gone() || c.Code() != 128+int(unix.SIGTERM) {
		t.Errorf("gone %v, code %d; want it gone, by TERM", c.Gone(), c.Code())
	}
	if got := c.Stop(long); got != (Outcome{}) {
		t.Errorf("Stop again = %+v", got)
	}
}

func TestStopStubborn(t *testing.T) {
	c, _ := begin(t, "stubborn")
	if got := c.Stop(20 * time.Millisecond); got != (Outcome{Killed: true}) {
		t.Errorf("Stop = %+v, want it killed", got)
	}
	if !c.Gone() || c.Code() != 128+int(unix.SIGKILL) {
		t.Errorf("gone %v, code %d; want it gone, by KILL", c.Gone(), c.Code())
	}
}

// A suspended process would not see TERM; one without a grace must not run again.
func TestStopSuspended(t *testing.T) {
	c, pid := begin(t, "polite")
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if got := c.Stop(long); got != (Outcome{}) || c.Code() != 128+int(unix.SIGTERM) {
		t.Errorf("with grace: Stop = %+v, code %d; want the end by TERM", got, c.Code())
	}
	c, pid = begin(t, "polite")
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if got := c.Stop(0); got != (Outcome{Killed: true}) || c.Code() != 128+int(unix.SIGKILL) {
		t.Errorf("without grace: Stop = %+v, code %d; want the end by KILL", got, c.Code())
	}
}

// What the command leaves in its group is found and stopped.
func TestStopOrphan(t *testing.T) {
	c, orphan := begin(t, "parent of stubborn")
	<-c.Done()
	if c.Code() != 7 {
		t.Errorf("code %d, want the command's own 7", c.Code())
	}
	if c.Gone() {
		t.Error("the group counts as gone although an orphan lives in it")
	}
	if got := c.Stop(20 * time.Millisecond); got != (Outcome{Killed: true}) {
		t.Errorf("Stop = %+v, want the orphan killed", got)
	}
	if !c.Gone() || !errors.Is(unix.Kill(orphan, 0), unix.ESRCH) {
		t.Errorf("the orphan %d still runs", orphan)
	}
}

func TestStartFails(t *testing.T) {
	_, err := Start(Command{Path: filepath.Join(t.TempDir(), "nothing"), Args: []string{"nothing"}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want that there is no such file", err)
	}
}
