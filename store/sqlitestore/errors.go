package sqlitestore

import (
	"errors"
	"fmt"

	"github.com/batonhq/baton/driver"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Problems of a file. errors.Is finds each in a *FileError.
var (
	ErrNotDatabase   = errors.New("the file is not a SQLite database: choose another path")
	ErrDirectory     = errors.New("its directory is missing and cannot be made: make it or choose another path")
	ErrReadOnly      = errors.New("it cannot be written: check who may write the file and its directory")
	ErrFull          = errors.New("the disk is full: free some space")
	ErrIO            = errors.New("reading or writing failed: check the disk")
	ErrCorrupt       = errors.New("the database is damaged: stop all users of the file, then remove it with its -wal and -shm files")
	ErrEncoding      = errors.New("the database keeps its texts in UTF-16: choose another file")
	ErrReplaced      = errors.New("it was removed or replaced while in use, its locks are lost: open it again, and keep cleaners away from it")
	ErrNetworkFS     = errors.New("it is on a network or FUSE file system, where file locks do not keep processes apart: put it on a local disk, or use a store with a server")
	ErrTimeNamespace = errors.New("this process is in a time namespace of its own, whose clock others cannot compare with theirs: run it outside, or use a store with a server")
	ErrOtherMachine  = errors.New("another machine, or this one under another kernel, uses it at the same time, its locks are lost: give each machine a file, or use a store with a server")
	ErrNewerSchema   = errors.New("a newer version of Baton made its tables: update this program")
	ErrForeign       = errors.New("it, what leads to it or what is beside it belongs to another user")
	ErrPlatform      = errors.New("this operating system is not supported: use another store")
)

// FileError is a problem with the store's file. It wraps one of the errors above; as the
// answer to a request also driver.ErrUnavailable or driver.ErrUnknown.
type FileError struct {
	Path    string
	Problem error // one of the errors above
	Err     error // the error of the system or SQLite; may be nil
	outcome error
}

func (e *FileError) Error() string {
	s := fmt.Sprintf("sqlite store %s: %v", e.Path, e.Problem)
	if e.Err != nil {
		s += fmt.Sprintf(" (%v)", e.Err)
	}
	return s
}

// Unwrap returns everything that errors.Is shall find.
func (e *FileError) Unwrap() []error {
	var all []error
	for _, err := range []error{e.Problem, e.Err, e.outcome} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// failure makes an error of the contract out of SQLite's. outcome is
// driver.ErrUnavailable if the transaction was certainly undone.
func (s *Store) failure(err, outcome error) error {
	if e, ok := errors.AsType[*FileError](err); ok {
		return &FileError{Path: e.Path, Problem: e.Problem, Err: e.Err, outcome: outcome}
	}
	if problem := problemOf(err); problem != nil {
		return &FileError{Path: s.path, Problem: problem, Err: err, outcome: outcome}
	}
	return fmt.Errorf("sqlite store %s: %w: %w", s.path, outcome, err)
}

// code is the primary result code of SQLite, or -1.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return -1
}

func isBusy(err error) bool {
	c := code(err)
	return c == sqlite3.SQLITE_BUSY || c == sqlite3.SQLITE_LOCKED
}

func problemOf(err error) error {
	switch code(err) {
	case sqlite3.SQLITE_NOTADB:
		return ErrNotDatabase
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH:
		return ErrReadOnly
	case sqlite3.SQLITE_FULL:
		return ErrFull
	case sqlite3.SQLITE_IOERR:
		return ErrIO
	case sqlite3.SQLITE_CORRUPT:
		return ErrCorrupt
	}
	return nil
}

// commitOutcome tells whether a failed commit may still take effect: after a failed sync
// its frames may be on the disk, for a recovery to find.
func commitOutcome(err error) error {
	switch code(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY:
		return driver.ErrUnavailable
	}
	return driver.ErrUnknown
}
