package batongoose_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/batonhq/baton"
	batongoose "github.com/batonhq/baton/adapters/goose"
	"github.com/batonhq/baton/batontest"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

const (
	key = "migrate/shop"
	ttl = 3 * time.Second // of the child that is killed
)

// newLocks has the default TTL: the machine may be too busy to keep a short one.
func newLocks(t *testing.T, url string) *baton.Locker {
	t.Helper()
	store, err := open.Store(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return lockerOf(t, store)
}

func lockerOf(t *testing.T, store driver.Locks) *baton.Locker {
	t.Helper()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

func openDB(t *testing.T, name, at string) *sql.DB {
	t.Helper()
	db, err := sql.Open(name, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func sqliteDB(t *testing.T, file string) *sql.DB {
	t.Helper()
	return openDB(t, "sqlite", "file:"+file+"?_pragma=busy_timeout(5000)")
}

// mariaDB makes a database. at is where it is to the driver, url to Baton.
func mariaDB(t *testing.T) (db *sql.DB, at, url string) {
	t.Helper()
	s := testserver.SharedMariaDB(t)
	name := fmt.Sprint("goose", databases.Add(1))
	if _, err := openDB(t, "mysql", "root@tcp("+s.Addr+")/").ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	at = "root@tcp(" + s.Addr + ")/" + name + "?parseTime=true" // goose needs times
	return openDB(t, "mysql", at), at, "mysql://root@" + s.Addr + "/" + name
}

var databases atomic.Int64 // of MariaDB

func provider(t *testing.T, dialect goose.Dialect, db *sql.DB, l *batongoose.Locker, migrations ...*goose.Migration) *goose.Provider {
	t.Helper()
	opts := []goose.ProviderOption{goose.WithGoMigrations(migrations...), goose.WithDisableGlobalRegistry(true)}
	if l != nil {
		opts = append(opts, goose.WithLocker(l))
	}
	p, err := goose.NewProvider(dialect, db, fstest.MapFS{}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func up(version int64, f func(context.Context, *sql.DB) error) *goose.Migration {
	return goose.NewGoMigration(version, &goose.GoFunc{RunDB: f}, nil)
}

// counted are migrations of which it is counted how often each runs, and how many at
// a time at most. They have no transaction.
type counted struct {
	runs      [6]atomic.Int64
	now, most atomic.Int64
}

func (c *counted) all() []*goose.Migration {
	var all []*goose.Migration
	for i := range c.runs {
		all = append(all, up(int64(i+1), func(ctx context.Context, db *sql.DB) error {
			n := c.now.Add(1)
			for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
			}
			defer c.now.Add(-1)
			c.runs[i].Add(1)
			_, err := db.ExecContext(ctx, fmt.Sprintf("CREATE TABLE t%d (id INTEGER)", i))
			return err
		}))
	}
	return all
}

// Many providers, some with a Locker of their own and some with a shared one, migrate
// one database at once: each migration is applied once, and none beside another.
func TestTogether(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shop.db")
	for name, c := range map[string]struct {
		dialect goose.Dialect
		open    func(*testing.T) (*sql.DB, string)
	}{
		"sqlite": {goose.DialectSQLite3, func(t *testing.T) (*sql.DB, string) { return sqliteDB(t, file), "sqlite:" + file }},
		"postgres": {goose.DialectPostgres, func(t *testing.T) (*sql.DB, string) {
			s := testserver.SharedPostgres(t)
			url := s.URL(s.Database(t))
			return openDB(t, "pgx", url), url
		}},
		"mariadb": {goose.DialectMySQL, func(t *testing.T) (*sql.DB, string) {
			db, _, url := mariaDB(t)
			return db, url
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, url := c.open(t)
			var ran counted
			var applied atomic.Int64
			shared := batongoose.New(newLocks(t, url), key)
			start := make(chan bool)
			var all sync.WaitGroup
			for i := range 12 {
				l := shared
				if i%2 == 0 {
					l = batongoose.New(newLocks(t, url), key)
				}
				p := provider(t, c.dialect, db, l, ran.all()...)
				all.Go(func() {
					<-start
					results, err := p.Up(t.Context())
					if err != nil {
						t.Error(err)
					}
					applied.Add(int64(len(results)))
				})
			}
			close(start)
			all.Wait()
			for i := range ran.runs {
				if n := ran.runs[i].Load(); n != 1 {
					t.Errorf("migration %d ran %d times", i+1, n)
				}
			}
			if applied.Load() != int64(len(ran.runs)) || ran.most.Load() != 1 {
				t.Errorf("%d applied, %d at a time", applied.Load(), ran.most.Load())
			}
		})
	}
}

// The child of TestKilled: it migrates the database, says so, and never ends.
func TestMain(m *testing.M) {
	if dialect := os.Getenv("BATONGOOSE_DIALECT"); dialect != "" {
		fmt.Println(hang(goose.Dialect(dialect), os.Getenv("BATONGOOSE_AT"), os.Getenv("BATONGOOSE_URL")))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func hang(dialect goose.Dialect, at, url string) error {
	ctx := context.Background()
	store, err := open.Store(ctx, url)
	if err != nil {
		return err
	}
	locks, err := baton.New(store, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	db, err := sql.Open(drivers[dialect], at)
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(dialect, db, fstest.MapFS{},
		goose.WithLocker(batongoose.New(locks, key)),
		goose.WithGoMigrations(up(1, func(context.Context, *sql.DB) error {
			fmt.Println("migrating")
			select {}
		})))
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

var drivers = map[goose.Dialect]string{goose.DialectSQLite3: "sqlite", goose.DialectMySQL: "mysql"}

// A program that is killed in a migration holds up the next for the TTL at most.
func TestKilled(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		dialect goose.Dialect
		open    func(*testing.T) (db *sql.DB, at, url string)
	}{
		"sqlite": {goose.DialectSQLite3, func(t *testing.T) (*sql.DB, string, string) {
			file := filepath.Join(t.TempDir(), "shop.db")
			return sqliteDB(t, file), "file:" + file, "sqlite:" + file
		}},
		"mariadb": {goose.DialectMySQL, mariaDB},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, at, url := c.open(t)
			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), "BATONGOOSE_DIALECT="+string(c.dialect), "BATONGOOSE_AT="+at, "BATONGOOSE_URL="+url)
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := testserver.Start(child); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "migrating\n" {
				t.Fatal(line, err)
			}
			locks := newLocks(t, url)
			if _, err := locks.TryLock(t.Context(), key); !errors.Is(err, baton.ErrHeld) {
				t.Fatal("the child does not hold the lock:", err)
			}
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			_ = child.Wait()
			var waited time.Duration
			p := provider(t, c.dialect, db, batongoose.New(locks, key), up(1, func(context.Context, *sql.DB) error {
				waited = time.Since(killed)
				return nil
			}))
			results, err := p.Up(t.Context())
			if err != nil || len(results) != 1 {
				t.Fatal(results, err)
			}
			if waited > ttl+5*time.Second { // goose asks the database, too, on a machine that may be busy
				t.Error("waited for", waited)
			}
		})
	}
}

// goose tells a migration nothing; Up tells that the lock was lost.
func TestLost(t *testing.T) {
	testserver.Long(t)
	store := batontest.New(t)
	locks := lockerOf(t, store)
	db := sqliteDB(t, filepath.Join(t.TempDir(), "shop.db"))
	l := batongoose.New(locks, key)
	p := provider(t, goose.DialectSQLite3, db, l, up(1, func(ctx context.Context, _ *sql.DB) error {
		store.Lose(key)
		other, err := locks.Lock(ctx, key) // the store gives it away: it is lost for sure
		if err != nil {
			return err
		}
		return errors.Join(other.Unlock(), ctx.Err())
	}))
	if _, err := p.Up(t.Context()); !errors.Is(err, baton.ErrLost) {
		t.Error(err)
	}
	// The Locker can be used again, and the migration was recorded.
	if results, err := p.Up(t.Context()); err != nil || len(results) != 0 {
		t.Error(results, err)
	}
	if err := l.Unlock(t.Context(), db); err == nil {
		t.Error("unlocked what was not locked")
	}
}

// Under Do the migration ends with the lock, and its transaction leaves nothing.
func TestLostUnderDo(t *testing.T) {
	testserver.Long(t)
	store := batontest.New(t)
	locks := lockerOf(t, store)
	db := sqliteDB(t, filepath.Join(t.TempDir(), "shop.db"))
	tx := func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "CREATE TABLE items (id INTEGER)"); err != nil {
			return err
		}
		store.Lose(key)
		<-ctx.Done()
		return nil
	}
	p := provider(t, goose.DialectSQLite3, db, nil, goose.NewGoMigration(1, &goose.GoFunc{RunTx: tx}, nil))
	err := locks.Do(t.Context(), key, func(ctx context.Context, _ *baton.Lease) error {
		_, err := p.Up(ctx)
		return err
	})
	if !errors.Is(err, baton.ErrLost) {
		t.Error(err)
	}
	if _, err := db.ExecContext(t.Context(), "SELECT * FROM items"); err == nil {
		t.Error("the migration without a lock was committed")
	}
}

// MariaDB is not interrupted: the statement that runs when the lock is lost is done later. A
// transaction takes it back, unless a CREATE TABLE has ended that transaction before.
func TestLostOnMariaDB(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		inTx, create bool
		want         int // rows that are written after the loss
	}{
		"without a transaction":           {false, false, 1},
		"in a transaction":                {true, false, 0},
		"in a transaction that has ended": {true, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := batontest.New(t)
			locks := lockerOf(t, store)
			db, _, _ := mariaDB(t)
			count := func(query string) (n int) {
				t.Helper()
				if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			await := func(query string, want int) {
				t.Helper()
				for end := time.Now().Add(20 * time.Second); count(query) != want; time.Sleep(5 * time.Millisecond) { // a server tells no more
					if time.Now().After(end) {
						t.Fatal(query, "is not", want)
					}
				}
			}
			for _, statement := range []string{
				"CREATE TABLE items (id INTEGER)", "CREATE TABLE gate (id INTEGER PRIMARY KEY)", "INSERT INTO gate VALUES (1)",
			} {
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			gate, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := gate.ExecContext(t.Context(), "UPDATE gate SET id = 2 WHERE id = 1"); err != nil {
				t.Fatal(err)
			}
			migrate := func(ctx context.Context, exec func(context.Context, string, ...any) (sql.Result, error)) error {
				if c.create {
					if _, err := exec(ctx, "CREATE TABLE more (id INTEGER)"); err != nil {
						return err
					}
				}
				_, err := exec(ctx, "INSERT INTO items SELECT id FROM gate WHERE id = 2 FOR UPDATE") // waits for the gate
				return err
			}
			f := &goose.GoFunc{RunDB: func(ctx context.Context, db *sql.DB) error { return migrate(ctx, db.ExecContext) }}
			if c.inTx {
				f = &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error { return migrate(ctx, tx.ExecContext) }}
			}
			p := provider(t, goose.DialectMySQL, db, nil, goose.NewGoMigration(1, f, nil))
			done := make(chan error, 1)
			go func() {
				done <- locks.Do(t.Context(), key, func(ctx context.Context, _ *baton.Lease) error {
					_, err := p.Up(ctx)
					return err
				})
			}()
			await("SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'INSERT INTO items%'", 1)
			connection := count("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'INSERT INTO items%'")
			store.Lose(key)
			if err := <-done; !errors.Is(err, baton.ErrLost) {
				t.Error(err)
			}
			if err := gate.Commit(); err != nil {
				t.Fatal(err)
			}
			await(fmt.Sprint("SELECT COUNT(*) FROM information_schema.processlist WHERE id = ", connection), 0)
			if n := count("SELECT COUNT(*) FROM items"); n != c.want {
				t.Errorf("%d rows were written after the loss, want %d", n, c.want)
			}
		})
	}
}

// A provider that gives up waiting, for this process or for another, applies nothing.
func TestGivesUp(t *testing.T) {
	store := batontest.New(t)
	locks := lockerOf(t, store)
	db := sqliteDB(t, filepath.Join(t.TempDir(), "shop.db"))
	shared := batongoose.New(locks, key)
	if err := shared.Lock(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*batongoose.Locker{shared, batongoose.New(locks, key)} {
		var ran counted
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := provider(t, goose.DialectSQLite3, db, l, ran.all()...).Up(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ran.runs[0].Load() != 0 {
			t.Error(err, ran.runs[0].Load())
		}
	}
	if err := shared.Unlock(t.Context(), db); err != nil {
		t.Error(err)
	}
}
