//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package guard_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/guard"
)

func writeToken(ctx context.Context, path string, p guard.Pass) error {
	return guard.WriteFile(ctx, path, []byte(strconv.FormatInt(p.Token, 10)), 0o644, p)
}

func readToken(t *testing.T, path string) int64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		t.Fatalf("a part of the file was seen: %v", err)
	}
	return n
}

func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "report")
	for _, c := range []struct {
		p     guard.Pass
		stale bool
		now   int64
	}{
		{pass(5, "a"), false, 5},
		{pass(5, "a"), false, 5},
		{pass(5, "b"), true, 5},
		{pass(4, "a"), true, 5},
		{pass(10, "b c"), false, 10},
		{pass(9, "a"), true, 10},
		{pass(1<<53+1, ""), false, 1<<53 + 1},
		{pass(1<<53, ""), true, 1<<53 + 1},
	} {
		err := writeToken(t.Context(), path, c.p)
		if errors.Is(err, guard.ErrStale) != c.stale || !c.stale && err != nil {
			t.Errorf("%v: %v", c.p, err)
		}
		if got := readToken(t, path); got != c.now {
			t.Errorf("after %v the file has %d, want %d", c.p, got, c.now)
		}
	}
	all, err := os.ReadDir(dir)
	if err != nil || len(all) != 3 {
		t.Errorf("left in the folder: %v, %v", all, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := writeToken(t.Context(), path, pass(0, "")); !errors.As(err, new(*guard.PassError)) {
		t.Errorf("token 0: %v", err)
	}
	if err := writeToken(t.Context(), filepath.Join(dir, "none", "report"), pass(1, "")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// A relative path without a directory.
func TestWriteFileHere(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := writeToken(t.Context(), "report", pass(5, "a")); err != nil {
		t.Fatal(err)
	}
	if got := readToken(t, "report"); got != 5 {
		t.Errorf("%d", got)
	}
}

// A file that is no mark makes the guard refuse all writers, not admit all.
func TestWriteFileWithABadMark(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "x", "7", "7 a", "07 a\n", "-1 a\n", "7 a\nb\n", "99999999999999999999 a\n"} {
		path := filepath.Join(t.TempDir(), "report")
		if err := os.WriteFile(path+".fence", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := writeToken(t.Context(), path, pass(100, "a")); err == nil || errors.Is(err, guard.ErrStale) {
			t.Errorf("a mark %q: %v", text, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("a mark %q: written", text)
		}
	}
}

// A crash between the mark and the file leaves the old file, and the mark still
// refuses lower tokens. What a crash left half written is removed.
func TestWriteFileAfterACrash(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report")
	if err := writeToken(t.Context(), path, pass(5, "a")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{".fence": "7 b\n"} {
		if err := os.WriteFile(path+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{".report.new", ".report.fence.new"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte("hal"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeToken(t.Context(), path, pass(6, "c")); !errors.Is(err, guard.ErrStale) {
		t.Errorf("6 after the mark of 7: %v", err)
	}
	if got := readToken(t, path); got != 5 {
		t.Errorf("the file has %d", got)
	}
	if err := writeToken(t.Context(), path, pass(7, "b")); err != nil {
		t.Errorf("again by the one that crashed: %v", err)
	}
	if got := readToken(t, path); got != 7 {
		t.Errorf("the file has %d", got)
	}
}

// Writers with random tokens, and readers that look all the time: the tokens that
// they see never fall.
func TestWriteFileInterleaved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report")
	if err := writeToken(t.Context(), path, pass(1, "a")); err != nil {
		t.Fatal(err)
	}
	fallen := watch(t, path, func(w int) {
		for range 40 {
			p := pass(rand.Int64N(1000)+1, fmt.Sprint(w))
			if err := writeToken(t.Context(), path, p); err != nil && !errors.Is(err, guard.ErrStale) {
				t.Error(err)
			}
		}
	})
	if fallen > 0 {
		t.Errorf("the file went back %d times", fallen)
	}
}

// Planted: compare and rename without the lock. The reader sees it.
func TestWriteFileWithoutALockIsCaught(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report")
	bare := func(p guard.Pass) error {
		mark, _ := os.ReadFile(path + ".fence")
		last, _ := strconv.ParseInt(string(mark), 10, 64)
		if last > p.Token {
			return guard.ErrStale
		}
		text := []byte(strconv.FormatInt(p.Token, 10))
		for _, to := range []string{path + ".fence", path} {
			temp := fmt.Sprintf("%s.%s.new", to, p.Holder)
			if err := os.WriteFile(temp, text, 0o644); err != nil {
				return err
			}
			if err := os.Rename(temp, to); err != nil {
				return err
			}
		}
		return nil
	}
	if err := bare(pass(1, "a")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(defectWait); time.Now().Before(deadline); {
		if watch(t, path, func(w int) {
			for range 200 {
				if err := bare(pass(rand.Int64N(1000)+1, fmt.Sprint(w))); err != nil && !errors.Is(err, guard.ErrStale) {
					t.Error(err)
				}
			}
		}) > 0 {
			return
		}
		os.Remove(path + ".fence")
	}
	t.Error("files without a lock pass for sound")
}

// watch counts how often the token in the file falls while four writers are at
// work.
func watch(t *testing.T, path string, write func(w int)) (fallen int) {
	t.Helper()
	last, stop := readToken(t, path), make(chan struct{})
	var reader, writers sync.WaitGroup
	reader.Go(func() {
		for {
			if n := readToken(t, path); n < last {
				fallen++
				last = n
			} else {
				last = n
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for w := range 4 {
		writers.Go(func() { write(w) })
	}
	writers.Wait()
	close(stop)
	reader.Wait()
	return fallen
}

// fileEnv makes this binary a process that holds the lock of a file until it
// dies.
const fileEnv = "GUARD_TEST_HOLD_LOCK_OF"

func TestMain(m *testing.M) {
	if path := os.Getenv(fileEnv); path != "" {
		f, err := os.OpenFile(path+".fence.lock", os.O_RDWR|os.O_CREATE, 0o644)
		if err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
		fmt.Println(err)
		io.Copy(io.Discard, os.Stdin) // until the test has ended, however it did
		f.Close()
		return
	}
	os.Exit(m.Run())
}

// A writer that is stopped inside delays the others, as long as their context
// lasts, and lets none overtake it; when it dies they continue.
func TestWriteFileWaitsForAnotherProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report")
	if err := writeToken(t.Context(), path, pass(1, "a")); err != nil {
		t.Fatal(err)
	}
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), fileEnv+"="+path)
	if _, err := other.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		other.Process.Kill()
		other.Wait()
	})
	var said [5]byte
	if _, err := out.Read(said[:]); err != nil || !strings.HasPrefix(string(said[:]), "<nil>") {
		t.Fatalf("%q, %v", said, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := writeToken(ctx, path, pass(2, "b")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another process is inside: %v", err)
	}
	if got := readToken(t, path); got != 1 {
		t.Errorf("written all the same: %d", got)
	}
	done := make(chan error, 1)
	go func() { done <- writeToken(t.Context(), path, pass(2, "b")) }()
	other.Process.Kill()
	if err := <-done; err != nil {
		t.Errorf("after its death: %v", err)
	}
}

// A program that may write to the directory puts a link where the lock file is
// expected: no file is made where it leads, and none is written without the lock.
func TestWriteFileFollowsNoLinkToALock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, elsewhere := filepath.Join(dir, "f"), filepath.Join(dir, "nologin")
	if err := os.Symlink(elsewhere, path+".fence.lock"); err != nil {
		t.Fatal(err)
	}
	if err := writeToken(t.Context(), path, guard.Pass{Token: 1}); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("write: %v, want it to refuse the link", err)
	}
	for _, name := range []string{elsewhere, path, path + ".fence"} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made, %v", name, err)
		}
	}
}

// The line of docs/fencing.md is one of ExampleWriteFile.
func TestWriteFileOfPage(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"../docs/fencing.md", "example_test.go"} {
		if text, err := os.ReadFile(name); err != nil || !strings.Contains(string(text), "guard.WriteFile(ctx, path, data, 0o644, guard.Of(lease))") {
			t.Errorf("%s does not have the line: %v", name, err)
		}
	}
}
