package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/sqlitestore"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("it needs the number of an order, such as A-1")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, order string) error {
	store, err := sqlitestore.Open(ctx, "points.db") // the locks and the points are in one file
	if err != nil {
		return err
	}
	defer store.Close()
	db, err := sql.Open("sqlite", "file:points.db?_pragma=busy_timeout(5000)") // waits while another process writes
	if err != nil {
		return err
	}
	defer db.Close()
	for _, q := range []string{
		"CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, points INTEGER NOT NULL)",
		"CREATE TABLE IF NOT EXISTS redeemed (number TEXT PRIMARY KEY)",
		"INSERT INTO account VALUES (7, 1000) ON CONFLICT DO NOTHING",
	} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		return err
	}
	ops, err := once.New(store, once.Config{})
	if err != nil {
		return err
	}
	receipt, err := ops.Do(ctx, "redeem/"+order, func(ctx context.Context, a once.Attempt) ([]byte, error) {
		lease, err := locks.Lock(ctx, "account/7")
		if err != nil {
			return nil, err
		}
		defer lease.Unlock()
		return redeem(ctx, db, store, lease, order)
	})
	if err != nil {
		return err
	}
	fmt.Printf("%s for the order %s\n", receipt, order)
	return nil
}
