//go:build unix

package main

import (
	"bufio"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/batonhq/baton/internal/testserver"
)

// The one that waits leads when the leader is interrupted, and when it is killed, each time
// with a higher token; one that is interrupted ends well.
func TestLeaders(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "leader")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	said, speaks := io.Pipe() // of all programs
	lines := bufio.NewReader(said)
	start := func() *exec.Cmd {
		cmd := exec.Command(program)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, speaks, speaks
		if err := testserver.Start(cmd); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	var last int64
	elected := func() {
		t.Helper()
		line, err := lines.ReadString('\n')
		token, bad := strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(line, "I lead, with token ")), 10, 64)
		if err != nil || bad != nil || token <= last {
			t.Fatalf("it said %q after the token %d: %v", line, last, err)
		}
		last = token
	}
	first := start()
	elected()
	second := start()
	for i, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := first.Process.Signal(end); err != nil {
			t.Fatal(err)
		}
		if err := first.Wait(); (err == nil) != (end == syscall.SIGTERM) {
			t.Errorf("after signal %v: %v", end, err)
		}
		elected()
		first = second
		if i == 0 {
			second = start()
		}
	}
	if err := first.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Error(err)
	}
}
