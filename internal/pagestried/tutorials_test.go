package pagestried

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/once"
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

// TestPoints redeems points as docs/tutorials/points.md says.
func TestPoints(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, store := shop(t)
	for _, q := range []string{
		"CREATE TABLE account (id INTEGER PRIMARY KEY, points INTEGER NOT NULL)", "INSERT INTO account VALUES (7, 1000)",
		"CREATE TABLE redeemed (number TEXT PRIMARY KEY)",
	} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	press := func(locks *baton.Locker, ops *once.Runner, order string) (string, error) {
		receipt, err := ops.Do(ctx, "redeem/"+order, func(ctx context.Context, a once.Attempt) ([]byte, error) {
			lease, err := locks.Lock(ctx, "account/7")
			if err != nil {
				return nil, err
			}
			defer lease.Unlock()
			return redeem(ctx, db, store, lease, order)
		})
		return string(receipt), err
	}
	var all sync.WaitGroup
	for range 3 {
		locks := lockerOn(t, store)
		ops, err := once.New(store, once.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			all.Go(func() {
				if receipt, err := press(locks, ops, "A-1"); receipt != "one gift" || err != nil {
					t.Errorf("%q, %v", receipt, err)
				}
			})
		}
	}
	all.Wait()
	left := func(when string) {
		t.Helper()
		if n := number(t, db, "SELECT points FROM account"); n != 1 {
			t.Errorf("%s %d points are left, want 1", when, n)
		}
	}
	left("after one order that was sent nine times")

	locks := lockerOn(t, store)
	ops, err := once.New(store, once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := press(locks, ops, "A-2"); err == nil || !strings.Contains(err.Error(), errTooFew.Error()) {
			t.Errorf("a second order: %v", err)
		}
	}
	if _, err := db.ExecContext(ctx, "UPDATE account SET points = 1000"); err != nil {
		t.Fatal(err)
	}
	if _, err := press(locks, ops, "A-2"); err == nil {
		t.Error("an order that was refused for good was redeemed")
	}
	if _, err := db.ExecContext(ctx, "UPDATE account SET points = 1"); err != nil {
		t.Fatal(err)
	}
	// The record is lost, as in the crash of an attempt between its commit and its record.
	if err := ops.Forget(ctx, "redeem/A-1"); err != nil {
		t.Fatal(err)
	}
	if receipt, err := press(locks, ops, "A-1"); receipt != "one gift" || err != nil {
		t.Errorf("after the record was lost: %q, %v", receipt, err)
	}
	left("after the record was lost")

	lease, err := locks.Lock(ctx, "account/7")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Break(ctx, "account/7"); err != nil {
		t.Fatal(err)
	}
	if _, err := redeem(ctx, db, store, lease, "A-3"); !errors.Is(err, driver.ErrLost) && !errors.Is(err, baton.ErrLost) {
		t.Errorf("with a lease that has ended: %v", err)
	}
	left("after a lease that has ended")
}
