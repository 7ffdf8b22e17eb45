//go:build unix

package compattest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// TTL is how long the lock of a killed program lasts. A program that pauses that long
// inside of the section breaks the exclusion, as it may.
const TTL = 3 * time.Second

// Kills is how many programs a test of Fleet kills.
var Kills = flag.Int("kills", 10, "how many programs TestFleet kills")

// A Lock locks, and returns the function that unlocks. It waits as long as necessary.
type Lock func(ctx context.Context) (unlock func() error, err error)

// A Kind makes the lock of a key on servers by one library.
type Kind func(addrs []string, key string) (Lock, error)

const env = "BATON_COMPATTEST"

// Main is called by TestMain. It returns unless this process is a program of Fleet.
func Main(kinds map[string]Kind) {
	kind := os.Getenv(env)
	if kind == "" {
		return
	}
	err := program(kinds[kind], kind, strings.Split(os.Args[1], ","), os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", kind, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// program enters the section until its input ends.
func program(make Kind, kind string, addrs []string, key, dir string) error {
	lock, err := make(addrs, key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends
		cancel()
	}()
	for ctx.Err() == nil {
		unlock, err := lock(ctx)
		if ctx.Err() != nil {
			return nil // a lock that it may have got ends with the TTL
		}
		if err != nil {
			return err
		}
		if err := section(dir, kind); err != nil {
			return err
		}
		if err := unlock(); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		<-time.After(5 * time.Millisecond) // others that poll must find the lock free sometimes
	}
	return nil
}

// section notes that a program of the kind was inside, and whether another one was. The
// kernel unlocks the file of a killed program.
func section(dir, kind string) error {
	file, err := os.OpenFile(filepath.Join(dir, "inside"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return note(dir, "overlaps", kind)
	}
	<-time.After(time.Millisecond) // the work
	return note(dir, "entered", kind)
}

// note appends a line to a file. The system writes it as a whole.
func note(dir, name, line string) error {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(line + "\n")
	return errors.Join(err, file.Close())
}

// Fleet starts two programs of each of the kinds, which Main knows. It kills one after
// the other and starts it again, until that many were killed and each kind was inside as
// often. It returns what is wrong.
func Fleet(t *testing.T, kinds, addrs []string, kills int) (wrong []string) {
	t.Helper()
	dir := t.TempDir()
	type member struct {
		kind string
		cmd  *exec.Cmd
		in   io.Closer
	}
	start := func(kind string) *member {
		cmd := exec.Command(os.Args[0], strings.Join(addrs, ","), t.Name(), dir)
		cmd.Env = append(os.Environ(), env+"="+kind)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := testserver.Start(cmd); err != nil {
			t.Fatal(err)
		}
		return &member{kind, cmd, in}
	}
	var all []*member
	defer func() {
		for _, m := range all {
			_ = m.cmd.Process.Kill()
			_ = m.cmd.Wait()
		}
	}()
	for _, kind := range kinds {
		all = append(all, start(kind), start(kind))
	}
	count := func(name string) map[string]int {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		n := make(map[string]int)
		for line := range strings.Lines(string(text)) {
			n[strings.TrimSpace(line)]++
		}
		return n
	}
	served := func() bool {
		entered := count("entered")
		for _, kind := range kinds {
			if entered[kind] < kills {
				return false
			}
		}
		return true
	}
	killed := 0
	for began := time.Now(); killed < kills || !served(); {
		if passed := time.Since(began); passed > time.Minute+time.Duration(kills)*time.Second {
			wrong = append(wrong, fmt.Sprintf("after %v and %d kills they were inside %v times", passed, killed, count("entered")))
			break
		}
		<-time.After(time.Duration(100+rand.IntN(200)) * time.Millisecond) // at any moment
		if killed == kills {
			continue // a kind that was inside too rarely gets its turn
		}
		victim := rand.IntN(len(all))
		if err := all[victim].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := all[victim].cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			wrong = append(wrong, fmt.Sprintf("a program of %s ended by itself: %v", all[victim].kind, err))
			all[victim] = start(all[victim].kind)
			break
		}
		killed++
		all[victim] = start(all[victim].kind)
	}
	for _, m := range all {
		_ = m.in.Close()
	}
	for _, m := range all {
		if err := m.cmd.Wait(); err != nil {
			wrong = append(wrong, fmt.Sprintf("a program of %s: %v", m.kind, err))
		}
	}
	all = nil
	if overlaps := count("overlaps"); len(overlaps) > 0 {
		wrong = append(wrong, fmt.Sprintf("two were inside at the same time: %v", overlaps))
	}
	t.Logf("%d kills, inside: %v", killed, count("entered"))
	return wrong
}
