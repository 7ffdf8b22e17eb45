package sqlitestore

import (
	"context"
	"os"
	"path/filepath"
)

// On a disk that is full the log cannot grow, but what is held needs no space: to renew and
// to release it changes rows that exist. So the log is copied into the database, and begins
// again in the space that it has. That works if all pages of the log exist in the
// database. So they are copied there soon after the database has grown, and when the disk
// is full the database gets no new pages until there is space again: what needs them, such
// as locks on new keys, is refused.

// spare is how much space there must be for the database to get new pages.
const spare = 1 << 16

// makeRoom restarts the log, between transactions, and decides whether the database may get
// new pages. It reports whether there may be room now.
func (s *Store) makeRoom() bool {
	ctx := context.Background()
	_, err := s.conn.ExecContext(ctx, "PRAGMA wal_checkpoint(RESTART)")
	most := "1" // the least that SQLite takes is the number of pages that there are
	if s.asOwner(s.findSpace) == nil {
		most = "4294967294"
	}
	_, failed := s.conn.ExecContext(ctx, "PRAGMA max_page_count = "+most)
	return err == nil && failed == nil
}

// keepRoom copies the log, between transactions, into a database that has outgrown its
// file. If that fails it is tried again later.
func (s *Store) keepRoom() {
	if s.outgrown {
		s.outgrown = false
		_, _ = s.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(PASSIVE)")
	}
}

// findSpace writes a file as large as spare beside the database, and removes it.
func (s *Store) findSpace() error {
	f, err := os.CreateTemp(filepath.Dir(s.path), ".baton-space-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	_, err = f.Write(make([]byte, spare))
	return err
}
