package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// leased is a lease with a claim, as package baton has them.
type leased struct {
	claim driver.Claim
	err   error
}

func (l leased) Pin() (driver.Claim, error) { return l.claim, l.err }

// program opens a file as a program does that keeps its own tables in it.
func program(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.Exec("CREATE TABLE IF NOT EXISTS account (balance INTEGER NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return db
}

func beginTx(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func TestInTx(t *testing.T) {
	w := newWorld()
	s := openNew(t, w.option)
	db := program(t, s.path)
	inTx := func(p *place) error {
		tx := beginTx(t, db)
		defer tx.Rollback()
		return s.InTx(t.Context(), tx, leased{claim: p.Claim})
	}
	a, shared := writer(t, s, "k"), reader(t, s, "shared")
	a.hold(time.Minute)
	shared.hold(time.Minute)
	b := writer(t, s, "k").join(time.Minute)
	for name, p := range map[string]*place{"the holder": a, "a reader": shared} {
		if err := inTx(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := inTx(b); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a waiter: %v, want ErrLost", err)
	}
	a.release()
	if err := inTx(a); !errors.Is(err, driver.ErrLost) {
		t.Errorf("released: %v, want ErrLost", err)
	}
	if r := b.renew(time.Minute); r.State != driver.Held {
		t.Fatalf("the next: %+v", r)
	}
	if err := inTx(b); err != nil {
		t.Errorf("out of the queue: %v", err)
	}
	if _, err := s.Break(t.Context(), "shared"); err != nil {
		t.Fatal(err)
	}
	if err := inTx(shared); !errors.Is(err, driver.ErrLost) {
		t.Errorf("broken: %v, want ErrLost", err)
	}
	w.pass(2 * time.Minute)
	if err := inTx(b); !errors.Is(err, driver.ErrLost) {
		t.Errorf("expired: %v, want ErrLost", err)
	}
	gone := errors.New("ended")
	if err := s.InTx(t.Context(), beginTx(t, db), leased{err: gone}); !errors.Is(err, gone) {
		t.Errorf("a lease that has ended: %v", err)
	}
}

// The lease ends while the transaction is open, as for a program that is stopped. No
// claim is granted the lock before the commit.
func TestInTxCommitsBeforeTheNextHolder(t *testing.T) {
	w := newWorld()
	s := openNew(t, w.option)
	db := program(t, s.path)
	a, next := writer(t, s, "k"), writer(t, s, "k")
	a.hold(time.Minute)
	tx := beginTx(t, db)
	if err := s.InTx(t.Context(), tx, leased{claim: a.Claim}); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("INSERT INTO account VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	w.pass(2 * time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r := driver.Request{Claim: next.Claim, TTL: time.Minute}
	if g, err := s.Acquire(ctx, r); err == nil {
		t.Fatalf("granted %+v while the transaction is open", g)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	r.Retry = true
	if _, err := s.Acquire(t.Context(), r); err != nil {
		t.Fatalf("after the commit: %v", err)
	}
	var n int
	if err := db.QueryRow("SELECT count(*) FROM account").Scan(&n); err != nil || n != 1 {
		t.Errorf("the next holder sees %d rows, %v", n, err)
	}
}

// A transaction that has read before the lock changed hands must not commit
// what it concluded, and one on another file proves nothing.
func TestInTxRefuses(t *testing.T) {
	s := openNew(t)
	db := program(t, s.path)
	a := writer(t, s, "k")
	a.hold(time.Minute)
	tx := beginTx(t, db)
	var n int
	if err := tx.QueryRow("SELECT count(*) FROM baton_lock").Scan(&n); err != nil {
		t.Fatal(err)
	}
	a.release()
	writer(t, s, "k").hold(time.Minute)
	if err := s.InTx(t.Context(), tx, leased{claim: a.Claim}); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "call InTx first") {
		t.Errorf("reads out of date: %v, want ErrUnavailable", err)
	}
	tx.Rollback()

	elsewhere := openAt(t, filepath.Join(t.TempDir(), "other.db"))
	tx = beginTx(t, program(t, elsewhere.path))
	if err := s.InTx(t.Context(), tx, leased{claim: a.Claim}); !errors.Is(err, ErrOtherDatabase) {
		t.Errorf("another file: %v, want ErrOtherDatabase", err)
	}
}

// Many programs write at once; each waits until it may write.
func TestInTxWaitsForWriters(t *testing.T) {
	s := openNew(t)
	db := program(t, s.path)
	a := writer(t, s, "k")
	a.hold(time.Minute)
	blocker := beginTx(t, db)
	if _, err := blocker.Exec("INSERT INTO account VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.InTx(ctx, beginTx(t, db), leased{claim: a.Claim}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another writes: %v, want the context's error", err)
	}
	done := make(chan error, 1)
	go func() {
		tx, err := db.Begin()
		if err == nil {
			err = errors.Join(s.InTx(context.Background(), tx, leased{claim: a.Claim}), tx.Commit())
		}
		done <- err
	}()
	if err := blocker.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the other's commit: %v", err)
	}
}
