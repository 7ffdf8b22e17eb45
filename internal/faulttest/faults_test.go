//go:build linux

package faulttest

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "modernc.org/sqlite"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
)

// stores are the ways to get a store that processes share. Each test gets
// keys of its own.
var stores = map[string]func(t *testing.T) (url string){
	"sqlite": func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "locks.db") },
	"redis":  func(t *testing.T) string { return "redis://" + testserver.SharedRedis(t).Addr },
	"mysql":  func(t *testing.T) string { return mysqlURL(testserver.SharedMariaDB(t).Addr) },
	"cluster": func(t *testing.T) string {
		return "redis+cluster://" + strings.Join(testserver.SharedRedisCluster(t).Addrs(), ",")
	},
	"etcd": func(t *testing.T) string { return "etcd://" + testserver.SharedEtcd(t).Addr },
	"etcd of three": func(t *testing.T) string {
		return "etcd://" + strings.Join(testserver.SharedEtcdThree(t).Addrs(), ",")
	},
}

func init() {
	stores["postgres"] = func(t *testing.T) string {
		s := testserver.SharedPostgres(t)
		return s.URL(s.Database(t))
	}
	stores["pgbouncer"] = func(t *testing.T) string {
		s := testserver.SharedPostgres(t)
		return testserver.PgBouncer(t, s).URL(s.Database(t))
	}
}

// mostlyLong leaves all stores but SQLite and Redis to the long tests.
func mostlyLong(t *testing.T, store string) {
	t.Helper()
	if store != "sqlite" && store != "redis" {
		testserver.Long(t)
	}
}

func onStores(t *testing.T, f func(t *testing.T, url string)) {
	for name, url := range stores {
		t.Run(name, func(t *testing.T) {
			mostlyLong(t, name)
			t.Parallel()
			f(t, url(t))
		})
	}
}

// Another program's transaction keeps the lock's rows, or the file, and no connection
// breaks: a lease ends before the store could give the lock away. Package verify tries
// silence of other kinds.
func TestLockedOut(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	for name, setUp := range map[string]func(t *testing.T) (url string, silence func()){
		"mysql": func(t *testing.T) (string, func()) {
			server := testserver.MariaDB(t)
			return mysqlURL(server.Addr), func() { lockTables(t, server.Addr) }
		},
		"pgbouncer": func(t *testing.T) (string, func()) {
			s := testserver.SharedPostgres(t)
			pooler := testserver.PgBouncer(t, s)
			return pooler.URL(s.Database(t)), pooler.Stop
		},
		"sqlite": func(t *testing.T) (string, func()) {
			path := filepath.Join(t.TempDir(), "locks.db")
			return "sqlite:" + path, func() { lockFile(t, path) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			mostlyLong(t, name)
			t.Parallel()
			url, silence := setUp(t)
			locks := newLocker(t, url, baton.Config{TTL: ttl})
			sent := time.Now()
			lease, err := locks.Lock(t.Context(), t.Name())
			if err != nil {
				t.Fatal(err)
			}
			silence()
			if time.Since(sent) > ttl/4 {
				sent = time.Now() // it may have been renewed meanwhile
			}
			if d := lastBelief(lease).Sub(sent); d >= ttl {
				t.Errorf("trusted for %v, the store expires it after %v", d, ttl)
			}
			if lost, ok := errors.AsType[*baton.LostError](lease.Err()); !ok || lost.Cause != baton.Expired {
				t.Errorf("cause: %v", lease.Err())
			}
		})
	}
}

func mysqlURL(addr string) string { return "mysql://root@" + addr + "/baton" }

func plainMySQL(t *testing.T, addr string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", "root@tcp("+addr+")/baton")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// lockTables begins another program's transaction, which locks every row until the test
// ends.
func lockTables(t *testing.T, addr string) {
	t.Helper()
	tx, err := plainMySQL(t, addr).Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	for _, table := range []string{"baton_lock", "baton_claim"} {
		rows, err := tx.Query("SELECT k FROM " + table + " FOR UPDATE")
		if err != nil {
			t.Fatal(err)
		}
		rows.Close()
	}
}

// lockFile keeps every writer of a SQLite file waiting until the test ends.
func lockFile(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
}

// The server crashes while some hold and some wait. Holders whose TTL is longer than
// that keep their leases, waiters are served, tokens rise.
func TestServerCrash(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	type server interface {
		Kill()
		Restart()
	}
	for name, start := range map[string]func() (string, server){
		"mysql":    func() (string, server) { s := testserver.MariaDB(t); return mysqlURL(s.Addr), s },
		"postgres": func() (string, server) { s := testserver.Postgres(t); return s.URL("postgres"), s },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, server := start()
			long := baton.Config{TTL: 2 * time.Minute}
			lease, err := newLocker(t, url, long).Lock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			got := make(chan int64, 3)
			for range cap(got) {
				waiter := newLocker(t, url, long)
				go func() {
					lease, err := waiter.Lock(ctx, "k")
					if err != nil {
						t.Errorf("a waiter: %v", err)
						got <- 0
						return
					}
					token := lease.Token()
					if err := lease.Unlock(); err != nil {
						t.Errorf("a waiter: %v", err)
					}
					got <- token
				}()
			}
			awaitWaiters(t, newLocker(t, url, long), "k", cap(got))
			server.Kill()
			if err := lease.Err(); err != nil {
				t.Errorf("the holder, with the server down: %v", err)
			}
			server.Restart()
			if err := lease.Unlock(); err != nil {
				t.Errorf("the holder: %v", err)
			}
			tokens := []int64{lease.Token()}
			for range cap(got) {
				tokens = append(tokens, <-got)
			}
			slices.Sort(tokens[1:]) // the answers to unlocks may overtake each other
			if !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != 1+cap(got) {
				t.Errorf("tokens %v", tokens)
			}
		})
	}
}

// awaitWaiters returns once the store has n waiters in the queue of key.
func awaitWaiters(t *testing.T, locks *baton.Locker, key string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := locks.Inspect(ctx, key)
		if err == nil && len(info.Waiters) >= n {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d waiters, want %d (%v)", len(info.Waiters), n, err)
		}
	}
}
