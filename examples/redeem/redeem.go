package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/mysqlstore"
	"github.com/batonhq/baton/store/pgstore"
	"github.com/batonhq/baton/store/sqlitestore"
)

const (
	atFirst = 1000
	price   = 999
	key     = "examples/redeem/account/7"
)

var errTooFew = errors.New("not enough points")

// tie makes a transaction depend on a lease: until the transaction ends, the store
// grants the lock to no other holder.
type tie func(ctx context.Context, tx *sql.Tx, lease driver.Leased) error

// tieTo returns the store's function for that.
func tieTo(store driver.Locks) (tie, error) {
	switch s := store.(type) {
	case *sqlitestore.Store:
		return s.InTx, nil
	case *pgstore.Store:
		return s.InSQLTx, nil // InTx is for transactions of pgx
	case *mysqlstore.Store:
		return s.InTx, nil
	}
	return nil, fmt.Errorf("the store %s has no transactions: %w", store.Traits().Store, errors.ErrUnsupported)
}

// redeem takes points from the account, or nothing. between is called before the commit,
// the worst moment to stop.
func redeem(ctx context.Context, db *sql.DB, inTx tie, lease driver.Leased, between func()) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	// This comes first: what is read before it may be out of date.
	if err := inTx(ctx, tx, lease); err != nil {
		return err
	}
	var points int
	if err := tx.QueryRowContext(ctx, "SELECT points FROM account WHERE id = 7").Scan(&points); err != nil {
		return err
	}
	if points < price {
		return errTooFew
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE account SET points = %d WHERE id = 7", points-price)); err != nil {
		return err
	}
	between()
	return tx.Commit()
}

func points(ctx context.Context, db *sql.DB) (n int, err error) {
	err = db.QueryRowContext(ctx, "SELECT points FROM account WHERE id = 7").Scan(&n)
	return n, err
}

// story is the result.
type story struct {
	After bool  // of the member's second try
	Found int   // points that the next holder saw
	Again error // the error of the member's second try
	Left  int
}

func redemption(ctx context.Context, store driver.Store, db *sql.DB) (s story, err error) {
	inTx, err := tieTo(store)
	if err != nil {
		return s, err
	}
	for _, q := range []string{"CREATE TABLE account (id INTEGER PRIMARY KEY, points INTEGER NOT NULL)", fmt.Sprintf("INSERT INTO account VALUES (7, %d)", atFirst)} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return s, err
		}
	}
	// Two programs that share the lock.
	member, err := baton.New(store, baton.Config{Owner: "member"})
	if err != nil {
		return s, err
	}
	other, err := baton.New(store, baton.Config{Owner: "other"})
	if err != nil {
		return s, err
	}
	lease, err := member.Lock(ctx, key)
	if err != nil {
		return s, err
	}
	defer lease.Unlock() // it is lost by then

	var committing atomic.Bool
	type arrival struct {
		lease *baton.Lease
		after bool
		err   error
	}
	next := make(chan arrival, 1)
	err = redeem(ctx, db, inTx, lease, func() {
		go func() {
			l, err := takeOver(ctx, other)
			next <- arrival{l, committing.Load(), err}
		}()
		// Enough time for another grant, if one were possible.
		pause := time.NewTimer(300 * time.Millisecond)
		defer pause.Stop()
		select {
		case a := <-next:
			next <- a
		case <-pause.C:
		}
		committing.Store(true)
	})
	if err != nil {
		return s, err
	}
	a := <-next
	if a.err != nil {
		return s, a.err
	}
	defer a.lease.Unlock()
	s.After = a.after
	if s.Found, err = points(ctx, db); err != nil {
		return s, err
	}
	// The member may still believe in the lease. The database does not.
	s.Again = redeem(ctx, db, inTx, lease, func() {})
	s.Left, err = points(ctx, db)
	return s, err
}

// takeOver breaks the lock and acquires it. Some stores make Break wait for the
// transaction, and give up before it ends.
func takeOver(ctx context.Context, by *baton.Locker) (*baton.Lease, error) {
	for {
		_, err := by.Break(ctx, key)
		if err == nil {
			return by.Lock(ctx, key)
		}
		if ctx.Err() != nil || !errors.Is(err, baton.ErrUnavailable) && !errors.Is(err, baton.ErrUnknown) {
			return nil, err
		}
	}
}
