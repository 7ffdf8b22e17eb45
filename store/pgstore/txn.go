package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver"
)

// Locks the row of a lease against everything but renewals and new waiters.
const (
	lockRowSQL  = `SELECT 1 FROM baton_lock WHERE k = $1::bytea AND id = $2::text AND ends > clock_timestamp() FOR KEY SHARE`
	claimRowSQL = `SELECT 1 FROM baton_claim WHERE k = $1::bytea AND id = $2::text AND seq = $3::bigint AND held AND ends > clock_timestamp() FOR KEY SHARE`
)

// InTx makes a transaction of the program depend on the lease: from the return of InTx to
// the end of the transaction no other process is granted the lock, even if the lease
// expires, is released or is broken meanwhile, and whichever process is paused. So what
// the transaction wrote is committed before any other holder can act, or not at all. This
// is the safest way to use a lock, and needs no fencing token; examples/redeem shows it.
// An error that is driver.ErrLost, or the lease's own, says that the lease has ended:
// roll the transaction back.
//
// The transaction must be in the database of the locks, and must see its tables and those
// of the locks. Renewals continue. Other processes wait for the end of the transaction,
// so keep it short, and set idle_in_transaction_session_timeout in case the program is
// stopped. In REPEATABLE READ and SERIALIZABLE call InTx first: a lease that was renewed
// after the transaction's first statement fails with a serialization error (40001), as
// other rows do.
//
// A rollback to a savepoint before the call undoes it, and so does the rollback of a
// nested pgx.Tx: then other claims are granted the lock while the transaction continues.
// Call InTx outside of savepoints, or again.
func (s *Store) InTx(ctx context.Context, tx pgx.Tx, lease driver.Leased) error {
	return inTx(lease, func(query string, args ...any) error {
		return tx.QueryRow(ctx, query, append([]any{pgx.QueryExecModeExec}, args...)...).Scan(new(int))
	})
}

// InSQLTx is InTx for a transaction of database/sql, with any driver that has parameters
// $1, $2 and takes []byte for bytea.
func (s *Store) InSQLTx(ctx context.Context, tx *sql.Tx, lease driver.Leased) error {
	return inTx(lease, func(query string, args ...any) error {
		return tx.QueryRowContext(ctx, query, args...).Scan(new(int))
	})
}

func inTx(lease driver.Leased, one func(query string, args ...any) error) error {
	c, err := lease.Pin()
	if err != nil {
		return err
	}
	err = one(lockRowSQL, []byte(c.Key), c.ID)
	if errors.Is(err, sql.ErrNoRows) { // includes pgx.ErrNoRows
		err = one(claimRowSQL, []byte(c.Key), c.ID, c.Ticket)
	}
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("postgres: lock %q: %w: roll the transaction back", c.Key, driver.ErrLost)
	}
	if err != nil {
		return fmt.Errorf("postgres: lock %q in a transaction: %w", c.Key, err)
	}
	return nil
}
