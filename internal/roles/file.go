package roles

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/batonhq/baton/internal/ownfile"
)

// A File is a file of roles that is read again when it has changed. All methods are safe
// for concurrent use.
type File struct {
	path  string
	table atomic.Pointer[Table]

	reading sync.Mutex
}

// Open reads the file at path, which must be one that no other user can write.
func Open(path string) (*File, []Warning, error) {
	f := &File{path: path}
	t, warnings, err := f.read()
	if err != nil {
		return nil, nil, err
	}
	f.table.Store(t)
	return f, warnings, nil
}

// Table is the file as it was last read without an error.
func (f *File) Table() *Table { return f.table.Load() }

// Reload reads the file again, and tells what has changed. After an error the table is the
// one before.
func (f *File) Reload() (Change, []Warning, error) {
	f.reading.Lock()
	defer f.reading.Unlock()
	t, warnings, err := f.read()
	if err != nil {
		return Change{}, nil, err
	}
	return t.since(f.table.Swap(t)), warnings, nil
}

func (f *File) read() (*Table, []Warning, error) {
	text, err := ownfile.Read(f.path, MaxFile, false)
	if err != nil {
		return nil, nil, fmt.Errorf("roles: %w", err)
	}
	t, warnings, err := Parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("roles: %q, %w", f.path, err)
	}
	if len(t.names) == 0 { // as of a file that is being written
		return nil, nil, fmt.Errorf("roles: %q has no caller: %w", f.path, errEmpty)
	}
	return t, warnings, nil
}

// errEmpty says what a line is.
var errEmpty = errors.New("a line is NAME CREDENTIALS PREFIX=VERBS …")
