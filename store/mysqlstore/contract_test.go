package mysqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

// TestContract runs with connections of the store's own.
func TestContract(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	drivertest.Locks(t, harness(func(t drivertest.T, d *database) *Store { return d.open(t) }))
}

// TestContractOnPool runs on a pool that the program has opened, with settings that
// make it hard, on a server that has some, too.
func TestContractOnPool(t *testing.T) {
	testserver.Long(t)
	testserver.NeedMariaDB(t)
	t.Parallel()
	server := testserver.MariaDB(t, snapshots)
	drivertest.Locks(t, harnessOn(func(drivertest.T) *testserver.MariaDBServer { return server }, hardPool, snapshots))
}

func hardPool(t drivertest.T, d *database) *Store {
	c := d.config()
	c.ClientFoundRows, c.ParseTime = true, true
	c.Loc = time.FixedZone("far", 13*60*60)
	c.Params = map[string]string{
		"time_zone": "'-11:00'",
		"sql_mode":  "'" + hardModes(tb{t}) + ",PAD_CHAR_TO_FULL_LENGTH'",
	}
	return d.wrap(t, c)
}

// harness gives each case a database of its own.
func harness(open func(t drivertest.T, d *database) *Store) drivertest.Harness {
	return harnessOn(func(t drivertest.T) *testserver.MariaDBServer { return testserver.SharedMariaDB(tb{t}) }, open)
}

// harnessOn is harness on a server other than the one that the tests share. args are
// those with which it was started.
func harnessOn(common func(drivertest.T) *testserver.MariaDBServer, open func(t drivertest.T, d *database) *Store, args ...string) drivertest.Harness {
	openAt := func(t drivertest.T, n int, server *testserver.MariaDBServer) []driver.Locks {
		d := newDatabase(t, server)
		locks := make([]driver.Locks, n)
		for i := range locks {
			locks[i] = open(t, d)
			databases.put(locks[i], d)
		}
		return locks
	}
	return drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks { return openAt(t, n, common(t)) },
		OpenOwn: func(t drivertest.T, n int) []driver.Locks {
			return openAt(t, n, testserver.MariaDB(tb{t}, args...))
		},
		Restart: func(t drivertest.T, locks []driver.Locks) {
			databases.of(locks[0]).server.Restart()
			for _, l := range locks {
				awaitReachable(t, l.(*Store))
			}
		},
		Reconnect: func(t drivertest.T, locks []driver.Locks) {
			d := databases.of(locks[0])
			d.killConnections(t)
			for _, l := range locks {
				awaitReachable(t, l.(*Store))
			}
		},
		Delete: func(t drivertest.T, key string, l driver.Locks) {
			d := databases.of(l)
			d.exec(t, "DELETE FROM baton_claim WHERE k=?", key)
			d.exec(t, "DELETE FROM baton_lock WHERE k=?", key)
		},
		Depend: func(t drivertest.T, l driver.Locks, lease driver.Leased) (end func() error, err error) {
			tx, err := databases.of(l).plain.BeginTx(context.Background(), nil)
			if err != nil {
				t.Fatalf("begin: %v", err)
			}
			if err := l.(*Store).InTx(context.Background(), tx, lease); err != nil {
				_ = tx.Rollback()
				return nil, err
			}
			return tx.Commit, nil
		},
	}
}

// A database is an empty one on a server, with a plain client.
type database struct {
	server *testserver.MariaDBServer
	name   string
	plain  *sql.DB

	snapshots bool // see TestSnapshotIsolation
}

func newDatabase(t drivertest.T, server *testserver.MariaDBServer) *database {
	t.Helper()
	d := &database{server: server, name: "t_" + strings.ToLower(rand.Text())}
	admin := d.config()
	admin.DBName = ""
	db := pool(t, admin)
	if _, err := db.Exec("CREATE DATABASE " + d.name); err != nil {
		t.Fatalf("make a database: %v", err)
	}
	d.plain = pool(t, d.config())
	if err := Migrate(t.Context(), d.plain); err != nil {
		t.Fatalf("%v", err)
	}
	return d
}

func pool(t drivertest.T, c *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(c)
	if err != nil {
		t.Fatalf("%v", err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	return db
}

func (d *database) config() *mysql.Config {
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.DBName = "tcp", d.server.Addr, "root", d.name
	c.Logger = &mysql.NopLogger{}
	return c
}

// open makes a store with connections of its own.
func (d *database) open(t drivertest.T) *Store {
	t.Helper()
	return d.openWith(t, func(*Server, *options) {})
}

func (d *database) openWith(t drivertest.T, change func(*Server, *options)) *Store {
	t.Helper()
	c, opts := Server{Addr: d.server.Addr, Database: d.name, User: "root", Connections: 6}, standard
	change(&c, &opts)
	s, err := open(t.Context(), c, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// wrap makes a store on a pool.
func (d *database) wrap(t drivertest.T, c *mysql.Config) *Store {
	t.Helper()
	db := pool(t, c)
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	s, err := New(t.Context(), db)
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (d *database) exec(t drivertest.T, text string, args ...any) {
	t.Helper()
	if _, err := d.plain.ExecContext(t.Context(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// killConnections ends every connection to the database but the plain
// client's.
func (d *database) killConnections(t drivertest.T) {
	t.Helper()
	rows, err := d.plain.QueryContext(t.Context(), "SELECT id FROM information_schema.processlist WHERE db=? AND id<>CONNECTION_ID()", d.name)
	if err != nil {
		t.Fatalf("list the connections: %v", err)
	}
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatalf("list the connections: %v", err)
		}
		ids = append(ids, id)
	}
	rows.Close()
	for _, id := range ids {
		_, _ = d.plain.ExecContext(t.Context(), fmt.Sprintf("KILL %d", id)) // it may have ended
	}
}

func awaitReachable(t drivertest.T, s *Store) {
	t.Helper()
	eventually(t, "the server answers", 30*time.Second, func() bool {
		for _, db := range []*sql.DB{s.single, s.slow, s.apart} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			err := db.PingContext(ctx)
			cancel()
			if err != nil {
				return false
			}
		}
		return true
	})
}
