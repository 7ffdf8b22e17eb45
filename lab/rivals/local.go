package main

import (
	"context"
	"database/sql"
	"errors"
	"strconv"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/sqlitestore"
)

var memoryRivals = []rival{
	{
		name:  "fifo-channel",
		about: "a goroutine that owns a queue, with a channel on which locking is asked for, one on which it is given back, and one for each goroutine's turn; one lock, no name, no expiry, no cancelling",
		open: func(*env, int) (*room, error) {
			q := &fifoQueue{ask: make(chan chan struct{}), free: make(chan struct{})}
			go q.serve()
			return &room{
				seat:  func(int) seat { return fifoSeat{q, make(chan struct{}, 1)} },
				close: func() { close(q.ask) },
			}, nil
		},
	},
	{
		name:  "token-channel",
		about: "the floor: a channel that holds one token; that receivers get it in the order of their arrival is how Go does it, not what it promises; one lock, no name, no expiry, no cancelling",
		open: func(*env, int) (*room, error) {
			token := make(chan struct{}, 1)
			token <- struct{}{}
			return &room{seat: common(channelSeat{token}), close: func() {}}, nil
		},
	},
	{
		name:  "baton",
		about: "Baton on memstore, TTL 15 s",
		open: func(*env, int) (*room, error) {
			return batonRoom(1, baton.Config{TTL: ttl}, func() (driver.Locks, func(), error) {
				store := memstore.New()
				return store, func() { _ = store.Close() }, nil
			})
		},
	},
}

type fifoQueue struct {
	ask  chan chan struct{}
	free chan struct{}
}

// serve runs until ask is closed.
func (q *fifoQueue) serve() {
	var queue []chan struct{}
	held := false
	for {
		select {
		case turn, ok := <-q.ask:
			switch {
			case !ok:
				return
			case held:
				queue = append(queue, turn)
			default:
				held = true
				turn <- struct{}{}
			}
		case <-q.free:
			if len(queue) == 0 {
				held = false
			} else {
				queue[0] <- struct{}{}
				queue = queue[1:]
			}
		}
	}
}

type fifoSeat struct {
	queue *fifoQueue
	turn  chan struct{} // cap 1: the queue never blocks
}

func (s fifoSeat) Lock(context.Context, string) (unlocker, error) {
	s.queue.ask <- s.turn
	<-s.turn
	return s, nil
}

func (s fifoSeat) Unlock() error {
	s.queue.free <- struct{}{}
	return nil
}

type channelSeat struct{ token chan struct{} }

func (s channelSeat) Lock(context.Context, string) (unlocker, error) {
	<-s.token
	return s, nil
}

func (s channelSeat) Unlock() error {
	s.token <- struct{}{}
	return nil
}

const sqliteRivalSchema = `
CREATE TABLE IF NOT EXISTS raw_row (k TEXT PRIMARY KEY, v TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS polled_lock (k TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL) WITHOUT ROWID;
`

var sqliteRivals = []rival{
	{
		name:  "raw",
		about: "the bare exchange: one durable INSERT, one durable DELETE, prepared, through the same driver into the same file (WAL, synchronous FULL)",
		open:  openSQLiteRaw,
	},
	{
		name:  "polled-table",
		about: "a lock table as it is usually written: INSERT, or take over what has expired, tried again every 5 ms; DELETE to unlock; the same file and driver; no renewal, no token, no order",
		open:  openPolledTable,
	},
	{
		name:  "baton",
		about: "Baton on sqlitestore, TTL 15 s; what it granted is on the disk, what it released need not be: a reboot ends all locks",
		open: func(e *env, _ int) (*room, error) {
			return batonRoom(1, baton.Config{TTL: ttl}, func() (driver.Locks, func(), error) { return e.sqlite, func() {}, nil })
		},
	},
	{
		name:  "baton-noline",
		about: noLine("SQLite"), manyStores: true,
		open: func(e *env, goroutines int) (*room, error) {
			return batonRoom(goroutines, baton.Config{TTL: ttl}, func() (driver.Locks, func(), error) {
				s, err := sqlitestore.Open(context.Background(), e.sqlitePath())
				return s, func() { _ = s.Close() }, err // nothing is held
			})
		},
	},
}

// sqliteRoom opens a room whose seats use two prepared statements.
func sqliteRoom(db *sql.DB, lock, unlock string, newSeat func(i int, lock, unlock *sql.Stmt) seat) (*room, error) {
	a, err := db.Prepare(lock)
	if err != nil {
		return nil, err
	}
	b, err := db.Prepare(unlock)
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return &room{
		seat:  func(i int) seat { return newSeat(i, a, b) },
		close: func() { _, _ = a.Close(), b.Close() }, // nothing depends on them
	}, nil
}

func openSQLiteRaw(e *env, _ int) (*room, error) {
	return sqliteRoom(e.db, "INSERT INTO raw_row VALUES (?, 'v')", "DELETE FROM raw_row WHERE k = ?",
		func(_ int, lock, unlock *sql.Stmt) seat {
			return &pairSeat{
				lock: func(ctx context.Context, key string) error {
					_, err := lock.ExecContext(ctx, key)
					return err
				},
				unlock: func(ctx context.Context, key string) error {
					_, err := unlock.ExecContext(ctx, key)
					return err
				},
			}
		})
}

func openPolledTable(e *env, _ int) (*room, error) {
	const lock = `INSERT INTO polled_lock VALUES (?1, ?2, ?3)
		ON CONFLICT (k) DO UPDATE SET owner = excluded.owner, expires = excluded.expires WHERE polled_lock.expires < ?4`
	return sqliteRoom(e.db, lock, "DELETE FROM polled_lock WHERE k = ? AND owner = ?",
		func(i int, lock, unlock *sql.Stmt) seat {
			owner := strconv.Itoa(i)
			return &polledSeat{
				take: func(ctx context.Context, key string, now, expires int64) (bool, error) {
					n, err := affected(lock.ExecContext(ctx, key, owner, expires, now))
					return n == 1, err
				},
				drop: func(key string) error {
					n, err := affected(unlock.Exec(key, owner))
					return dropped(n, err)
				},
			}
		})
}

// affected is how many rows a statement has changed.
func affected(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}
