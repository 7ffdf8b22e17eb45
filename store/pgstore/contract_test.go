package pgstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

// TestContract is for connections of the store's own and for pools of the
// caller's. Each case has a database of its own.
func TestContract(t *testing.T) {
	testserver.NeedPostgres(t)
	t.Parallel()
	type place struct {
		server   *testserver.PostgresServer
		database string
	}
	var places sync.Map // of each store
	placeOf := func(l driver.Locks) place {
		p, _ := places.Load(l)
		return p.(place)
	}
	openIn := func(t drivertest.T, n int, server *testserver.PostgresServer) []driver.Locks {
		p := place{server, server.Database(tb{t})}
		locks := make([]driver.Locks, n)
		for i := range locks {
			open := openAt
			if i%2 == 0 {
				open = openDirect
			}
			s := open(t, server.URL(p.database))
			places.Store(s, p)
			locks[i] = s
		}
		return locks
	}
	drivertest.Locks(t, drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			return openIn(t, n, testserver.SharedPostgres(tb{t}))
		},
		OpenOwn: func(t drivertest.T, n int) []driver.Locks {
			return openIn(t, n, testserver.Postgres(tb{t}))
		},
		Restart: func(t drivertest.T, locks []driver.Locks) {
			placeOf(locks[0]).server.Restart()
			for _, l := range locks {
				awaitReachable(t, l.(*Store))
			}
		},
		Reconnect: func(t drivertest.T, locks []driver.Locks) {
			p := placeOf(locks[0])
			if _, err := p.server.Query(p.database, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
				t.Fatalf("cut the connections: %v", err)
			}
			for _, l := range locks {
				awaitReachable(t, l.(*Store))
			}
		},
		Delete: func(t drivertest.T, key string, l driver.Locks) { remove(t, l.(*Store), key) },
		Depend: depend,
	})
}

// TestContractPgBouncer goes through a pooler that gives each transaction another
// connection: no prepared statements, no listening.
func TestContractPgBouncer(t *testing.T) {
	testserver.Long(t)
	testserver.NeedPgBouncer(t)
	t.Parallel()
	server := testserver.SharedPostgres(t)
	bouncer := testserver.PgBouncer(t, server)
	drivertest.Locks(t, drivertest.Harness{
		Open: func(t drivertest.T, n int) []driver.Locks {
			database := server.Database(tb{t})
			locks := make([]driver.Locks, n)
			for i := range locks {
				s := openAt(t, bouncer.URL(database))
				if !s.pooled {
					t.Errorf("the pooler was not noticed")
				}
				locks[i] = s
			}
			return locks
		},
		Delete: func(t drivertest.T, key string, l driver.Locks) { remove(t, l.(*Store), key) },
		Depend: depend,
	})
}

// tb makes a drivertest.T a testserver.TB.
type tb struct{ drivertest.T }

func (t tb) Skipf(format string, args ...any) { t.Fatalf(format, args...) }

// newPool makes a pool as programs do.
func newPool(t drivertest.T, url string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("pool: %v", err)
	}
	config.MaxConns = 5
	for _, f := range change {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// openAt returns a store with a pool of its own on tables that are made if they are
// missing. An option is what a test changes.
type option = func(*options)

func openAt(t drivertest.T, url string, opts ...option) *Store {
	t.Helper()
	return openOn(t, newPool(t, url), opts...)
}

// openDirect is openAt with connections like those of Open.
func openDirect(t drivertest.T, url string, opts ...option) *Store {
	t.Helper()
	s := openOn(t, newPool(t, url, likeOpen), opts...)
	if !s.direct {
		t.Errorf("the settings of the connections were not noticed")
	}
	return s
}

func likeOpen(c *pgxpool.Config) {
	c.ConnConfig.RuntimeParams["enable_seqscan"] = "off"
	c.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
}

func openOn(t drivertest.T, pool *pgxpool.Pool, opts ...option) *Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := Migrate(ctx, pool); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	s, err := newStore(ctx, pool, false, append([]option{func(o *options) { o.early = false }}, opts...)...) // what tests count must not be chance
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// depend begins a transaction that depends on the lease.
func depend(t drivertest.T, l driver.Locks, lease driver.Leased) (end func() error, err error) {
	t.Helper()
	s := l.(*Store)
	conn, err := pgx.ConnectConfig(context.Background(), s.pool.Config().ConnConfig)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(context.Background())
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	if err := s.InTx(context.Background(), tx, lease); err != nil {
		_ = tx.Rollback(context.Background())
		return nil, err
	}
	return func() error { return tx.Commit(context.Background()) }, nil
}

func remove(t drivertest.T, s *Store, key string) {
	t.Helper()
	for _, sql := range []string{`DELETE FROM baton_claim WHERE k = $1`, `DELETE FROM baton_lock WHERE k = $1`} {
		if _, err := s.pool.Exec(context.Background(), sql, pgx.QueryExecModeExec, []byte(key)); err != nil {
			t.Fatalf("delete: %v", err)
		}
	}
}

func awaitReachable(t drivertest.T, s *Store) {
	t.Helper()
	eventually(t, "a connection", 20*time.Second, func() bool {
		// Every connection of the pool may be broken.
		for range 2 * s.pool.Config().MaxConns {
			if s.pool.Ping(context.Background()) != nil {
				return false
			}
		}
		return true
	})
}

func eventually(t drivertest.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) { // polls
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}
