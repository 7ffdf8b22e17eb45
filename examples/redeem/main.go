// Redeem spends points in a transaction that commits only while the lease is valid. This
// is the safest way to use a lock, for programs whose data are in the database that keeps
// the locks. It needs no token and no guard.
//
//	go run ./examples/redeem
//
// A member redeems 999 of 1000 points. Between the check and the commit an operator
// breaks the lock, and the next holder asks for it: the store grants it after the commit,
// and the holder finds one point. The member does not know yet that the lock is gone. It
// tries once more, and is refused.
//
// It runs on a SQLite file; the test does the same on PostgreSQL and MariaDB.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/sqlitestore"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "redeem:", err)
		os.Exit(1)
	}
}

func run(w io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "redeem")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "shop.db")
	store, err := sqlitestore.Open(ctx, path)
	if err != nil {
		return err
	}
	defer store.Close()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer db.Close()
	s, err := redemption(ctx, store, db)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "The next holder was granted the lock after the commit: %v. He found %d point.\n", s.After, s.Found)
	fmt.Fprintf(w, "The member's second try was refused: %v. %d point is left.\n", errors.Is(s.Again, driver.ErrLost) || errors.Is(s.Again, baton.ErrLost), s.Left)
	return nil
}
