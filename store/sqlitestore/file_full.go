package sqlitestore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// On a full disk the log cannot grow. Renewals and releases need no new space in the
// database: they change existing rows. So the store copies the log into the database, and
// the log begins again in its own space. This requires that the database file has all
// pages of the log. Therefore the database gets new pages only while there is space for
// them, and they are copied soon. Requests that need more, such as locks on new keys, are
// refused.

// limitSize limits the database to its present pages: SQLite raises the 1 to that.
const limitSize = "PRAGMA max_page_count = 1"

// makeRoom restarts the log, between transactions, and lets the database grow by some
// bytes if there is space. retry says that there may be room now.
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
// file. After a failure it is called again later.
func (s *Store) keepRoom() {
	if s.outgrown {
		s.outgrown = false
		_, _ = s.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(PASSIVE)")
	}
}

// findSpace checks for free space: it writes bytes beside the database and removes them.
func (s *Store) findSpace(bytes int64) error {
	f, err := os.CreateTemp(filepath.Dir(s.path), ".baton-space-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // for systems that cannot remove an open file
	defer f.Close()
	_ = os.Remove(f.Name())
	_, err = f.Write(make([]byte, bytes))
	return err
}
