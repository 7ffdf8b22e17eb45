package rules

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/internal/ownfile"
)

// Load reads the rules of files and folders, as Open does.
func Load(paths ...string) (Rules, error) {
	f, err := Open(paths...)
	if err != nil {
		return Rules{}, err
	}
	return f.Rules(), nil
}

// A File is one or more files of rules that may change. All methods are safe for
// concurrent use. It needs no Close: files are open only while they are read.
type File struct {
	paths     []string
	otherwise Failure // of rules and domains without one

	mu    sync.Mutex
	names []string // of the files
	seen  []os.FileInfo
	read  time.Time
	sum   [sha256.Size]byte
	rules Rules
}

// Open reads files of rules, which together are one: each may have a part of a domain. In
// a folder it reads the files whose names end in .yaml or .yml and do not begin with a
// dot, in the order of their names. It returns an *os.PathError, or Errors.
func Open(paths ...string) (*File, error) { return OpenOr(Failure{}, paths...) }

// OpenOr is Open with a default for OnFailure: otherwise applies to rules and domains of
// the files that do not set it. Those with on_failure: error keep that.
func OpenOr(otherwise Failure, paths ...string) (*File, error) {
	f := &File{paths: paths, otherwise: otherwise}
	if _, err := f.Changed(); err != nil {
		return nil, err
	}
	return f, nil
}

// Rules are the rules that were read last.
func (f *File) Rules() Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

// settled is the age at which a file's time of change is reliable. A younger file may
// change twice within the resolution of that time.
const settled = 2 * time.Second

// Changed reads the files again and reports whether the rules have changed: Rules returns
// the new ones then. It costs one system call for each file unless the time or the size
// of one has changed, and compares only the bytes if only a time has. After an error, the
// same as of Open, Rules are as before; Changed reports a content with mistakes once.
func (f *File) Changed() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	names, seen, err := look(f.paths)
	if err != nil {
		return false, err
	}
	if f.names != nil && f.same(names, seen) {
		return false, nil
	}
	files, hash := make([]source, len(names)), sha256.New()
	for i, name := range names {
		text, err := readFile(name)
		if err != nil {
			return false, err
		}
		files[i] = source{file: name, content: text}
		fmt.Fprintf(hash, "%q %d\n", name, len(text))
		hash.Write(text)
	}
	first, sum := f.names == nil, [sha256.Size]byte(hash.Sum(nil))
	f.names, f.seen, f.read = names, seen, now
	if !first && sum == f.sum {
		return false, nil
	}
	f.sum = sum
	rules, err := parse(files, f.otherwise)
	if err != nil {
		return false, err
	}
	f.rules = rules
	return true, nil
}

// same reports whether the files have not changed since they were read.
func (f *File) same(names []string, seen []os.FileInfo) bool {
	if !slices.Equal(names, f.names) {
		return false
	}
	for i, now := range seen {
		then := f.seen[i]
		if !os.SameFile(then, now) || !then.ModTime().Equal(now.ModTime()) || then.Size() != now.Size() || f.read.Sub(now.ModTime()).Abs() <= settled {
			return false
		}
	}
	return true
}

// look finds the files of paths.
func look(paths []string) (names []string, seen []os.FileInfo, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, nil, err
		}
		if !info.IsDir() {
			names, seen = append(names, path), append(seen, info)
			continue
		}
		entries, err := os.ReadDir(path) // in the order of names
		if err != nil {
			return nil, nil, err
		}
		before := len(names)
		for _, entry := range entries {
			name := entry.Name()
			if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" || name[0] == '.' {
				continue
			}
			name = filepath.Join(path, name)
			info, err := os.Stat(name)
			if err != nil {
				return nil, nil, err
			}
			if !info.IsDir() {
				names, seen = append(names, name), append(seen, info)
			}
		}
		if len(names) == before {
			return nil, nil, &os.PathError{Op: "read", Path: path, Err: errors.New("the folder has no file whose name ends in .yaml or .yml")}
		}
	}
	if len(names) == 0 {
		return nil, nil, &os.PathError{Op: "read", Err: errors.New("no file of rules is named")}
	}
	return names, seen, nil
}

// readFile reads a regular file, and at most one byte more than the limit of its size.
func readFile(path string) ([]byte, error) {
	in, err := ownfile.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(io.LimitReader(in, MaxFile+1))
}

// Follow looks every second whether the files, or those in a folder, have changed, and
// reloads the rules when the next look finds no other change: a file that is being
// written may be valid, and have too few rules. It returns the cause of the context's
// end. told, if it is not nil, is called after each reload, with nil, and after each
// error: the Limiter keeps its rules then. A repeated error is reported once.
func (l *Limiter) Follow(ctx context.Context, f *File, told func(error)) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, fresh := "", false
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		changed, err := f.Changed()
		reload := fresh && !changed && err == nil
		switch _, bad := errors.AsType[Errors](err); {
		case changed:
			fresh = true
		case reload:
			fresh, err = false, l.Reload(f.Rules())
		case bad: // so what was read before was not complete
			fresh = false
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if told != nil && (reload || err != nil && text != last) {
			told(err)
		}
		last = text
	}
}
