package once_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/sqlitestore"
)

// With a database that Baton keeps its locks in, no token is needed: InTx lets the
// transaction commit only while the lease of the attempt stands. The same
// transaction writes the key of the operation, so that an attempt that committed
// and crashed before its result was recorded is not repeated.
func ExampleAttempt_inTx() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "once")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := sqlitestore.Open(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	db, err := sql.Open("sqlite", filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TABLE booked (op TEXT PRIMARY KEY, points INTEGER NOT NULL)`); err != nil {
		fmt.Println(err)
		return
	}
	ops, err := once.New(store, once.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	redeem := func(ctx context.Context, a once.Attempt) (int, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback()
		if err := store.InTx(ctx, tx, a.Lease); err != nil {
			return 0, err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO booked VALUES (?, 100) ON CONFLICT DO NOTHING`, a.Key); err != nil {
			return 0, err
		}
		return 100, tx.Commit()
	}
	for range 2 {
		points, err := once.Do(ctx, ops, "redeem/4711", redeem)
		fmt.Println(points, err)
	}
	var sum int
	fmt.Println(db.QueryRow(`SELECT sum(points) FROM booked`).Scan(&sum), sum)
	// Output:
	// 100 <nil>
	// 100 <nil>
	// <nil> 100
}
