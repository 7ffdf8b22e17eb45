package mysqlstore_test

import (
	"context"
	"database/sql"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/mysqlstore"
)

// A transaction that commits only while the lease is valid. With package baton
// the lease is a *baton.Lease from a Locker on the same store.
func ExampleStore_InTx() {
	pay := func(ctx context.Context, db *sql.DB, store *mysqlstore.Store, lease driver.Leased) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after Commit
		if err := store.InTx(ctx, tx, lease); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance - 100 WHERE id = 42"); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = pay
}
