package pgstore_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/pgstore"
)

// A store over the pool that the program has, and a transaction that commits only while
// the lease is valid.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://app@db1/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := pgstore.Migrate(ctx, pool); err != nil { // makes the tables
		log.Fatal(err)
	}
	store, err := pgstore.New(ctx, pool, pgstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close() // not of the pool
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Do(ctx, "account/42", func(ctx context.Context, lease *baton.Lease) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := store.InTx(ctx, tx, lease); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE account SET balance = balance - 100 WHERE id = 42")
			return err
		})
	})
	if err != nil {
		log.Fatal(err)
	}
}
