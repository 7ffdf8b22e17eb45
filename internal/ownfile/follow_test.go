//go:build unix

package ownfile

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Each kind of change is told of once, and only when a look has found it twice.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		t.Helper()
		must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	// As a volume of Kubernetes: f -> ..data/f, ..data -> 1.
	must(os.Mkdir(at("1"), 0o700))
	must(os.Mkdir(at("2"), 0o700))
	write("1/f", "one")
	write("2/f", "two")
	must(os.Symlink("1", at("..data")))
	must(os.Symlink("..data/f", at("f")))
	write("plain", "a")
	w := NewWatch(at("f"), "", at("plain"), at("later"))
	twice := func() bool { first := w.settled(); return w.settled() || first }
	if twice() {
		t.Error("nothing has changed")
	}
	for _, c := range []struct {
		name   string
		change func()
	}{
		{"a link that leads elsewhere", func() {
			must(os.Symlink("2", at("..data_tmp")))
			must(os.Rename(at("..data_tmp"), at("..data")))
		}},
		{"another file of the same size and time", func() {
			info, err := os.Stat(at("plain"))
			must(err)
			write("next", "b")
			must(os.Chtimes(at("next"), info.ModTime(), info.ModTime()))
			must(os.Rename(at("next"), at("plain")))
		}},
		{"a file that is written in place", func() { write("plain", "longer") }},
		{"another mode", func() { must(os.Chmod(at("plain"), 0o644)) }},
		{"a file that is there at last", func() { write("later", "x") }},
		{"a file that is gone", func() { must(os.Remove(at("plain"))) }},
		{"a pipe in its place", func() { must(syscall.Mkfifo(at("plain"), 0o600)) }},
	} {
		c.change()
		if w.settled() {
			t.Errorf("%s: told at the first look", c.name)
		}
		if !w.settled() {
			t.Errorf("%s: not told", c.name)
		}
		if twice() {
			t.Errorf("%s: told twice", c.name)
		}
	}
	write("later", "1")
	w.settled()
	write("later", "12")
	if w.settled() {
		t.Error("told of a file that is being written")
	}
	if !w.settled() {
		t.Error("not told of a file that was written in two steps")
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	NewWatch("").Follow(t.Context(), nil) // which has nothing to look at, and ends
	path := filepath.Join(t.TempDir(), "f")
	w := NewWatch(path)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	times := 0
	w.Follow(ctx, func() { times++; cancel() })
	if times != 1 {
		t.Errorf("told %d times, want once", times)
	}
}
