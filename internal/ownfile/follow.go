package ownfile

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"time"
)

// look is the period of looks at the files.
const look = time.Second

// A Watch notices changes of files. It follows symbolic links: a link with a new target
// is a change.
type Watch struct {
	paths []string
	seen  []fs.FileInfo // nil: no such file
	fresh bool          // they have changed since the last look but one
}

// NewWatch notes the present files. Paths that are "" are ignored.
func NewWatch(paths ...string) *Watch {
	w := &Watch{paths: slices.DeleteFunc(paths, func(path string) bool { return path == "" })}
	w.seen = w.look()
	return w
}

// Follow calls changed each time that a file was replaced, or its content, mode or owner
// changed, until ctx ends. It looks every second, and waits until two looks agree:
// several files that are replaced together, or one that is being written, cause one call.
// It reads no file.
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

// settled looks, and reports whether the files have changed, but not since the last look.
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
