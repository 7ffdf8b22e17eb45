package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

// opener opens stores on the files of one test each, as processes would: no
// two share anything but the file.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Cleanup(func())
	TempDir() string
}

// An option is what a test changes.
type option = func(*options)

func openAt(t tester, path string, opts ...option) *Store {
	t.Helper()
	s, err := openWith(context.Background(), path, append([]option{func(o *options) { o.early = 1 << 20 }}, opts...)...) // what tests count must not be chance
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func openNew(t tester, opts ...option) *Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "locks.db"), opts...)
}

func handles(t tester, n int, opts ...option) []driver.Locks {
	path := filepath.Join(t.TempDir(), "locks.db")
	all := make([]driver.Locks, n)
	for i := range all {
		all[i] = openAt(t, path, opts...)
	}
	return all
}

func TestContract(t *testing.T) {
	drivertest.Locks(t, lockHarness(func(l driver.Locks) driver.Locks { return l }))
}

// lockHarness tests the stores that wrap makes of those of this package.
func lockHarness(wrap func(driver.Locks) driver.Locks) drivertest.Harness {
	h := drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			all := handles(t, n)
			for i, l := range all {
				all[i] = wrap(l)
			}
			return all
		},
		Restart: func(t drivertest.T, locks []driver.Locks) {
			for i, l := range locks {
				s := innermost(l)
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				locks[i] = wrap(openAt(t, s.path))
			}
		},
		Delete: func(t drivertest.T, key string, l driver.Locks) {
			s := innermost(l)
			for _, q := range []string{"DELETE FROM baton_claim WHERE k = ?", "DELETE FROM baton_lock WHERE k = ?"} {
				q := q
				if err := s.do(t.Context(), func(tx *tx) error {
					_, err := s.conn.ExecContext(context.Background(), q, []byte(key))
					return err
				}); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
		},
		Depend: depend,
	}
	if os.Geteuid() == 0 {
		h.OpenOwn = func(t drivertest.T, n int) []driver.Locks {
			path := filepath.Join(smallDisk(t), "locks.db")
			all := make([]driver.Locks, n)
			for i := range all {
				all[i] = wrap(openAt(t, path))
			}
			return all
		}
		h.Fill = func(t drivertest.T, locks []driver.Locks) (empty func()) {
			return fill(t, filepath.Dir(innermost(locks[0]).path))
		}
	}
	return h
}

// smallDisk is a directory on a file system of its own, of 1 MiB.
func smallDisk(t drivertest.T) string {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("mount, as root: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill uses up the file system of dir.
func fill(t drivertest.T, dir string) (empty func()) {
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatalf("fill: %v", err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill: %v", err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Errorf("empty: %v", err)
		}
	}
}

// innermost is the store below its wrappers.
func innermost(l driver.Locks) *Store {
	for {
		if s, ok := l.(*Store); ok {
			return s
		}
		l = l.(interface{ Unwrap() driver.Locks }).Unwrap()
	}
}

// depend begins a transaction that depends on the lease.
func depend(t drivertest.T, l driver.Locks, lease driver.Leased) (end func() error, err error) {
	s := innermost(l)
	db, err := sql.Open("sqlite", "file:"+s.path)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { db.Close() })
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	if err := s.InTx(context.Background(), tx, lease); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx.Commit, nil
}

// Without sockets the poll replaces the hints.
func TestContractWithoutSockets(t *testing.T) {
	testserver.Long(t)
	deaf := func(o *options) { o.deaf = true }
	drivertest.Locks(t, drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks { return handles(t, n, deaf) },
	})
}
