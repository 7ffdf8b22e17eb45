package roles

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/batonhq/baton/internal/ownfile"
)

// A File is a file of roles that can be read again. All methods are safe for concurrent
// use.
type File struct {
	path  string
	table atomic.Pointer[Table]

	reading sync.Mutex
}

// Open reads the file at path. No other user may be able to write it. The error is a
// *SyntaxError, an *ownfile.ModeError or an *fs.PathError; the first two do not name the
// file.
func Open(path string) (*File, []Warning, error) {
	f := &File{path: path}
	t, warnings, err := f.read()
	if err != nil {
		return nil, nil, err
	}
	f.table.Store(t)
	return f, warnings, nil
}

// Table returns the last table that was read without an error.
func (f *File) Table() *Table { return f.table.Load() }

// Reload reads the file again, and returns the changes. After an error the table stays as
// it was.
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
		return nil, nil, err
	}
	t, warnings, err := Parse(text)
	switch {
	case err != nil:
	case len(t.names) == 0: // so looks a file that is being written
		err = &SyntaxError{1, "there is no caller: a line is NAME CREDENTIALS PREFIX=VERBS …"}
	case !bytes.HasSuffix(text, []byte("\n")): // without its last rules a line may allow more
		err = &SyntaxError{bytes.Count(text, []byte("\n")) + 1, "the line has no end, as if the file was cut off: end it with a newline"}
	}
	if err != nil {
		return nil, nil, err
	}
	return t, warnings, nil
}
