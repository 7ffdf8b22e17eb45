package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // "pgx" for database/sql

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

// A naive limiter is a token bucket in a table, as it is usually written: a transaction that
// locks the row, computes in the program, and writes.
type naive struct {
	driver                    string
	create                    string
	insert, lockRow, writeRow string
}

var naivePostgres = naive{
	driver:   "pgx",
	create:   "CREATE TABLE IF NOT EXISTS naive_limit (k text PRIMARY KEY, tokens double precision NOT NULL, refilled bigint NOT NULL) WITH (fillfactor = 50)",
	insert:   "INSERT INTO naive_limit VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
	lockRow:  "SELECT tokens, refilled FROM naive_limit WHERE k = $1 FOR UPDATE",
	writeRow: "UPDATE naive_limit SET tokens = $2, refilled = $3 WHERE k = $1",
}

var naiveMariaDB = naive{
	driver:   "mysql",
	create:   "CREATE TABLE IF NOT EXISTS naive_limit (k VARCHAR(191) CHARACTER SET ascii PRIMARY KEY, tokens DOUBLE NOT NULL, refilled BIGINT NOT NULL) ENGINE=InnoDB",
	insert:   "INSERT IGNORE INTO naive_limit VALUES (?, ?, ?)",
	lockRow:  "SELECT tokens, refilled FROM naive_limit WHERE k = ? FOR UPDATE",
	writeRow: "UPDATE naive_limit SET tokens = ?, refilled = ? WHERE k = ?",
}

// open gives each goroutine a separate connection.
func (n naive) open(source string, goroutines int) (*room, error) {
	db, err := sql.Open(n.driver, source)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(goroutines)
	db.SetMaxIdleConns(goroutines)
	if _, err := db.Exec(n.create); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	var statements [3]*sql.Stmt
	for i, text := range []string{n.insert, n.lockRow, n.writeRow} {
		if statements[i], err = db.Prepare(text); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return &room{
		seat: common(deciding(func(ctx context.Context, key string) (bool, error) {
			for {
				ok, err := n.decide(ctx, db, statements, key)
				if !deadlocked(err) || ctx.Err() != nil {
					return ok, err
				}
			}
		})),
		close: func() { _ = db.Close() }, // nothing is under way
	}, nil
}

func (n naive) decide(ctx context.Context, db *sql.DB, statements [3]*sql.Stmt, key string) (bool, error) {
	// The next level locks gaps, and MariaDB's deadlocks would then continue as long as new
	// keys come.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // unless it was committed
	insert, lockRow, writeRow := tx.Stmt(statements[0]), tx.Stmt(statements[1]), tx.Stmt(statements[2])
	var tokens float64
	var refilled int64
	err = lockRow.QueryRowContext(ctx, key).Scan(&tokens, &refilled)
	if errors.Is(err, sql.ErrNoRows) {
		if _, err = insert.ExecContext(ctx, key, float64(limitN), time.Now().UnixMicro()); err == nil {
			err = lockRow.QueryRowContext(ctx, key).Scan(&tokens, &refilled)
		}
	}
	if err != nil {
		return false, err
	}
	now := time.Now().UnixMicro()
	tokens = min(tokens+float64(max(now-refilled, 0))*limitN/float64(limitEvery.Microseconds()), limitN)
	if tokens < 1 {
		return false, nil
	}
	args := []any{key, tokens - 1, now}
	if n.driver == "mysql" {
		args = []any{tokens - 1, now, key}
	}
	if _, err := writeRow.ExecContext(ctx, args...); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

// sqlLimitRivals are the naive limiter and Baton's.
func sqlLimitRivals(n naive, about string, source, url func(*env) string) []rival {
	baton := func(limit ratelimit.Limit) func(*env, int) (*room, error) {
		return func(e *env, _ int) (*room, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			s, err := open.Limits(ctx, url(e))
			if err != nil {
				return nil, err
			}
			return limiterRoom(s, limit, func() { _ = s.Close() })
		}
	}
	return []rival{
		{name: "naive", about: about, open: func(e *env, goroutines int) (*room, error) { return n.open(source(e), goroutines) }},
		{name: "baton", about: "Baton's token bucket, the store as its URL opens it", open: baton(ratelimit.TokenBucket(limitN, limitEvery, limitN))},
		{name: "baton-sliding", about: "Baton's sliding window (ten sub-windows, strict) there", open: baton(ratelimit.SlidingWindow(limitN, limitEvery))},
	}
}

var postgresLimitRivals = sqlLimitRivals(naivePostgres,
	"a token bucket as it is usually kept in a table: BEGIN, SELECT … FOR UPDATE, UPDATE, COMMIT on a connection for each goroutine, with the caller's clock and floating point; like Baton it does not wait for the disk (synchronous_commit off)",
	func(e *env) string { return postgresURL(e) + "&synchronous_commit=off" }, postgresURL)

var mariadbLimitRivals = sqlLimitRivals(naiveMariaDB,
	"a token bucket as it is usually kept in a table: BEGIN, SELECT … FOR UPDATE, UPDATE, COMMIT on a connection for each goroutine, with the caller's clock and floating point; a durable commit, like Baton's",
	func(e *env) string { return "root@tcp(" + e.at["mariadb"][0] + ")/baton" }, mariadbURL)

// likewise lets limiters use the server of the locks.
func likewise(system, locks string, start func(testserver.TB, *env) error) func(testserver.TB, *env) error {
	return func(t testserver.TB, e *env) error {
		if e.servers[locks] == nil {
			if err := start(t, e); err != nil {
				return err
			}
		}
		e.runs(system, e.servers[locks])
		return nil
	}
}

func sqlLimitWorkloads() (all []*workload) {
	for _, of := range []struct{ system, name string }{{"limit-pg", "PostgreSQL"}, {"limit-mariadb", "MariaDB"}} {
		all = append(all, freeLimitOf(of.system, "naive", "baton", "baton-sliding"))
		for _, keys := range []int{1, 10_000} {
			title := fmt.Sprintf("%s: a rate limit, 64 goroutines, %d keys", of.name, keys)
			if keys == 1 {
				title = of.name + ": a rate limit, 64 goroutines, one key"
			}
			all = append(all, &workload{
				name: fmt.Sprintf("%s-k%d", of.system, keys), title: title, system: of.system, base: "naive",
				names: []string{"naive", "baton", "baton-sliding"}, columns: decisionColumns, measure: oneByOne(measureDecisions(64, keys, 1)),
			})
		}
	}
	return all
}
