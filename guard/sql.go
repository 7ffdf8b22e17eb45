package guard

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"
)

// SQL guards the writes of a transaction. Raise compares and raises the token in a row of
// the table baton_guard inside the transaction, which holds that row locked from then on.
// A transaction with a lower token waits for the row, and is then refused. So
// transactions commit in the order of their tokens.
//
// The row must be in the database that the transaction writes to. The first Raise makes
// it. It must stay as long as a writer with a lower token may still write.
type SQL uint8

// The dialects.
const (
	SQLite   SQL = iota + 1 // 3.37 or newer
	Postgres                // 9.5 or newer
	MySQL                   // MySQL 5.7 or newer, MariaDB; InnoDB
)

//go:embed schema/sqlite.sql
var sqliteSchema string

//go:embed schema/postgres.sql
var postgresSchema string

//go:embed schema/mysql.sql
var mysqlSchema string

// Schema is the SQL that makes the table, for programs that keep all their tables in
// migrations. It does not change an existing table.
func (s SQL) Schema() string {
	switch s {
	case SQLite:
		return sqliteSchema
	case Postgres:
		return postgresSchema
	case MySQL:
		return mysqlSchema
	}
	return ""
}

// Migrate makes a missing table. Several programs may call it at once.
func (s SQL) Migrate(ctx context.Context, db *sql.DB) error {
	if s.Schema() == "" {
		return s.none()
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("guard: make the table: %w", err)
	}
	defer tx.Rollback() // no effect after Commit
	if s == Postgres {  // otherwise two at once may fail. The number is "baton" as text
		_, err = tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(x'6261746f6e'::bigint)`)
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, s.Schema())
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("guard: make the table: %w", err)
	}
	return nil
}

// Row is the answer of a query, such as *sql.Row and pgx.Row.
type Row interface{ Scan(dest ...any) error }

// raiseRow returns no row if the pass is refused. In both cases the row is locked.
const raiseRow = `INSERT INTO baton_guard AS g (resource, token, holder) VALUES (%s)
	ON CONFLICT (resource) DO UPDATE SET token = excluded.token, holder = excluded.holder
	WHERE g.token < excluded.token OR g.token = excluded.token AND g.holder = excluded.holder
	RETURNING token`

var (
	sqliteRaise   = fmt.Sprintf(raiseRow, "?, ?, ?")
	postgresRaise = fmt.Sprintf(raiseRow, "$1::bytea, $2::bigint, $3::text")
)

const (
	sqliteLast   = `SELECT token FROM baton_guard WHERE resource = ?`
	postgresLast = `SELECT token FROM baton_guard WHERE resource = $1::bytea`

	// The assignments take effect from left to right.
	mysqlRaise = `INSERT INTO baton_guard (resource, token, holder) VALUES (?, ?, ?)
		ON DUPLICATE KEY UPDATE holder = IF(VALUES(token) > token, VALUES(holder), holder), token = GREATEST(token, VALUES(token))`
	// A locking read sees committed rows, whatever the transaction read before.
	mysqlLast = `SELECT token, holder FROM baton_guard WHERE resource = ? FOR UPDATE`
)

// Raise admits p, or refuses it with a *StaleError: then roll back. Call it at the
// beginning of the transaction, before it reads what its writes depend on, and not within
// a savepoint that may be rolled back. It works at every isolation level. At REPEATABLE
// READ and SERIALIZABLE PostgreSQL may end the transaction with a serialization failure
// (40001), and MySQL with a deadlock (1213) when several make a row at once: that is no
// refusal, begin the transaction again.
//
// After any other error, too, roll the transaction back. As always, only one goroutine at
// a time may use tx.
func (s SQL) Raise(ctx context.Context, tx *sql.Tx, resource string, p Pass) error {
	if err := legal(resource, p); err != nil {
		return err
	}
	query := func(ctx context.Context, text string, args ...any) *sql.Row {
		return tx.QueryRowContext(ctx, text, args...)
	}
	switch s {
	case SQLite:
		return raise(ctx, s, query, sqliteRaise, sqliteLast, resource, p)
	case Postgres:
		return raise(ctx, s, query, postgresRaise, postgresLast, resource, p)
	case MySQL:
		return raiseMySQL(ctx, tx, resource, p)
	}
	return s.none()
}

func (s SQL) none() error { return fmt.Errorf("guard: %v is no dialect: %w", s, errors.ErrUnsupported) }

// RaisePgx is Postgres.Raise for a transaction of pgx.
func RaisePgx[R Row](ctx context.Context, tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) R
}, resource string, p Pass,
) error {
	if err := legal(resource, p); err != nil {
		return err
	}
	return raise(ctx, Postgres, tx.QueryRow, postgresRaise, postgresLast, resource, p)
}

func raise[R Row](ctx context.Context, s SQL, query func(context.Context, string, ...any) R, upsert, last, resource string, p Pass) error {
	var token int64
	err := query(ctx, upsert, []byte(resource), p.Token, p.Holder).Scan(&token)
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrNoRows) { // includes pgx.ErrNoRows
		if err = query(ctx, last, []byte(resource)).Scan(&token); err == nil {
			return refuse(ctx, s.String(), resource, p, token)
		}
	}
	return fmt.Errorf("guard: %q: %w", resource, err)
}

func raiseMySQL(ctx context.Context, tx *sql.Tx, resource string, p Pass) error {
	var last Pass
	_, err := tx.ExecContext(ctx, mysqlRaise, []byte(resource), p.Token, []byte(p.Holder))
	if err == nil {
		err = tx.QueryRowContext(ctx, mysqlLast, []byte(resource)).Scan(&last.Token, &last.Holder)
	}
	switch {
	case err != nil:
		return fmt.Errorf("guard: %q: %w", resource, err)
	case last != p:
		return refuse(ctx, MySQL.String(), resource, p, last.Token)
	}
	return nil
}

// Marks are marks in the same table, each raised in a transaction of its own. They do not
// guard a later write elsewhere against a pause in between: see Gate.
func (s SQL) Marks(db *sql.DB) Marks { return sqlMarks{s, db} }

type sqlMarks struct {
	SQL
	db *sql.DB
}

func (m sqlMarks) Raise(ctx context.Context, resource string, p Pass) error {
	tx, err := m.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("guard: %q: %w", resource, err)
	}
	defer tx.Rollback() // no effect after Commit
	if err := m.SQL.Raise(ctx, tx, resource, p); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("guard: %q: %w", resource, err)
	}
	return nil
}

// String is the name of the dialect.
func (s SQL) String() string {
	if s < SQLite || s > MySQL {
		return fmt.Sprintf("SQL(%d)", uint8(s))
	}
	return strings.Fields("sqlite postgres mysql")[s-1]
}
