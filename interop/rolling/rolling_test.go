// Package rolling runs programs of two versions of Baton side by side.
package rolling

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// before is the revision that takes the part of the last release until there is one: the
// first with the tables that will be released.
const before = "50522ce7223f09a914ca00515cbe7eed5d300973"

// TestRolling replaces the programs of the last release by those of the tree, one by one, and
// goes back, while both work: locks, limits and records are shared at every step.
func TestRolling(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	older, newer := last(t), command(t)
	for _, store := range []struct {
		name string
		url  func(t *testing.T) string
	}{
		{"sqlite", func(t *testing.T) string { return "sqlite://" + filepath.Join(t.TempDir(), "locks.db") }},
		{"postgres", func(t *testing.T) string {
			server := testserver.SharedPostgres(t)
			return server.URL(server.Database(t))
		}},
		{"mariadb", func(t *testing.T) string { return "mysql://root@" + testserver.SharedMariaDB(t).Addr + "/baton" }},
		{"redis", func(t *testing.T) string { return "redis://" + testserver.SharedRedis(t).Addr + "?prefix=rolling:" }},
		{"etcd", func(t *testing.T) string { return "etcd://" + testserver.SharedEtcd(t).Addr + "/rolling" }},
	} {
		t.Run(store.name, func(t *testing.T) {
			testRolling(t, store.url(t), older, newer)
		})
	}
}

func testRolling(t *testing.T, url, older, newer string) {
	f := &fleet{t: t, url: url, dir: t.TempDir()}
	f.must(older, "ls") // which makes the tables, where the store has some

	f.start(older, 3)
	f.await(older, 5)
	// The new programs use the tables as they are, too.
	sql := strings.HasPrefix(url, "postgres:")
	if sql {
		f.url = url + "&migrate=false"
		f.start(newer, 1)
		f.await(newer, 3)
		f.stop(newer)
		f.url = url
	}
	if sql || strings.HasPrefix(url, "mysql:") {
		f.must(newer, "schema", "apply", url)
	}
	f.start(newer, 3)
	f.await(older, 5)
	f.await(newer, 5)

	// One count, one record, whoever asks.
	for i := range 6 {
		f.must([]string{older, newer}[i%2], "limit", "--rate", "6/1h", "mail")
	}
	for _, file := range []string{older, newer} {
		if out, err := f.baton(file, "limit", "--rate", "6/1h", "mail"); exitCode(err) != 75 {
			t.Errorf("%s allows a seventh: %v\n%s", filepath.Base(file), err, out)
		}
	}
	for first, second := range map[string]string{older: newer, newer: older} {
		key := filepath.Base(first)
		f.must(first, "once", key, "--", "/bin/sh", "-c", "echo ran; echo ran >>"+f.file(key))
		if out := f.must(second, "once", key, "--", "/bin/sh", "-c", "echo ran; echo ran >>"+f.file(key)); !strings.Contains(out, "ran") {
			t.Errorf("the outcome of %s is not replayed by %s: %q", key, filepath.Base(second), out)
		}
		if got := f.read(key); got != "ran\n" {
			t.Errorf("what %s has done once was done again: %q", key, got)
		}
	}

	f.stop(older)
	f.await(newer, 5)
	f.start(older, 2) // back
	f.await(older, 5)
	f.stop(newer)
	f.await(older, 5)
	f.stop(older)

	for _, wrong := range f.judge() {
		t.Error(wrong)
	}
	t.Logf("%d commands of the old program, %d of the new one", f.done[older].Load(), f.done[newer].Load())
}

// TestRollingCatches has the two versions use different stores.
func TestRollingCatches(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	file := command(t)
	other := file + "-other"
	if err := os.Link(file, other); err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, dir: t.TempDir()}
	for _, program := range []string{file, other} {
		f.url = "sqlite://" + filepath.Join(t.TempDir(), "locks.db")
		f.start(program, 2)
		f.await(program, 5)
	}
	f.stop(file)
	f.stop(other)
	if wrong := f.judge(); len(wrong) == 0 {
		t.Error("two stores, and nothing is wrong")
	}
}

// A fleet is programs of two versions that run a command under one lock, again and again.
type fleet struct {
	t    *testing.T
	url  string
	dir  string
	done map[string]*atomic.Int64 // commands, by the file of the program
	ends map[string]func()
}

// work says if it is not alone: mkdir makes a folder that is not there, or fails.
const work = `mkdir in 2>/dev/null || echo "$BATON_TOKEN" >>overlaps; echo "$BATON_TOKEN" >>tokens; rmdir in 2>/dev/null || :`

func (f *fleet) start(file string, programs int) {
	if f.done == nil {
		f.done, f.ends = make(map[string]*atomic.Int64), make(map[string]func())
	}
	if f.done[file] == nil {
		f.done[file] = new(atomic.Int64)
	}
	url, done := f.url, f.done[file]
	stop := make(chan struct{})
	var running sync.WaitGroup
	for range programs {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				cmd := exec.CommandContext(f.t.Context(), file, "-b", url, "run", "-q", "-w", "1m", "rolling", "--", "/bin/sh", "-c", work)
				cmd.Dir = f.dir
				if out, err := cmd.CombinedOutput(); err != nil {
					if f.t.Context().Err() != nil {
						return
					}
					f.t.Errorf("%s run: %v\n%s", filepath.Base(file), err, out)
					return
				}
				done.Add(1)
			}
		})
	}
	f.ends[file] = func() {
		close(stop)
		running.Wait()
	}
	f.t.Cleanup(func() { f.stop(file) }) // when the test fails
}

// stop ends the programs of a version, after what they are doing.
func (f *fleet) stop(file string) {
	if end := f.ends[file]; end != nil {
		f.ends[file] = nil
		end()
	}
}

// await waits until the programs of a version have run more commands.
func (f *fleet) await(file string, commands int64) {
	f.t.Helper()
	want := f.done[file].Load() + commands
	for began := time.Now(); f.done[file].Load() < want; time.Sleep(5 * time.Millisecond) { // processes tell nothing
		if time.Since(began) > time.Minute || f.t.Failed() {
			f.t.Fatalf("%s has run %d commands, want %d", filepath.Base(file), f.done[file].Load(), want)
		}
	}
}

// judge says what is wrong with what the commands wrote.
func (f *fleet) judge() (wrong []string) {
	if bad := f.read("overlaps"); bad != "" {
		wrong = append(wrong, "two held the lock at the same time, with the tokens "+strings.Join(strings.Fields(bad), ", "))
	}
	var token, done int64
	tokens := strings.Fields(f.read("tokens"))
	for _, word := range tokens {
		next, err := strconv.ParseInt(word, 10, 64)
		if err != nil || next <= token {
			wrong = append(wrong, fmt.Sprintf("the token %s follows %d", word, token))
		}
		token = next
	}
	for _, commands := range f.done {
		done += commands.Load()
	}
	if int64(len(tokens)) != done {
		wrong = append(wrong, fmt.Sprintf("%d commands ran, and %d tokens were written", done, len(tokens)))
	}
	return wrong
}

func (f *fleet) baton(file string, args ...string) (string, error) {
	cmd := exec.CommandContext(f.t.Context(), file, args...)
	cmd.Dir, cmd.Env = f.dir, append(os.Environ(), "BATON_STORE="+f.url)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (f *fleet) must(file string, args ...string) string {
	f.t.Helper()
	out, err := f.baton(file, args...)
	if err != nil {
		f.t.Fatalf("%s %q: %v\n%s", filepath.Base(file), args, err, out)
	}
	return out
}

func (f *fleet) file(name string) string { return filepath.Join(f.dir, name) }

func (f *fleet) read(name string) string {
	text, err := os.ReadFile(f.file(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
	return string(text)
}

func exitCode(err error) int {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return -1
}

// command builds the program of the tree.
func command(t *testing.T) string {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return compile(t, top, "newer")
}

// last builds the program of the last release.
func last(t *testing.T) string {
	t.Helper()
	git := func(args ...string) ([]byte, error) {
		return exec.CommandContext(t.Context(), "git", append([]string{"-C", "../.."}, args...)...).Output()
	}
	revision := before
	if tags, err := git("tag", "--merged", "HEAD^", "--list", "v*", "--sort=-version:refname"); err == nil && len(tags) > 0 {
		revision, _, _ = strings.Cut(string(tags), "\n")
	}
	packed, err := git("archive", revision)
	if err != nil {
		t.Skipf("this copy of the tree has no %s: git fetch --unshallow --tags", revision)
	}
	tree := t.TempDir()
	if err := unpack(packed, tree); err != nil {
		t.Fatal(err)
	}
	return compile(t, tree, "older")
}

func compile(t *testing.T, top, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-o", file, "./cmd/baton")
	build.Dir = top
	build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "PWD="+top)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return file
}

func unpack(packed []byte, to string) error {
	for r := tar.NewReader(bytes.NewReader(packed)); ; {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case !filepath.IsLocal(h.Name):
			return fmt.Errorf("%q is not below its folder", h.Name)
		case h.Typeflag != tar.TypeReg:
			continue
		}
		file := filepath.Join(to, h.Name)
		text, err := io.ReadAll(r)
		if err := cmp.Or(err, os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, text, 0o666)); err != nil {
			return err
		}
	}
}
