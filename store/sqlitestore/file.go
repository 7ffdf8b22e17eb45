package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/batonhq/baton/internal/kept"
)

// oldestSQLite is the first version in which two connections that restart the log at the
// same time do not damage the file.
const oldestSQLite = 3_051_003

// busyPause is the pause between two tries to begin while a writer outside the turnstile,
// such as a program with InTx, keeps the file busy.
const busyPause = time.Millisecond

// checkEvery is the period, in microseconds, in which a transaction checks that the file
// is still the one that was opened, on this machine.
const checkEvery = 1_000_000

func open(ctx context.Context, path string, o options) (s *Store, err error) {
	if path == "" {
		return nil, &FileError{Path: `""`, Problem: ErrNotDatabase, Err: errors.New("the path is empty")}
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	s = &Store{path: path, opts: o, served: make(chan struct{}), sweeper: sweeper{commits: max(0, o.sweepGap-o.early)}, limits: limiter{changed: max(0, limitSweepGap-o.early)}}
	s.work.L = &s.mu
	texts := kept.Texts{Store: traits.Store, Swap: s.swapText, List: s.listTexts}
	s.records, s.overrides = kept.NewRecords(texts), kept.NewOverrides(texts)
	bad := func(problem, err error) error { return &FileError{Path: path, Problem: problem, Err: err} }

	dir := filepath.Dir(path)
	if err := checkRoot(path); err != nil {
		return nil, bad(ErrForeign, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, bad(ErrDirectory, err)
	}
	switch fs, err := o.remote(dir); {
	case errors.Is(err, ErrPlatform):
		return nil, bad(ErrPlatform, nil)
	case err != nil:
		return nil, bad(ErrIO, err)
	case fs != "":
		return nil, bad(ErrNetworkFS, errors.New(fs))
	}
	if o.shifted() {
		return nil, bad(ErrTimeNamespace, nil)
	}
	if v := sqlite3.SQLITE_VERSION_NUMBER; v < oldestSQLite {
		return nil, fmt.Errorf("sqlite store: the SQLite library is version %d, at least %d is needed: update modernc.org/sqlite", v, oldestSQLite)
	}

	if err := create(path); err != nil {
		return nil, bad(problemOfOpen(err), err)
	}
	// One name for processes that come by different links: SQLite derives the name of its
	// log from it, and the store that of the turnstile.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, bad(ErrIO, err)
	}
	s.path = path
	if s.file, err = os.Stat(path); err != nil {
		return nil, bad(ErrIO, err)
	}
	switch {
	case s.file.IsDir():
		return nil, bad(ErrNotDatabase, errors.New("it is a directory"))
	case !s.file.Mode().IsRegular():
		return nil, bad(ErrNotDatabase, nil)
	}

	// The rights on the database are those on the files beside it.
	if err := s.openBeside(); err != nil {
		s.closeBeside()
		if _, ok := errors.AsType[*FileError](err); !ok {
			err = bad(ErrReadOnly, err)
		}
		return nil, err
	}
	s.mail = newMailbox(s)
	if err := s.connect(ctx); err != nil {
		s.shut()
		if problem := problemOf(err); problem != nil {
			err = bad(problem, err)
		}
		return nil, err
	}
	go s.serve()
	return s, nil
}

func (s *Store) openBeside() (err error) {
	if s.beside, err = openBeside(s.path, s.file); err == nil {
		err = s.turn.open(s.beside, s.file)
	}
	return err
}

func (s *Store) closeBeside() {
	s.turn.close()
	if s.beside != nil {
		s.beside.Close()
	}
}

// create makes the file before SQLite does, which would make it readable for all users.
// It does not open an existing file: to close that would drop SQLite's locks.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func problemOfOpen(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return ErrReadOnly
	}
	return ErrIO
}

// dsn is the library's name for the file. Writers wait at the turnstile, so SQLite has to
// wait only for a program outside of it, such as a shell; persist repeats its short wait.
func (s *Store) dsn(readOnly bool) string {
	q := "_error_rc=1&_dqs=0&_busy_timeout=50&_synchronous=FULL"
	if readOnly {
		q += "&_query_only=1"
	}
	return (&url.URL{Scheme: "file", Path: s.path, RawQuery: q}).String()
}

func (s *Store) connect(opening context.Context) error {
	// Locks that survive when other code closes the file, unless the library was used
	// before.
	sqlite.OFDLocking(true)

	var err error
	if s.db, err = sql.Open("sqlite", s.dsn(false)); err != nil {
		return err
	}
	s.db.SetMaxOpenConns(1)
	if s.readers, err = sql.Open("sqlite", s.dsn(true)); err != nil {
		return err
	}
	s.readers.SetMaxOpenConns(2)

	// Within the turnstile: changing the journal mode and making tables need the file
	// alone.
	if err := s.turn.enter(); err != nil {
		return err
	}
	defer s.turn.leave()
	if opening.Err() != nil { // the caller has given up, and may have removed the file
		return gaveUp(opening, s.path)
	}
	if err := checkLog(s.path, s.file); err != nil {
		return err
	}
	ctx := context.Background()
	if s.conn, err = persist(opening, s, func() (*sql.Conn, error) { return s.db.Conn(ctx) }); err != nil {
		return err
	}
	mode, err := persist(opening, s, func() (mode string, err error) {
		err = s.conn.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode)
		return mode, err
	})
	if err != nil {
		return err
	}
	if mode != "wal" {
		return &FileError{Path: s.path, Problem: ErrReadOnly, Err: fmt.Errorf("its journal mode stays %q", mode)}
	}
	var encoding string
	if err := s.conn.QueryRowContext(ctx, "PRAGMA encoding").Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF-8" { // a CAST from TEXT would not give the bytes of a key
		return &FileError{Path: s.path, Problem: ErrEncoding, Err: errors.New(encoding)}
	}
	// A log that has grown is cut back.
	if _, err := s.conn.ExecContext(ctx, "PRAGMA journal_size_limit = 8388608"); err != nil {
		return err
	}
	if err := s.migrate(opening); err != nil {
		return err
	}
	if _, err := s.conn.ExecContext(ctx, limitSize); err != nil {
		return err
	}
	s.tx.s = s
	// From now on begin waits instead, and notices when callers give up.
	_, err = s.conn.ExecContext(ctx, "PRAGMA busy_timeout = 0")
	return err
}

// persist repeats f while other processes keep the file busy, until opening ends.
func persist[T any](opening context.Context, s *Store, f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if !isBusy(err) {
			return v, err
		}
		if opening.Err() != nil {
			return v, gaveUp(opening, s.path)
		}
	}
}

// check finds out, within a transaction, whether the file is still the one that was
// opened, and no other machine uses it.
func (s *Store) check() error {
	now, err := os.Stat(s.path)
	if err != nil || !os.SameFile(now, s.file) {
		return &FileError{Path: s.path, Problem: ErrReplaced, Err: err}
	}
	if at := s.opts.clock(); at-s.checked >= checkEvery {
		want, err := s.opts.boot()
		if err != nil {
			return err
		}
		var boot string
		if err := s.row(stBoot).Scan(&boot); err != nil {
			return err
		}
		if boot != want {
			return &FileError{Path: s.path, Problem: ErrOtherMachine}
		}
		if err := s.row(stSize).Scan(&s.size); err != nil {
			return err
		}
		s.outgrown = s.size > now.Size()
		s.checked = at
	}
	return nil
}

func (s *Store) shut() error {
	var errs []error
	s.mail.close()
	for _, st := range s.stmt {
		if st != nil {
			st.Close()
		}
	}
	if s.readers != nil {
		errs = append(errs, s.readers.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.db != nil { // the last connection to close removes the log
		errs = append(errs, s.db.Close())
	}
	s.closeBeside()
	return errors.Join(errs...)
}
