package deploy

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql" // for the administrator
	_ "modernc.org/sqlite"             // for the administrator

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/history"
)

func (b *builder) postgres() {
	b.Site.Clocks = b.Options.Clocks
	s := testserver.Postgres(b.Site, "-c", "fsync=on")
	b.serve([]process{s}, []string{s.Addr}, func(a []string) string {
		return "postgres://postgres@" + a[0] + "/postgres?sslmode=disable"
	})
	ask := func(statement string) (string, error) { return s.Query("postgres", statement) }
	b.sqlAdmin(func(statement string) error {
		_, err := ask(statement)
		return err
	}, func(query string) (int, error) {
		answer, err := ask(query)
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(answer)
	})
	b.Held = func() ([]string, error) {
		text, err := ask("SELECT convert_from(k, 'UTF8') " + current("clock_timestamp()"))
		return lines(text), err
	}
	b.Deafen = func() error {
		_, err := ask(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'`)
		return err
	}
	b.clocks()
	b.disks()
	b.snapshots()
}

func (b *builder) mariadb() {
	b.Site.Clocks = b.Options.Clocks
	s := testserver.MariaDB(b.Site)
	b.serve([]process{s}, []string{s.Addr}, func(a []string) string { return "mysql://root@" + a[0] + "/baton" })
	b.database("mysql", "root@tcp("+s.Addr+")/baton?timeout=10s", "CONVERT(k USING utf8mb4)", func() string { return "UTC_TIMESTAMP(6)" })
	b.clocks()
	b.disks()
	b.snapshots()
}

// sqlite is a file on a disk of its own.
func (b *builder) sqlite() {
	m := b.FreshDir()
	path := filepath.Join(m.Dir(), "locks.db")
	b.Direct = "sqlite:" + path
	b.URL = func(int) string { return b.Direct }
	b.database("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)", "CAST(k AS TEXT)", func() string {
		return strconv.FormatInt(history.Now()/int64(time.Microsecond), 10) // its clock is the time since the machine's start
	})
	b.Snapshot = func() (func() error, error) { return sqliteSnapshot(path) }
	b.Deafen = func() error { return removeSockets(path + "-wake") } // the sockets that wake clients
	if m.HasDisk() {
		b.FillDisk = func(int) (func() error, error) { return m.FillDisk() }
	}
}

func removeSockets(dir string) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if f.Type() == os.ModeSocket {
			err = errors.Join(err, os.Remove(filepath.Join(dir, f.Name())))
		}
	}
	return err
}

// sqliteSnapshot copies the rows, because the file must not be replaced while clients have it open.
func sqliteSnapshot(path string) (restore func() error, err error) {
	old := path + ".old"
	if err := os.RemoveAll(old); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if _, err := db.Exec("VACUUM INTO ?", old); err != nil {
		return nil, err
	}
	return func() error {
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_txlock=immediate")
		if err != nil {
			return err
		}
		defer db.Close()
		db.SetMaxOpenConns(1)
		if _, err := db.Exec("ATTACH ? AS old", old); err != nil {
			return err
		}
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for _, t := range []string{"baton_lock", "baton_claim", "baton_meta"} {
			if _, err := tx.Exec("DELETE FROM main." + t + "; INSERT INTO main." + t + " SELECT * FROM old." + t); err != nil {
				return err
			}
		}
		return tx.Commit()
	}, nil
}

// memory is for one client: no other process sees its locks.
func (b *builder) memory() {
	if b.Options.Clients != 1 {
		b.Fatalf("locks in memory are seen by one process alone, and this is to have %d clients: ask for one, with as many goroutines as you like", b.Options.Clients)
	}
	b.URL = func(int) string { return "memory:" }
	b.Keys = func() (int, error) { return 0, nil }
	b.Held = func() ([]string, error) { return nil, nil }
}

// database is an administrator of a database of database/sql. key is the expression that reads a
// key as text, and now the expression for the time.
func (b *builder) database(driver, dsn, key string, now func() string) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		b.Fatalf("%v", err)
	}
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(0) // the server may have been replaced meanwhile
	b.Cleanup(func() { _ = db.Close() })
	within := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return f(ctx)
	}
	b.sqlAdmin(func(statement string) error {
		return within(func(ctx context.Context) error {
			_, err := db.ExecContext(ctx, statement)
			return err
		})
	}, func(query string) (n int, err error) {
		err = within(func(ctx context.Context) error { return db.QueryRowContext(ctx, query).Scan(&n) })
		return n, err
	})
	b.Held = func() (keys []string, err error) {
		err = within(func(ctx context.Context) error {
			rows, err := db.QueryContext(ctx, "SELECT "+key+" "+current(now()))
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var k string
				if err := rows.Scan(&k); err != nil {
					return err
				}
				keys = append(keys, k)
			}
			return rows.Err()
		})
		return keys, err
	}
}

// current is the rest of a statement that reads the keys of unexpired claims.
func current(now string) string {
	return "FROM (SELECT k FROM baton_lock WHERE id <> '' AND ends > " + now +
		" UNION ALL SELECT k FROM baton_claim WHERE ends > " + now + ") AS x"
}

// lines are the lines of an answer; none if it is empty.
func lines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}

// sqlAdmin does an administrator's work on the tables, which have the same names in all databases.
func (b *builder) sqlAdmin(exec func(statement string) error, count func(query string) (int, error)) {
	b.Keys = func() (int, error) {
		return count(`SELECT (SELECT COUNT(*) FROM baton_lock) + (SELECT COUNT(*) FROM baton_claim) + (SELECT COUNT(*) FROM baton_limit)
			+ (SELECT COUNT(*) FROM baton_limit_id) + (SELECT COUNT(*) FROM baton_kept)`)
	}
	b.Wipe = func(everything bool) error {
		tables := []string{"baton_lock", "baton_claim"}
		if everything {
			tables = append(tables, "baton_limit", "baton_limit_id", "baton_kept")
		}
		var errs []error
		for _, t := range tables {
			errs = append(errs, exec("DELETE FROM "+t))
		}
		return errors.Join(errs...)
	}
}
