package guard_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/internal/testserver"
)

func openDB(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func sqliteDB(t *testing.T) *sql.DB {
	return openDB(t, "sqlite", "file:"+filepath.Join(t.TempDir(), "data.db")+"?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
}

func postgresURL(t *testing.T) string {
	s := testserver.SharedPostgres(t)
	return s.URL(s.Database(t))
}

func mysqlDB(t *testing.T) *sql.DB {
	addr := testserver.SharedMariaDB(t).Addr
	name := "guard_" + strings.ToLower(rand.Text())
	admin := openDB(t, "mysql", "root@tcp("+addr+")/")
	if _, err := admin.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	return openDB(t, "mysql", "root@tcp("+addr+")/"+name)
}

// account is a row behind a guard: the list of tokens that have written it.
type account struct {
	guard.SQL
	db    *sql.DB
	level sql.IsolationLevel

	// raise calls the guard. A planted defect replaces it.
	raise func(ctx context.Context, tx *sql.Tx, resource string, p guard.Pass) error
}

func newAccount(t *testing.T, s guard.SQL, db *sql.DB, level sql.IsolationLevel) *account {
	t.Helper()
	if err := s.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"CREATE TABLE account (id INTEGER PRIMARY KEY, tokens TEXT)", "INSERT INTO account VALUES (7, '')"} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	return &account{SQL: s, db: db, level: level, raise: s.Raise}
}

func (a *account) write(ctx context.Context, p guard.Pass, between func()) error {
	tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: a.level})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := a.raise(ctx, tx, "account/7", p); err != nil {
		return err
	}
	between()
	add := "UPDATE account SET tokens = tokens || '" + strconv.FormatInt(p.Token, 10) + " ' WHERE id = 7"
	if a.SQL == guard.MySQL {
		add = "UPDATE account SET tokens = CONCAT(tokens, '" + strconv.FormatInt(p.Token, 10) + " ') WHERE id = 7"
	}
	if _, err := tx.ExecContext(ctx, add); err != nil {
		return err
	}
	return tx.Commit()
}

func (a *account) history(ctx context.Context) (h []int64, err error) {
	var text string
	if err := a.db.QueryRowContext(ctx, "SELECT tokens FROM account WHERE id = 7").Scan(&text); err != nil {
		return nil, err
	}
	for field := range strings.FieldsSeq(text) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, err
		}
		h = append(h, n)
	}
	return h, nil
}

func (a *account) again(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "40001" || e.Code == "40P01"
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number == 1213 || e.Number == 1205 || e.Number == 1020 // deadlock, waited too long, changed since the snapshot
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == sqlite3.SQLITE_BUSY
}

// eachDialect runs f with a fresh database of every kind.
func eachDialect(t *testing.T, f func(t *testing.T, s guard.SQL, db *sql.DB)) {
	t.Helper()
	for _, c := range []struct {
		guard.SQL
		open func(t *testing.T) *sql.DB
	}{
		{guard.SQLite, sqliteDB},
		{guard.Postgres, func(t *testing.T) *sql.DB { return openDB(t, "pgx", postgresURL(t)) }},
		{guard.MySQL, mysqlDB},
	} {
		t.Run(c.SQL.String(), func(t *testing.T) {
			t.Parallel()
			f(t, c.SQL, c.open(t))
		})
	}
}

func levels(s guard.SQL) []sql.IsolationLevel {
	if s == guard.SQLite {
		return []sql.IsolationLevel{sql.LevelDefault}
	}
	return []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
}

func TestSQL(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, s guard.SQL, db *sql.DB) {
		for range 2 { // the second time the table is there
			if err := s.Migrate(t.Context(), db); err != nil {
				t.Fatal(err)
			}
		}
		conform(t, s.Marks(db), s.String())
	})
}

// A writer that stops between its check and its commit delays the next one, and
// transactions commit in the order of their tokens.
func TestSQLInTheTransaction(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, s guard.SQL, db *sql.DB) {
		for _, level := range levels(s) {
			if _, err := db.Exec("DROP TABLE IF EXISTS account"); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec("DROP TABLE IF EXISTS baton_guard"); err != nil {
				t.Fatal(err)
			}
			a := newAccount(t, s, db, level)
			holds(t, a)
			interleave(t, a, 4, 40)
		}
	})
}

// A refusal has changed nothing, and what is rolled back is forgotten.
func TestSQLRollsBack(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, s guard.SQL, db *sql.DB) {
		a := newAccount(t, s, db, sql.LevelDefault)
		if err := a.write(t.Context(), pass(5, "a"), func() {}); err != nil {
			t.Fatal(err)
		}
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Raise(t.Context(), tx, "account/7", pass(9, "b")); err != nil {
			t.Fatal(err)
		}
		tx.Rollback()
		if err := a.write(t.Context(), pass(4, "c"), func() {}); !errors.Is(err, guard.ErrStale) {
			t.Errorf("4 after 5: %v", err)
		}
		if err := a.write(t.Context(), pass(6, "c"), func() {}); err != nil {
			t.Errorf("6 after a 9 that was rolled back: %v", err)
		}
		if h, err := a.history(t.Context()); err != nil || fmt.Sprint(h) != "[5 6]" {
			t.Errorf("%v, %v", h, err)
		}
	})
}

// Planted: the token is compared and raised, but in a transaction of its own,
// which is over before the write.
func TestSQLOutsideTheTransactionIsCaught(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, s guard.SQL, db *sql.DB) {
		if s == guard.SQLite {
			t.Skip("SQLite has one writer at a time: the check would wait for the transaction")
		}
		a := newAccount(t, s, db, sql.LevelReadCommitted)
		a.raise = func(ctx context.Context, _ *sql.Tx, resource string, p guard.Pass) error {
			return s.Marks(db).Raise(ctx, resource, p)
		}
		mustBreak(t, a)
	})
}

// Planted: the token is read without locking the row, and raised with the write.
func TestSQLWithoutALockIsCaught(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, s guard.SQL, db *sql.DB) {
		if s == guard.SQLite {
			t.Skip("SQLite refuses to write after a read that is out of date")
		}
		a := newAccount(t, s, db, sql.LevelReadCommitted)
		a.raise = func(ctx context.Context, tx *sql.Tx, resource string, p guard.Pass) error {
			var last int64
			err := tx.QueryRowContext(ctx, "SELECT COALESCE(MAX(token), 0) FROM baton_guard").Scan(&last)
			if err == nil && last > p.Token {
				err = &guard.StaleError{Resource: resource, Token: p.Token, Last: last}
			}
			return err
		}
		ctx := t.Context()
		broken := raiseAtEnd{a}
		if err := broken.write(ctx, pass(1, "first"), func() {}); err != nil {
			t.Fatal(err)
		}
		mustBreak(t, broken)
	})
}

// raiseAtEnd raises the mark after the write, without another look.
type raiseAtEnd struct{ *account }

func (a raiseAtEnd) write(ctx context.Context, p guard.Pass, between func()) error {
	if err := a.account.write(ctx, p, between); err != nil {
		return err
	}
	err := a.SQL.Marks(a.db).Raise(ctx, "account/7", p)
	if errors.Is(err, guard.ErrStale) {
		return nil
	}
	return err
}

// Both begin before the resource has a row.
func TestSQLFirstRow(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, s guard.SQL, db *sql.DB) {
		a := newAccount(t, s, db, sql.LevelDefault)
		began := make(chan error, 1)
		if err := a.write(t.Context(), pass(5, "a"), func() {
			go func() { began <- patient(t.Context(), a, pass(4, "b"), func() {}) }()
		}); err != nil && !a.again(err) {
			t.Fatal(err)
		}
		err := <-began
		h, failed := a.history(t.Context())
		if failed != nil || falls(h) {
			t.Errorf("%v, %v (4: %v)", h, failed, err)
		}
	})
}

// Names are bytes, whatever collation the database has.
func TestSQLShowsReadableNames(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, s guard.SQL, db *sql.DB) {
		if err := s.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		if err := s.Marks(db).Raise(t.Context(), "straße/7", pass(5, "höst:1")); err != nil {
			t.Fatal(err)
		}
		_, query, _ := strings.Cut(s.Schema(), "SELECT")
		query, _, _ = strings.Cut(query, ";")
		var resource, holder string
		var token int64
		if err := db.QueryRow("SELECT"+query).Scan(&resource, &token, &holder); err != nil {
			t.Fatal(err)
		}
		if resource != "straße/7" || token != 5 || holder != "höst:1" {
			t.Errorf("%q %d %q", resource, token, holder)
		}
	})
}

func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, s guard.SQL, db *sql.DB) {
		done := make(chan error)
		for range 8 {
			go func() { done <- s.Migrate(t.Context(), db) }()
		}
		for range 8 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestNoDialect(t *testing.T) {
	t.Parallel()
	db := sqliteDB(t)
	for _, s := range []guard.SQL{0, 9} {
		if err := s.Migrate(t.Context(), db); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("migrate: %v", err)
		}
		if err := s.Marks(db).Raise(t.Context(), "r", pass(1, "")); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("raise: %v", err)
		}
		if s.Schema() != "" {
			t.Errorf("%v has a schema", s)
		}
	}
}

// pgxMarks are marks by pgx without database/sql.
type pgxMarks struct{ pool *pgxpool.Pool }

func (m pgxMarks) Raise(ctx context.Context, resource string, p guard.Pass) error {
	return pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error { return guard.RaisePgx(ctx, tx, resource, p) })
}

func TestPgx(t *testing.T) {
	t.Parallel()
	url := postgresURL(t)
	if err := guard.Postgres.Migrate(t.Context(), openDB(t, "pgx", url)); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	conform(t, pgxMarks{pool}, "postgres")
}

// documented are the SQL blocks of the page about fencing.
func documented(t *testing.T) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile("../docs/fencing.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks = pagecode.Blocks(string(page), "sql")
	if len(blocks) != 2 {
		t.Fatalf("docs/fencing.md has %d blocks of SQL, want 2", len(blocks))
	}
	return blocks
}

// Programs in other languages, which raise marks by the SQL of the page, and this
// package refuse each other's stale tokens.
func raiseByHand(t *testing.T, s guard.SQL, db *sql.DB, byHand func(tx *sql.Tx, resource []byte, token int64, holder string) (admitted bool, err error)) {
	t.Helper()
	if err := s.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		hand  bool
		token int64
		who   string
		want  bool
	}{
		{true, 5, "", true},
		{true, 5, "", true},
		{true, 4, "", false},
		{false, 4, "", false},
		{false, 5, "", true},
		{false, 7, "a", true},
		{true, 7, "b", false},
		{true, 6, "", false},
		{true, 7, "a", true},
		{true, 1<<53 + 1, "b", true},
		{false, 1 << 53, "", false},
		{true, 1 << 53, "b", false},
	} {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		admitted := false
		if step.hand {
			admitted, err = byHand(tx, []byte("account/7"), step.token, step.who)
		} else if err = s.Raise(t.Context(), tx, "account/7", guard.Pass{Token: step.token, Holder: step.who}); errors.Is(err, guard.ErrStale) {
			err = nil
		} else {
			admitted = err == nil
		}
		if err != nil || admitted != step.want {
			t.Errorf("step %d: token %d was admitted: %v, %v", i, step.token, admitted, err)
		}
		if admitted {
			err = tx.Commit()
		} else {
			err = tx.Rollback()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func upsertByHand(text string) func(tx *sql.Tx, resource []byte, token int64, holder string) (bool, error) {
	return func(tx *sql.Tx, resource []byte, token int64, holder string) (bool, error) {
		err := tx.QueryRow(text, resource, token, holder).Scan(&token)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	}
}

func TestSQLiteByHand(t *testing.T) {
	t.Parallel()
	raiseByHand(t, guard.SQLite, sqliteDB(t), upsertByHand(strings.ReplaceAll(documented(t)[0], "$", "?")))
}

func TestPostgresByHand(t *testing.T) {
	t.Parallel()
	raiseByHand(t, guard.Postgres, openDB(t, "pgx", postgresURL(t)), upsertByHand(documented(t)[0]))
}

func TestMySQLByHand(t *testing.T) {
	t.Parallel()
	upsert, look, _ := strings.Cut(documented(t)[1], ";")
	raiseByHand(t, guard.MySQL, mysqlDB(t), func(tx *sql.Tx, resource []byte, token int64, holder string) (bool, error) {
		if _, err := tx.Exec(upsert, resource, token, holder); err != nil {
			return false, err
		}
		var last guard.Pass
		err := tx.QueryRow(look, resource).Scan(&last.Token, &last.Holder)
		return err == nil && last == guard.Pass{Token: token, Holder: holder}, err
	})
}
