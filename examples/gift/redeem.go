package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/sqlitestore"
)

var errTooFew = errors.New("not enough points")

func redeem(ctx context.Context, db *sql.DB, store *sqlitestore.Store, lease *baton.Lease, order string) ([]byte, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() // does nothing after Commit
	if err := store.InTx(ctx, tx, lease); err != nil {
		return nil, err // the lease has ended
	}
	done, err := tx.ExecContext(ctx, "INSERT INTO redeemed (number) VALUES (?) ON CONFLICT DO NOTHING", order)
	if err != nil {
		return nil, err
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return []byte("one gift"), err // an earlier attempt has committed
	}
	var points int
	if err := tx.QueryRowContext(ctx, "SELECT points FROM account WHERE id = 7").Scan(&points); err != nil {
		return nil, err
	}
	if points < 999 {
		return nil, once.Final(errTooFew)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE account SET points = ? WHERE id = 7", points-999); err != nil {
		return nil, err
	}
	return []byte("one gift"), tx.Commit()
}
