package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What a command has left is recorded when the command has ended, though its output is
// not read yet: the reader can still get it then, or baton can be told to give up.
func TestOnceRecordsBeforeItsOutputIsRead(t *testing.T) {
	t.Parallel()
	const much = 150000 // more than one pipe holds, less than two
	for name, signal := range map[string]syscall.Signal{"read": 0, "TERM": syscall.SIGTERM, "INT": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := "sqlite:" + filepath.Join(t.TempDir(), "x.db")
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { read.Close() })
			first := exec.Command("baton", "-b", store, "once", "k", "--", "helper", "much", fmt.Sprint(much))
			var said bytes.Buffer
			first.Stdout, first.Stderr = write, &said
			start(t, first)
			write.Close()
			poll(t, func() error {
				out, err := exec.Command("baton", "-b", store, "once", "show", "-o", "json", "k").Output()
				if err == nil && !bytes.Contains(out, []byte(`"state": "done"`)) {
					err = fmt.Errorf("not recorded: %s", out)
				}
				return err
			})
			want := 0
			if signal != 0 {
				want = 128 + int(signal)
				if err := first.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
			} else if text, err := io.ReadAll(read); err != nil || string(text) != strings.Repeat("x", much) {
				t.Errorf("%d bytes came, want %d, %v", len(text), much, err)
			}
			if code := awaitEnd(t, first); code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}
			if strings.Contains(said.String(), "left behind") {
				t.Errorf("nobody was left behind, but it says\n%s", said.String())
			}
		})
	}
}

// A replay whose output is not read can be stopped.
func TestOnceReplayStops(t *testing.T) {
	t.Parallel()
	store := "sqlite:" + filepath.Join(t.TempDir(), "x.db")
	if err := exec.Command("baton", "-b", store, "once", "k", "--", "helper", "much", "150000").Run(); err != nil {
		t.Fatal(err)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { read.Close() })
			again := exec.Command("baton", "-b", store, "once", "k", "--", "helper", "much", "150000")
			again.Stdout = write
			start(t, again)
			write.Close()
			if _, err := read.Read(make([]byte, 1)); err != nil { // it has begun, and cannot end
				t.Fatal(err)
			}
			if err := again.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if code := awaitEnd(t, again); code != 128+int(signal) {
				t.Errorf("exit code %d, want %d", code, 128+int(signal))
			}
		})
	}
}
