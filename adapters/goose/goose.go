// Package batongoose lets one program at a time run the migrations of
// github.com/pressly/goose/v3, with the lock in any store: for SQLite and other databases
// for which goose has no locker, for databases without a table of locks, and for
// migrations of several databases that must not run at once.
//
//	locker := batongoose.New(locks, "migrate/shop")
//	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithLocker(locker))
//	_, err = provider.Up(ctx)
//
// A program that waited finds the migrations applied and applies none. If a program
// crashes during a migration, the next one waits for the rest of the TTL.
//
// # When the lock is lost
//
// goose does not let a locker stop a migration: it continues, and Up returns its results
// with an error for which errors.Is(err, baton.ErrLost) is true. Meanwhile another
// program may migrate. To stop it, run the migrations in baton's Do instead of this
// package:
//
//	err := locks.Do(ctx, "migrate/shop", func(ctx context.Context, _ *baton.Lease) error {
//		_, err := provider.Up(ctx) // ctx ends if the lock is lost
//		return err
//	})
//
// The running statement is interrupted, and its transaction rolled back. The changes of a
// migration without a transaction stay, as after a crash.
//
// MySQL and MariaDB are not interrupted: the server finishes the statement, and rolls
// back its transaction after that. A CREATE or ALTER is never rolled back there, and ends
// the transaction: later changes of the migration stay.
//
// # What is not locked
//
// HasPending and GetVersions of goose use no locker.
package batongoose

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/pressly/goose/v3/lock"

	"github.com/batonhq/baton"
)

// A Locker is a lock.Locker of goose for goose.WithLocker. All providers that migrate the
// same database must have Lockers with the same key and store. Methods are safe for
// concurrent use, and several providers may share a Locker: it holds one lease at a time,
// even after a loss, until Unlock.
type Locker struct {
	locks *baton.Locker
	key   string
	turn  chan struct{} // held by the holder in this process

	mu    sync.Mutex
	lease *baton.Lease
}

var _ lock.Locker = (*Locker)(nil)

// New makes a Locker for the lock of key. The TTL of locks is how long no program can
// migrate after one crashed in a migration.
func New(locks *baton.Locker, key string) *Locker {
	return &Locker{locks: locks, key: key, turn: make(chan struct{}, 1)}
}

// Lock implements lock.Locker: it waits for the lock until ctx ends. It does not use the
// database. Its errors are those of baton's Lock, after which goose applies no migration.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("key %q: another provider of this process has the lock: %w", l.key, ctx.Err())
	}
	lease, err := l.locks.Lock(ctx, l.key)
	if err != nil {
		<-l.turn
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease
	return nil
}

// Unlock implements lock.Locker. A *baton.LostError says that the lock was lost while
// goose migrated. Other errors are those of Lease.Unlock, after which the lock expires
// within the TTL. Unlock need not be repeated after an error.
func (l *Locker) Unlock(context.Context, *sql.DB) error {
	l.mu.Lock()
	lease := l.lease
	l.lease = nil
	l.mu.Unlock()
	if lease == nil {
		return errNotLocked
	}
	err := lease.Unlock()
	<-l.turn
	return err
}

var errNotLocked = errors.New("batongoose: Unlock without Lock")
