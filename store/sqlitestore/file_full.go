package sqlitestore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// On a disk that is full the log cannot grow, but what is held needs no space: to renew and
// to release it changes rows that exist. So the log is copied into the database, and begins
// again in the space that it has. That works if all pages of the log exist in the
// database. So the database gets new pages only where there is space for them, and they are
// copied there soon. What needs more, such as locks on new keys, is refused.

// limitSize limits the database to the pages that it has: SQLite takes no less.
const limitSize = "PRAGMA max_page_count = 1"

// makeRoom restarts the log, between transactions, and lets the database grow by some bytes
// if there is space for them. retry says that there may be room now.
func (s *Store) makeRoom(bytes int64) (retry, grows bool) {
	ctx := context.Background()
	_, err := s.conn.ExecContext(ctx, "PRAGMA wal_checkpoint(RESTART)")
	limit := limitSize
	if err == nil && s.findSpace(bytes) == nil {
		var pages int64
		err = s.conn.QueryRowContext(ctx, "SELECT page_count + ?/page_size FROM pragma_page_count, pragma_page_size", bytes).Scan(&pages)
		limit = fmt.Sprintf("PRAGMA max_page_count = %d", pages)
		s.outgrown, grows = true, true
	}
	_, failed := s.conn.ExecContext(ctx, limit)
	return err == nil && failed == nil, grows
}

// keepRoom copies the log, between transactions, into a database that has outgrown its
// file. If that fails it is tried again later.
func (s *Store) keepRoom() {
	if s.outgrown {
		s.outgrown = false
		_, _ = s.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(PASSIVE)")
	}
}

// findSpace writes so many bytes beside the database, and removes them.
func (s *Store) findSpace(bytes int64) error {
	f, err := os.CreateTemp(filepath.Dir(s.path), ".baton-space-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // where an open file cannot be removed
	defer f.Close()
	_ = os.Remove(f.Name())
	_, err = f.Write(make([]byte, bytes))
	return err
}
