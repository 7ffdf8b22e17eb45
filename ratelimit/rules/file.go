package rules

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// Load reads the rules of a file. It returns an *os.PathError, or Errors.
func Load(path string) (Rules, error) {
	f, err := Open(path)
	if err != nil {
		return Rules{}, err
	}
	return f.Rules(), nil
}

// A File is a file of rules that may change. All methods are safe for concurrent
// use. It needs no Close: it is open only while it is read.
type File struct {
	path      string
	otherwise Failure // of rules and domains that do not say

	mu    sync.Mutex
	seen  os.FileInfo
	read  time.Time
	sum   [sha256.Size]byte
	rules Rules
}

// Open reads a file of rules. It returns an *os.PathError, or Errors.
func Open(path string) (*File, error) { return OpenOr(path, Failure{}) }

// OpenOr is Open for a program in which a store that fails is no error: otherwise is
// the OnFailure of rules and domains of the file that say nothing about it. Those that
// say on_failure: error keep to that.
func OpenOr(path string, otherwise Failure) (*File, error) {
	f := &File{path: path, otherwise: otherwise}
	if _, err := f.Changed(); err != nil {
		return nil, err
	}
	return f, nil
}

// Rules are those that were read last.
func (f *File) Rules() Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

// settled is how old a file is whose time of change tells whether it has changed
// since. A younger one may change twice within the resolution of that time.
const settled = 2 * time.Second

// Changed reports whether the file has other rules than at the last call: Rules
// returns them then. It costs one call to the system unless the time or the size of
// the file has changed, and reads nothing but the bytes if only the time has. After
// an error, the same as of Open, Rules are as before; a content that is not right is
// told once.
func (f *File) Changed() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	info, err := os.Stat(f.path)
	if err != nil {
		return false, err
	}
	if f.seen != nil && os.SameFile(f.seen, info) && f.seen.ModTime().Equal(info.ModTime()) && f.seen.Size() == info.Size() &&
		f.read.Sub(info.ModTime()).Abs() > settled {
		return false, nil
	}
	text, err := readFile(f.path)
	if err != nil {
		return false, err
	}
	first := f.seen == nil
	f.seen, f.read = info, now
	sum := sha256.Sum256(text)
	if !first && sum == f.sum {
		return false, nil
	}
	f.sum = sum
	rules, err := parse(f.path, text, f.otherwise)
	if err != nil {
		return false, err
	}
	f.rules = rules
	return true, nil
}

// readFile reads no more than Parse refuses for its size.
func readFile(path string) ([]byte, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(io.LimitReader(in, MaxFile+1))
}

// Follow looks every second whether the file has changed, and reloads its rules when
// the next look finds no other change: as far as it has come, a file that is being
// written may be right, and have too few rules. It returns the cause of the context's
// end. told, if it is not nil, is called after each reload, with nil, and after each
// error: then the Limiter goes on with the rules that it has. An error that repeats is
// told once.
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
		case bad: // so what was read before was not all
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
