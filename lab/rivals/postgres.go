package main

import (
	"context"
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/internal/testserver"
)

var postgresRivals = slices.Concat([]rival{
	{
		name:  "raw",
		about: "the bare exchange on pgx, one connection for each goroutine: one durable INSERT, one durable DELETE, prepared",
		open: func(e *env, goroutines int) (*room, error) {
			return postgresRoom(e, goroutines, func(c *pgx.Conn, _ string) seat {
				return &pairSeat{
					lock:   postgresExec(c, "INSERT INTO raw_row VALUES ($1, 'v')"),
					unlock: postgresExec(c, "DELETE FROM raw_row WHERE k = $1"),
				}
			})
		},
	},
	{
		name:  "advisory-lock",
		about: "pg_advisory_lock and pg_advisory_unlock on pgx, prepared, one connection for each goroutine, which waits on it; no expiry, no token, and the lock goes with the connection",
		open: func(e *env, goroutines int) (*room, error) {
			return postgresRoom(e, goroutines, func(c *pgx.Conn, _ string) seat {
				return &pairSeat{
					lock: func(ctx context.Context, key string) error {
						_, err := c.Exec(ctx, "SELECT pg_advisory_lock($1)", advisoryKey(key))
						return err
					},
					unlock: func(ctx context.Context, key string) error {
						_, err := c.Exec(ctx, "SELECT pg_advisory_unlock($1)", advisoryKey(key))
						return err
					},
				}
			})
		},
	},
	{
		name:  "polled-table",
		about: "a lock table as it is usually written: INSERT, or take over what has expired, tried again every 5 ms, on one connection for each goroutine; DELETE to unlock; no renewal, no token, no order",
		open: func(e *env, goroutines int) (*room, error) {
			return postgresRoom(e, goroutines, func(c *pgx.Conn, owner string) seat {
				return &polledSeat{
					take: func(ctx context.Context, key string, now, expires int64) (bool, error) {
						tag, err := c.Exec(ctx, `WITH expired AS (DELETE FROM polled_lock WHERE k = $1 AND expires < $4)
							INSERT INTO polled_lock VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, key, owner, expires, now)
						return err == nil && tag.RowsAffected() == 1, err
					},
					drop: func(key string) error {
						tag, err := c.Exec(context.Background(), "DELETE FROM polled_lock WHERE k = $1 AND owner = $2", key, owner)
						return dropped(tag.RowsAffected(), err)
					},
				}
			})
		},
	},
}, batonRivals("pgstore", postgresURL))

const postgresRivalSchema = `
CREATE TABLE raw_row (k text PRIMARY KEY, v text NOT NULL);
CREATE TABLE polled_lock (k text PRIMARY KEY, owner text NOT NULL, expires bigint NOT NULL);
`

func postgresURL(e *env) string {
	return "postgres://postgres@" + e.at["pg"][0] + "/postgres?sslmode=disable"
}

// advisoryKey is a number for a key: advisory locks take only numbers.
func advisoryKey(key string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return int64(h.Sum64())
}

func postgresExec(c *pgx.Conn, query string) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		_, err := c.Exec(ctx, query, key)
		return err
	}
}

// postgresRoom gives each goroutine a separate connection.
func postgresRoom(e *env, goroutines int, newSeat func(c *pgx.Conn, owner string) seat) (*room, error) {
	ctx := context.Background()
	var conns []*pgx.Conn
	closeAll := func() {
		for _, c := range conns {
			_ = c.Close(ctx) // nothing is under way
		}
	}
	for range goroutines {
		c, err := pgx.Connect(ctx, postgresURL(e))
		if err != nil {
			closeAll()
			return nil, err
		}
		conns = append(conns, c)
	}
	return &room{
		seat:  func(i int) seat { return newSeat(conns[i], strconv.Itoa(i)) },
		close: closeAll,
	}, nil
}

// startPostgres starts a server that makes every commit durable and has room
// for a few connections of each goroutine.
func startPostgres(t testserver.TB, e *env) error {
	s := testserver.Postgres(t, settings(
		"fsync=on", "synchronous_commit=on", "max_connections=2000", "shared_buffers=64MB",
		"min_wal_size=256MB", "max_wal_size=1GB", "autovacuum_naptime=1min",
		"shared_preload_libraries=pg_stat_statements",
	)...)
	e.runs("pg", &server{addrs: []string{s.Addr}, pids: []int{s.Pid()}})

	ctx := context.Background()
	c, err := pgx.Connect(ctx, postgresURL(e))
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = c.Close(ctx) }) // the server is removed, too
	if _, err := c.Exec(ctx, postgresRivalSchema+"CREATE EXTENSION pg_stat_statements", pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	v := e.servers["pg"]
	if err := c.QueryRow(ctx, "SELECT 'PostgreSQL ' || current_setting('server_version') || ', fsync ' || current_setting('fsync')").Scan(&v.about); err != nil {
		return err
	}
	v.work = func() (w work, err error) {
		// Each transaction that writes takes one number.
		err = c.QueryRow(ctx, `SELECT coalesce((SELECT sum(calls) FROM pg_stat_statements), 0)::bigint,
			pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&w.requests, &w.commits)
		return w, err
	}
	v.connections = func() (all, waiting int64, err error) {
		err = c.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock')
			FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&all, &waiting)
		return all, waiting, err
	}
	v.counting = func(on bool) error {
		// The library costs almost nothing while it does not count.
		track := "none"
		if on {
			track = "top"
		}
		for _, q := range []string{"ALTER SYSTEM SET pg_stat_statements.track = " + track, "SELECT pg_reload_conf()"} {
			if _, err := c.Exec(ctx, q); err != nil {
				return err
			}
		}
		return nil
	}
	return v.counting(false)
}

// settings makes arguments of postgres.
func settings(all ...string) (args []string) {
	for _, s := range all {
		args = append(args, "-c", s)
	}
	return args
}
