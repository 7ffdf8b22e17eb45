package pagestried

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/sqlitestore"
)

var errSoldOut = errors.New("sold out")

func sell(ctx context.Context, db *sql.DB, lease *baton.Lease, buyer string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	if err := guard.SQLite.Raise(ctx, tx, "item/42", guard.Of(lease)); err != nil {
		return err // errors.Is(err, guard.ErrStale): a later lease was here
	}
	var left int
	if err := tx.QueryRowContext(ctx, "SELECT stock FROM item WHERE id = 42").Scan(&left); err != nil {
		return err
	}
	if left < 1 {
		return errSoldOut
	}
	if _, err := tx.ExecContext(ctx, "UPDATE item SET stock = ? WHERE id = 42", left-1); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO sold (item, buyer) VALUES (42, ?)", buyer); err != nil {
		return err
	}
	return tx.Commit()
}

// shop returns a database with 100 items, which has locks in the same file.
func shop(t *testing.T) (*sql.DB, *sqlitestore.Store) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	store, err := sqlitestore.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	err = guard.SQLite.Migrate(t.Context(), db)
	for _, q := range []string{
		"CREATE TABLE item (id INTEGER PRIMARY KEY, stock INTEGER NOT NULL)", "INSERT INTO item VALUES (42, 100)",
		"CREATE TABLE sold (item INTEGER NOT NULL, buyer TEXT NOT NULL)",
	} {
		if err == nil {
			_, err = db.ExecContext(t.Context(), q)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return db, store
}

func lockerOn(t *testing.T, store driver.Locks) *baton.Locker {
	t.Helper()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

// number is what a query for one number answers.
func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFlashSale sells as docs/tutorials/flash-sale.md says.
func TestFlashSale(t *testing.T) {
	t.Parallel()
	const servers, buyers = 3, 300
	ctx := t.Context()
	db, store := shop(t)
	var all sync.WaitGroup
	var soldOut atomic.Int64
	for s := range servers {
		locks := lockerOn(t, store)
		all.Go(func() {
			for b := range buyers / servers {
				err := locks.Do(ctx, "item/42", func(ctx context.Context, lease *baton.Lease) error {
					return sell(ctx, db, lease, fmt.Sprintf("buyer %d of server %d", b, s))
				})
				if errors.Is(err, errSoldOut) {
					soldOut.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if sold, left := number(t, db, "SELECT COUNT(*) FROM sold"), number(t, db, "SELECT stock FROM item"); sold != 100 || left != 0 || soldOut.Load() != buyers-100 {
		t.Errorf("%d are sold, %d are left, %d buyers were refused", sold, left, soldOut.Load())
	}

	// The next holder sells one of 100 new items before a holder whose lease has ended wakes up.
	if _, err := db.ExecContext(ctx, "UPDATE item SET stock = 100"); err != nil {
		t.Fatal(err)
	}
	locks, other := lockerOn(t, store), lockerOn(t, store)
	sleeper, err := locks.Lock(ctx, "item/42")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Break(ctx, "item/42"); err != nil {
		t.Fatal(err)
	}
	if err := other.Do(ctx, "item/42", func(ctx context.Context, lease *baton.Lease) error { return sell(ctx, db, lease, "next") }); err != nil {
		t.Error(err)
	}
	if err := sell(ctx, db, sleeper, "sleeper"); !errors.Is(err, guard.ErrStale) {
		t.Errorf("the stale sale: %v", err)
	}
	if left := number(t, db, "SELECT stock FROM item"); left != 99 {
		t.Errorf("%d are left, want 99", left)
	}

	// One statement needs no lock.
	n := int64(0)
	for range 101 {
		sold, err := db.ExecContext(ctx, "UPDATE item SET stock = stock - 1 WHERE id = 42 AND stock > 0")
		if err != nil {
			t.Fatal(err)
		}
		rows, err := sold.RowsAffected()
		if err != nil {
			t.Fatal(err)
		}
		n += rows
	}
	if n != 99 {
		t.Errorf("%d are sold by the statement, want 99", n)
	}
}

// TestFlashSaleInMemory sells from a variable, which only the lock protects.
func TestFlashSaleInMemory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	items := 100
	stock := func(context.Context) (int, error) { return items, nil }
	setStock := func(_ context.Context, n int) error { items = n; return nil }
	store := memstore.New()
	var all sync.WaitGroup
	var sold atomic.Int64
	for range 110 {
		locks := lockerOn(t, store)
		all.Go(func() {
			err := locks.Do(ctx, "item/42", func(ctx context.Context, lease *baton.Lease) error {
				left, err := stock(ctx)
				if err != nil {
					return err
				}
				if left < 1 {
					return errSoldOut
				}
				return setStock(ctx, left-1)
			})
			if err == nil {
				sold.Add(1)
			} else if !errors.Is(err, errSoldOut) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if sold.Load() != 100 || items != 0 {
		t.Errorf("%d are sold, %d are left", sold.Load(), items)
	}
}
