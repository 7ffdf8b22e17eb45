package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"github.com/batonhq/baton/internal/testserver"
)

var mariadbRivals = slices.Concat([]rival{
	{
		name:  "raw",
		about: "the bare exchange on go-sql-driver/mysql, one connection for each goroutine: one durable INSERT, one durable DELETE, prepared",
		open: func(e *env, goroutines int) (*room, error) {
			return mariadbRoom(e, goroutines, "INSERT INTO raw_row VALUES (?, 'v')", "DELETE FROM raw_row WHERE k = ?",
				func(lock, unlock *sql.Stmt, _ string) seat {
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
		},
	},
	{
		name:  "get-lock",
		about: "GET_LOCK and RELEASE_LOCK on go-sql-driver/mysql, prepared, one connection for each goroutine, which waits on it; no expiry, no token, and the lock goes with the connection",
		open: func(e *env, goroutines int) (*room, error) {
			return mariadbRoom(e, goroutines, "SELECT GET_LOCK(?, 60)", "SELECT RELEASE_LOCK(?)",
				func(lock, unlock *sql.Stmt, _ string) seat {
					return &pairSeat{lock: saysOne(lock), unlock: saysOne(unlock)}
				})
		},
	},
	{
		name:  "polled-table",
		about: "a lock table as it is usually written: INSERT, or take over what has expired, tried again every 5 ms and after a deadlock, on one connection for each goroutine; DELETE to unlock; no renewal, no token, no order",
		open: func(e *env, goroutines int) (*room, error) {
			const take = `INSERT INTO polled_lock VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE
				owner = IF(expires < ?, VALUES(owner), owner), expires = IF(owner = VALUES(owner), VALUES(expires), expires)`
			return mariadbRoom(e, goroutines, take, "DELETE FROM polled_lock WHERE k = ? AND owner = ?",
				func(lock, unlock *sql.Stmt, owner string) seat {
					return &polledSeat{
						take: func(ctx context.Context, key string, now, expires int64) (bool, error) {
							n, err := affected(lock.ExecContext(ctx, key, owner, expires, now))
							if deadlocked(err) {
								return false, nil // it is tried again
							}
							return n > 0, err
						},
						drop: func(key string) error {
							for {
								n, err := affected(unlock.Exec(key, owner))
								if !deadlocked(err) {
									return dropped(n, err)
								}
							}
						},
					}
				})
		},
	},
}, batonRivals("mysqlstore", mariadbURL))

var mariadbRivalSchema = []string{
	"CREATE TABLE raw_row (k VARCHAR(191) CHARACTER SET ascii PRIMARY KEY, v TEXT NOT NULL) ENGINE=InnoDB",
	"CREATE TABLE polled_lock (k VARCHAR(191) CHARACTER SET ascii PRIMARY KEY, owner VARCHAR(191) NOT NULL, expires BIGINT NOT NULL) ENGINE=InnoDB",
}

func mariadbURL(e *env) string { return "mariadb://root@" + e.at["mariadb"][0] + "/baton" }

func openMariaDB(e *env, connections int) (*sql.DB, error) {
	db, err := sql.Open("mysql", "root@tcp("+e.at["mariadb"][0]+")/baton")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// saysOne calls a function of the server that returns 1 on success.
func saysOne(stmt *sql.Stmt) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		var answer sql.NullInt64
		err := stmt.QueryRowContext(ctx, key).Scan(&answer)
		if err == nil && answer.Int64 != 1 {
			err = errors.New("get-lock: the server refused")
		}
		return err
	}
}

func deadlocked(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	const deadlock = 1213
	return ok && e.Number == deadlock
}

// mariadbRoom gives each goroutine a separate connection with two prepared statements.
func mariadbRoom(e *env, goroutines int, lock, unlock string, newSeat func(lock, unlock *sql.Stmt, owner string) seat) (*room, error) {
	ctx := context.Background()
	db, err := openMariaDB(e, goroutines)
	if err != nil {
		return nil, err
	}
	var conns []*sql.Conn
	closeAll := func() {
		for _, c := range conns {
			_ = c.Close() // nothing is under way
		}
		_ = db.Close()
	}
	seats := make([]seat, goroutines)
	for i := range seats {
		conn, err := db.Conn(ctx)
		var a, b *sql.Stmt
		if err == nil {
			conns = append(conns, conn)
			a, err = conn.PrepareContext(ctx, lock)
		}
		if err == nil {
			b, err = conn.PrepareContext(ctx, unlock)
		}
		if err != nil {
			closeAll()
			return nil, err
		}
		seats[i] = newSeat(a, b, strconv.Itoa(i))
	}
	return &room{
		seat:  func(i int) seat { return seats[i] },
		close: closeAll,
	}, nil
}

// startMariaDB starts a server that makes every commit durable and has room for a
// few connections of each goroutine.
func startMariaDB(t testserver.TB, e *env) error {
	s := testserver.MariaDB(t, "--innodb-flush-log-at-trx-commit=1", "--max-connections=2000", "--innodb-log-file-size=96M",
		"--innodb-buffer-pool-size=64M", "--innodb-monitor-enable=trx_rw_commits")
	e.runs("mariadb", &server{addrs: []string{s.Addr}, pids: []int{s.Pid()}})
	db, err := openMariaDB(e, 1)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = db.Close() }) // the server is removed, too
	for _, q := range mariadbRivalSchema {
		if _, err := db.Exec(q); err != nil {
			return fmt.Errorf("make the rivals' tables: %w", err)
		}
	}
	v := e.servers["mariadb"]
	if err := db.QueryRow("SELECT CONCAT('MariaDB ', VERSION(), ', innodb_flush_log_at_trx_commit ', @@innodb_flush_log_at_trx_commit)").Scan(&v.about); err != nil {
		return err
	}
	v.work = func() (w work, err error) {
		err = db.QueryRow(`SELECT
			(SELECT CAST(VARIABLE_VALUE AS SIGNED) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'QUESTIONS'),
			(SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rw_commits')`).Scan(&w.requests, &w.commits)
		return w, err
	}
	v.connections = func() (all, waiting int64, err error) {
		err = db.QueryRow(`SELECT COUNT(*),
			COALESCE(SUM(STATE = 'User lock'), 0) + (SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT')
			FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND USER = 'root'`).Scan(&all, &waiting)
		return all, waiting, err
	}
	return nil
}
