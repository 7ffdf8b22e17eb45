package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/batonhq/baton/driver"
)

// ErrOtherDatabase says that a transaction is not on the file of the locks.
var ErrOtherDatabase = errors.New("the transaction is on another database than the locks: open the file of the locks as its main database")

// ?1 key, ?2 ID, ?3 now, ?4 ticket.
const inTxSQL = `SELECT EXISTS (SELECT 1 FROM main.baton_lock WHERE k = ?1 AND id = ?2 AND ends > ?3)
	OR EXISTS (SELECT 1 FROM main.baton_claim WHERE k = ?1 AND seq = ?4 AND id = ?2 AND held AND ends > ?3)`

// inTxWithin bounds how long InTx waits for other writers of the file.
const inTxWithin = 5 * time.Second

// InTx checks within the caller's own transaction that the lease is valid, and makes the
// transaction the one writer of the file: from a nil error until its end no other process
// can be granted the lock, even if the lease expires or the caller is stopped. So what
// the transaction wrote is committed before any other holder can act, or not at all. This
// is the safest way to use a lock, and needs no fencing token; examples/redeem shows it.
//
// The file of the locks must be the main database of the transaction's connection. Call
// InTx before the transaction reads: SQLite refuses to let a transaction write whose
// reads are out of date. While the transaction lasts, no lock in the file is granted,
// renewed or released, so keep it shorter than a third of the shortest TTL: after about its
// TTL a Lock that waits returns ErrUnavailable or ErrUnknown. InTx waits at most five
// seconds for other writers. Call it outside of savepoints: rolling back to one
// undoes the check. tx is for one goroutine at a time, as always.
//
// An error that is driver.ErrLost, or the lease's own, says that the lease has ended.
// After any other error the lease may have ended. Roll back after every error.
func (s *Store) InTx(ctx context.Context, tx *sql.Tx, lease driver.Leased) error {
	c, err := lease.Pin()
	if err != nil {
		return err
	}
	s.mu.Lock()
	closed, broken := s.closed, s.broken
	s.mu.Unlock()
	if closed {
		return driver.ErrClosed
	}
	if broken != nil {
		return broken
	}
	valid, err := s.inTx(ctx, tx, c)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case outOfDate(err):
		return fmt.Errorf("sqlite store %s: %w: the transaction has read what others changed meanwhile: call InTx first: %w", s.path, driver.ErrUnavailable, err)
	case err != nil:
		return s.failure(err, driver.ErrUnavailable)
	case !valid:
		return fmt.Errorf("sqlite store %s: lock %q: %w: roll the transaction back", s.path, c.Key, driver.ErrLost)
	}
	return nil
}

func (s *Store) inTx(ctx context.Context, tx *sql.Tx, c driver.Claim) (valid bool, err error) {
	// Unlike a SELECT of the same, this reads nothing of the file.
	var seq int
	var name, path string // of the main database, which comes first
	if err := tx.QueryRowContext(ctx, `PRAGMA database_list`).Scan(&seq, &name, &path); err != nil {
		return false, err
	}
	if file, err := os.Stat(path); err != nil || !os.SameFile(file, s.file) {
		return false, &FileError{Path: s.path, Problem: ErrOtherDatabase, Err: err}
	}
	if file, err := os.Stat(s.path); err != nil || !os.SameFile(file, s.file) {
		return false, &FileError{Path: s.path, Problem: ErrReplaced, Err: err}
	}
	want, err := s.opts.boot()
	if err != nil {
		return false, err
	}
	boot, err := lockFile(ctx, tx)
	if err != nil {
		return false, err
	}
	if boot != want {
		return false, &FileError{Path: s.path, Problem: ErrOtherMachine}
	}
	// Other writers are excluded now, so no time passes after the reading of the clock.
	err = tx.QueryRowContext(ctx, inTxSQL, []byte(c.Key), c.ID, s.opts.clock(), c.Ticket).Scan(&valid)
	return valid, err
}

// lockFile makes tx the one writer and returns the boot of the times in the file.
func lockFile(ctx context.Context, tx *sql.Tx) (boot string, err error) {
	for deadline := time.Now().Add(inTxWithin); ; {
		err := tx.QueryRowContext(ctx, `UPDATE main.baton_meta SET value = value WHERE name = 'boot' RETURNING value`).Scan(&boot)
		if !isBusy(err) || outOfDate(err) || time.Now().After(deadline) {
			return boot, err
		}
		pause := time.NewTimer(time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return "", ctx.Err()
		}
	}
}

// outOfDate reports whether waiting cannot help the transaction.
func outOfDate(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code() == sqlite3.SQLITE_BUSY_SNAPSHOT
}
