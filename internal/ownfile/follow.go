package ownfile

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"time"
)

// look is how often files are looked at.
const look = time.Second

// A Watch remembers how files were. Symbolic links are followed: a link that leads elsewhere
// is a change of the file.
type Watch struct {
	paths []string
	seen  []fs.FileInfo // nil: there is none
	fresh bool          // they have changed since the last look but one
}

// NewWatch remembers how the files are now. Paths that are "" count for nothing.
func NewWatch(paths ...string) *Watch {
	w := &Watch{paths: slices.DeleteFunc(paths, func(path string) bool { return path == "" })}
	w.seen = w.look()
	return w
}

// Follow calls changed each time that one of the files has become another one, or has got
// another content, mode or owner, until ctx ends. It looks every second, and waits until a
// look finds what the one before has found: several files that are replaced together, or one
// that is being written, are told of once. It reads no file.
func (w *Watch) Follow(ctx context.Context, changed func()) {
	if len(w.paths) == 0 {
		return
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if w.settled() {
			changed()
		}
	}
}

// settled looks, and reports whether the files have changed, and did not since the last look.
func (w *Watch) settled() bool {
	now := w.look()
	for i, then := range w.seen {
		if !same(then, now[i]) {
			w.seen, w.fresh = now, true
			return false
		}
	}
	was := w.fresh
	w.fresh = false
	return was
}

func (w *Watch) look() []fs.FileInfo {
	all := make([]fs.FileInfo, len(w.paths))
	for i, path := range w.paths {
		if info, err := os.Stat(path); err == nil {
			all[i] = info
		}
	}
	return all
}

func same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	ofA, _ := Foreign(a)
	ofB, _ := Foreign(b)
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && a.Mode() == b.Mode() && ofA == ofB
}
