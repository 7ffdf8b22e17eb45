package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/batonhq/baton/driver"
)

// InTx checks within the caller's own transaction that the lease is valid, and locks its
// row: from a nil error until the transaction ends no other process can be granted the
// lock, whatever the clocks do and however long the caller is stopped. So what the
// transaction wrote is committed before any other holder can act, or not at all. This is
// the safest way to use a lock, and needs no fencing token; examples/redeem shows it.
// Call it before the first write, and keep the transaction shorter than a third of the
// TTL: while the row is locked the lease is not renewed and cannot be released, and no
// other process can join the queue of the key: after about its TTL a Lock there returns
// ErrUnavailable or ErrUnknown.
//
// The transaction must be on the server of the Store; the tables need not be in its
// default database. It may have any isolation level. In REPEATABLE READ and SERIALIZABLE
// call InTx before the transaction reads: on a MariaDB with innodb_snapshot_isolation,
// the default since 11.6.2, a lease that was renewed or has ended after the first read
// fails with error 1020, which does not tell whether the lease is valid. Without that
// setting InTx sees the present lease. A rollback to a savepoint before the call undoes
// the check: call InTx outside of savepoints, or again. tx is for one goroutine at a
// time, as always.
//
// An error that is driver.ErrLost, or the lease's own, says that the lease has ended.
// After any other error the lease may have ended. Roll back after every error.
func (s *Store) InTx(ctx context.Context, tx *sql.Tx, lease driver.Leased) error {
	c, err := lease.Pin()
	if err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	// Locking reads see committed rows, whatever the transaction read before, or fail. A
	// holder's rows exist, so no gap between rows is locked.
	for _, q := range []struct {
		text string
		args []any
	}{
		{"SELECT id=? AND ends>UTC_TIMESTAMP(6) FROM " + s.table("baton_lock") + " WHERE k=? FOR UPDATE", []any{c.ID, c.Key}},
		{"SELECT id=? AND held=1 AND ends>UTC_TIMESTAMP(6) FROM " + s.table("baton_claim") + " WHERE k=? AND seq=? FOR UPDATE", []any{c.ID, c.Key, c.Ticket}},
	} {
		var valid bool
		err := tx.QueryRowContext(ctx, q.text, q.args...).Scan(&valid)
		switch {
		case err == nil && valid:
			return nil
		case errors.Is(err, sql.ErrNoRows), err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case number(err) == erChanged:
			return fmt.Errorf("mysql: lock %q: %w: the transaction has read before the lease was renewed or ended (innodb_snapshot_isolation): roll it back, and call InTx first: %w", c.Key, driver.ErrUnavailable, err)
		default:
			return failure(err, false)
		}
	}
	return fmt.Errorf("mysql: lock %q: %w: roll the transaction back", c.Key, driver.ErrLost)
}

// table is the full name of a table, for every session of the server and any sql_mode.
func (s *Store) table(name string) string {
	return "`" + strings.ReplaceAll(s.schema, "`", "``") + "`." + name
}
