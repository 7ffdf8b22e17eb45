package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/sqlstore"
	"github.com/batonhq/baton/internal/testserver"
)

func limitHarness(steps int, url func(t drivertest.T) string, open func(drivertest.T, string, ...option) *Store) drivertest.LimitHarness {
	return drivertest.LimitHarness{
		Steps: steps,
		Open: func(t drivertest.T, n int) []limits.Store {
			u := url(t)
			all := make([]limits.Store, n)
			for i := range all {
				all[i] = open(t, u)
			}
			return all
		},
		Kept: func(t drivertest.T, l limits.Store) int { return countKept(t, l.(*Store)) },
	}
}

// kept counts the rows of limits.
func countKept(t drivertest.T, s *Store) (n int) {
	err := s.pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM baton_limit) + (SELECT count(*) FROM baton_limit_id)`,
		pgx.QueryExecModeExec).Scan(&n)
	if err != nil {
		t.Fatalf("count: %v", err)
	}
	return n
}

func TestLimits(t *testing.T) {
	testserver.NeedPostgres(t)
	t.Parallel()
	server := testserver.SharedPostgres(t)
	drivertest.Limits(t, limitHarness(500, func(t drivertest.T) string { return server.URL(server.Database(tb{t})) }, openDirect))
}

func TestLimitsPgBouncer(t *testing.T) {
	testserver.Long(t)
	testserver.NeedPgBouncer(t)
	t.Parallel()
	server := testserver.Postgres(t, "-c", "max_connections=300") // the pooler keeps some for each database
	bouncer := testserver.PgBouncer(t, server)
	drivertest.Limits(t, limitHarness(0, func(t drivertest.T) string { return bouncer.URL(server.Database(tb{t})) }, openAt))
}

// Limits of which nothing comes back while a test lasts.
func window(n int64) limits.Limit {
	return limits.Limit{Algorithm: limits.FixedWindow, N: n, Period: 100_000 * time.Hour}
}

func bucket(n int64) limits.Limit {
	return limits.Limit{Algorithm: limits.TokenBucket, N: 1, Period: 1000 * time.Hour, Burst: n}
}

func take(l limits.Limit, cost int64, keys ...string) (r limits.Request) {
	for _, key := range keys {
		r.Takes = append(r.Takes, limits.Take{Key: key, Limit: l, Cost: cost})
	}
	return r
}

func withID(r limits.Request) limits.Request {
	r.ID, r.Keep = driver.NewID(), time.Hour
	return r
}

func mustTake(t *testing.T, s *Store, r limits.Request) limits.Taken {
	t.Helper()
	d, err := s.Take(t.Context(), r)
	if err != nil {
		t.Fatalf("take %+v: %v", r, err)
	}
	return d
}

// shapes are the requests that are served in different ways.
func shapes(l limits.Limit, cost int64) map[string]limits.Request {
	return map[string]limits.Request{
		"one":         take(l, cost, "k"),
		"two":         take(l, cost, "a", "k"),
		"with an ID":  withID(take(l, cost, "k")),
		"in disorder": withID(take(l, cost, "z", "k", "a")),
	}
}

// Another transaction is making the row of a key: the decision waits for its outcome.
func TestFirstRequestsMeet(t *testing.T) {
	t.Parallel()
	for name, r := range shapes(window(5), 3) {
		for _, commit := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", commit), func(t *testing.T) {
				t.Parallel()
				_, url := database(t)
				s := openAt(t, url)
				tx := begin(t, s, pgx.ReadCommitted)
				if first := takeIn(t, s, tx, take(window(5), 3, "k")); !first.OK {
					t.Fatalf("the first: %+v", first)
				}
				got := make(chan limits.Taken, 1)
				go func() {
					d, err := s.Take(context.Background(), r)
					if err != nil {
						t.Errorf("the second: %v", err)
					}
					got <- d
				}()
				awaitBlocked(t, s, 1)
				end := tx.Rollback
				if commit {
					end = tx.Commit
				}
				if err := end(t.Context()); err != nil {
					t.Fatal(err)
				}
				if d := <-got; d.OK == commit {
					t.Errorf("the second: %+v", d)
				}
				want := int64(2)
				if d := mustTake(t, s, take(window(5), 0, "k")); d.Limits[0].Remaining != want {
					t.Errorf("%+v, want %d left", d, want)
				}
			})
		}
	}
}

// takeIn makes a request in a transaction, which it leaves open.
func takeIn(t *testing.T, s *Store, tx pgx.Tx, r limits.Request) limits.Taken {
	t.Helper()
	q, err := rate.NewRequest(r)
	if err != nil {
		t.Fatal(err)
	}
	o := &sqlstore.LimitOp{Item: batch.NewItem(), Request: q}
	var keys []string
	for _, x := range r.Takes {
		keys = append(keys, x.Key)
	}
	slices.Sort(keys)
	l := sqlstore.NewLimitTx("test")
	err = s.several(t.Context(), tx.Conn(), lockingLimits(l, keys, sqlstore.IDsOf([]*sqlstore.LimitOp{o}))...)
	if err == nil && l.Take(o) {
		err = s.several(t.Context(), tx.Conn(), savingLimits(l)...)
	}
	d, refused := o.Answer()
	if err := errors.Join(err, refused); err != nil {
		t.Fatal(err)
	}
	return d
}

// A row that was there is deleted by the transaction that has locked it: it is made
// again.
func TestLimitForgottenMeanwhile(t *testing.T) {
	t.Parallel()
	for name, r := range shapes(window(5), 3) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := database(t)
			s := openAt(t, url)
			mustTake(t, s, take(window(5), 3, "k"))
			forget := take(window(5), 0, "k")
			forget.Mode = limits.Forget
			tx := begin(t, s, pgx.ReadCommitted)
			takeIn(t, s, tx, forget)
			got := make(chan limits.Taken, 1)
			go func() {
				d, err := s.Take(context.Background(), r)
				if err != nil {
					t.Errorf("%v", err)
				}
				got <- d
			}()
			awaitBlocked(t, s, 1)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if d := <-got; !d.OK || d.Limits[0].Remaining != 2 {
				t.Errorf("%+v", d)
			}
		})
	}
}

// The clock of a transaction stops while it waits for a row; that of a
// decision is read afterwards.
func TestLimitTimeIsReadAfterTheWait(t *testing.T) {
	t.Parallel()
	for name, r := range shapes(bucket(50), 1) {
		for how, blocker := range map[string]string{
			"locked":  `SELECT FROM baton_limit WHERE key = 'k' FOR UPDATE`,
			"changed": `UPDATE baton_limit SET expires = expires WHERE key = 'k'`,
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				_, url := database(t)
				s := openDirect(t, url)
				mustTake(t, s, take(bucket(50), 1, "k"))
				tx := begin(t, s, pgx.ReadCommitted)
				if _, err := tx.Exec(t.Context(), blocker); err != nil {
					t.Fatal(err)
				}
				got := make(chan limits.Taken, 1)
				go func() {
					d, err := s.Take(context.Background(), r)
					if err != nil {
						t.Errorf("%v", err)
					}
					got <- d
				}()
				awaitBlocked(t, s, 1)
				unblocked, err := s.ServerTime(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if d := <-got; d.At < unblocked.UnixMicro() {
					t.Errorf("decided %d µs before it could", unblocked.UnixMicro()-d.At)
				}
			})
		}
	}
}

// What a session is set to changes no decision.
func TestLimitsInEverySession(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	plain := openAt(t, url)
	for i, settings := range []map[string]string{
		{"default_transaction_isolation": "serializable"},
		{"default_transaction_isolation": "repeatable read", "synchronous_commit": "off"},
		{"timezone": "Asia/Kathmandu", "intervalstyle": "sql_standard", "datestyle": "german", "extra_float_digits": "0", "bytea_output": "escape"},
		{"timezone": "America/St_Johns", "enable_indexscan": "off", "plan_cache_mode": "force_custom_plan", "jit_above_cost": "0"},
	} {
		s := openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams = settings }))
		for name, r := range shapes(limits.Limit{Algorithm: limits.TokenBucket, N: 7, Period: time.Hour, Burst: 50}, 3) {
			for j := range r.Takes {
				r.Takes[j].Key += fmt.Sprint(i, name)
			}
			before, err := plain.ServerTime(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			d := mustTake(t, s, r)
			r.ID = ""
			again := mustTake(t, plain, r)
			if !d.OK || !again.OK || again.Limits[0].Remaining != 44 || d.At < before.UnixMicro() || again.At < d.At {
				t.Errorf("%v, %s: %+v, and then %+v", settings, name, d, again)
			}
			var left time.Duration // until it expires, by a session as others have it
			err = plain.pool.QueryRow(t.Context(), `SELECT expires - clock_timestamp() FROM baton_limit WHERE key = $1`, []byte(r.Takes[0].Key)).Scan(&left)
			if reset := again.Limits[0].Reset; err != nil || left > reset || left < reset-time.Minute {
				t.Errorf("%v, %s: the row expires in %v, want %v; %v", settings, name, left, reset, err)
			}
		}
	}
}

// Sixty-four clients of four processes ask limits in every order, forget some and
// repeat requests, while rows expire and are swept. No caller hears of deadlocks or
// serialization, and none is let in above the capacity.
func TestLimitsNoDeadlockSurfaces(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	lasts := stormFor(t)
	server, url := database(t)
	var stores []*Store
	for i := range 4 {
		conns := []int32{1, 2, 4, 16}[i]
		open := []func(*pgxpool.Config){func(*pgxpool.Config) {}, likeOpen}[i%2]
		stores = append(stores, openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = conns; open(c) })))
	}
	all := []limits.Limit{window(500), bucket(500), {Algorithm: limits.SlidingLog, N: 500, Period: 1000 * time.Hour}}
	short := limits.Limit{Algorithm: limits.TokenBucket, N: 1000, Period: time.Second, Burst: 10}
	var taken [3]atomic.Int64 // of limits
	var made atomic.Int64
	end := time.Now().Add(lasts)
	var wg sync.WaitGroup
	for c := range 64 {
		wg.Go(func() {
			for i := c; i == c || time.Now().Before(end); i++ {
				n := i % 3
				r := take(all[n], 1, fmt.Sprint("hot", n))
				more := take(short, 1, fmt.Sprint("short", i%5), fmt.Sprint("other", i%7), fmt.Sprint("a", i%3)).Takes
				switch i % 8 {
				case 1, 2:
					r.Takes = append(more[:i%3], r.Takes[0])
				case 3:
					r.Takes = append(r.Takes, more...)
				case 4:
					r = withID(r)
				case 5:
					r = take(short, 0, more[0].Key, more[1].Key)
					r.Mode = limits.Forget
				case 6:
					r = take(short, 5, more[i%3].Key)
				}
				d, err := stores[c%4].Take(context.Background(), r)
				if err == nil && r.ID != "" && d.OK {
					var again limits.Taken
					if again, err = stores[(c+1)%4].Take(context.Background(), r); err == nil && !again.Repeated {
						err = fmt.Errorf("taken twice: %+v, %+v", d, again)
					}
				}
				if err != nil {
					t.Errorf("client %d: %v", c, err)
					return
				}
				made.Add(1)
				for _, x := range r.Takes {
					if d.OK && strings.HasPrefix(x.Key, "hot") {
						taken[n].Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	for n := range taken {
		left := mustTake(t, stores[0], take(all[n], 0, fmt.Sprint("hot", n))).Limits[0].Remaining
		if got := taken[n].Load(); got+left != 500 {
			t.Errorf("%v: %d of 500 were allowed, and %d remain", all[n].Algorithm, got, left)
		}
	}
	if n, err := server.Query("postgres", `SELECT sum(deadlocks) FROM pg_stat_database WHERE datname = '`+stores[0].pool.Config().ConnConfig.Database+`'`); err != nil || n != "0" {
		t.Errorf("the server counted %s deadlocks, %v", n, err)
	}
	t.Logf("%d decisions", made.Load())
}

// Sixty-four clients that all meet keys of which nothing is known yet.
func TestFreshKeysAreTakenOnce(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	stores := []*Store{openAt(t, url), openDirect(t, url)}
	for round := range 20 {
		var allowed [4]atomic.Int64
		var wg sync.WaitGroup
		for c := range 64 {
			wg.Go(func() {
				n := c % 4
				r := take([]limits.Limit{window(3), bucket(3)}[n%2], 1, fmt.Sprint(round, "-", n))
				if c%16 > 7 {
					r = withID(r)
				}
				d, err := stores[c/32].Take(t.Context(), r)
				if err != nil {
					t.Errorf("%v", err)
				}
				if d.OK {
					allowed[n].Add(1)
				}
			})
		}
		wg.Wait()
		for n := range allowed {
			if got := allowed[n].Load(); got != 3 {
				t.Errorf("round %d, limit %d: %d of 3 were allowed", round, n, got)
			}
		}
	}
}

// What is in a row is read as package rate reads it; what no machine could
// have written is nothing. No request fails because of it.
func TestLimitRowsWithGarbage(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openDirect(t, url)
	five := []limits.Limit{
		window(5), bucket(5),
		{Algorithm: limits.SlidingWindow, N: 5, Period: 1000 * time.Hour, Parts: 10},
		{Algorithm: limits.SlidingLog, N: 5, Period: 1000 * time.Hour},
		{Algorithm: limits.EstimatedWindow, N: 5, Period: 100_000 * time.Hour},
		{Algorithm: limits.LeakyBucket, N: 1, Period: time.Hour, Burst: 5},
		{Algorithm: limits.TokenBucket, N: 7, Period: time.Hour, Burst: 5},
	}
	for _, garbage := range []string{
		"", "x", "1", "1 5", "1 5 x x", "1 5 -3 4", "9 9 9 9 9 9", "1 5 9223372036854775807 5", "1 5 1900000000000000 -9223372036854775808",
		"1 5 1900000000000000 9223372036854775807 1900000000000001 9223372036854775807", "2 360000000000000 -9223372036854775808 5 5 5",
		"2 360000000000000 5 5 9223372036854775807 9223372036854775807", "2 9223372036854775807 1 1 1 1", "3 9223372036854775807 0 1 3600000000000 0",
		"3 -9223372036854775808 0 1 3600000000000 0", "3 1900000000000000 0 9223372036854775807 1 0", "3 1900000000000000 -1 1 3600000000000 0", "3.5",
	} {
		for i, l := range five {
			for _, r := range []limits.Request{take(l, 2, "k"), take(l, 0, "k"), take(l, 2, "a", "k"), take(l, 0, "k", "a")} {
				exec(t, s, `DELETE FROM baton_limit WHERE key = 'a'`)
				exec(t, s, `INSERT INTO baton_limit VALUES ('k', $1, 'infinity')
					ON CONFLICT (key) DO UPDATE SET state = excluded.state, expires = excluded.expires`, garbage)
				d, err := s.Take(t.Context(), r)
				if err != nil || !d.OK || d.Limits[0].Remaining > 5 {
					t.Errorf("%s, limit %d, %+v: %+v, %v", garbage, i, r, d, err)
				}
			}
		}
	}
}

// Rows that have expired are removed, those that a transaction has locked are left for
// the next time, and the sweep waits for none.
func TestLimitSweep(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	exec(t, s, `INSERT INTO baton_limit SELECT ('old' || i)::bytea, '1 5 1 1', clock_timestamp() FROM generate_series(1, 1000) AS i`)
	exec(t, s, `INSERT INTO baton_limit_id SELECT ('old' || i)::bytea, 'id', 1, 1, clock_timestamp() FROM generate_series(1, 1000) AS i`)
	mustTake(t, s, withID(take(window(500), 1, "live")))
	tx := begin(t, s, pgx.ReadCommitted)
	for _, table := range []string{"baton_limit", "baton_limit_id"} {
		if _, err := tx.Exec(t.Context(), `SELECT FROM `+table+` WHERE key = 'old7' FOR NO KEY UPDATE`); err != nil {
			t.Fatal(err)
		}
	}
	until := func(n int) {
		t.Helper()
		eventually(t, "the sweep", 30*time.Second, func() bool {
			mustTake(t, s, take(limits.Limit{Algorithm: limits.TokenBucket, N: 100_000, Period: time.Second, Burst: 100}, 1, "busy"))
			return countKept(t, s) <= n
		})
	}
	until(5) // live and busy, an ID, and what is locked
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(3)
	if d := mustTake(t, s, take(window(500), 0, "live")); d.Limits[0].Remaining != 499 {
		t.Errorf("%+v", d)
	}
}

// A decision leaves the row where it is.
func TestLimitRowsStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openDirect(t, url)
	for i := range 600 {
		l := []limits.Limit{window(1000), {Algorithm: limits.TokenBucket, N: 1, Period: time.Hour, Burst: 1000}}[i%2]
		mustTake(t, s, take(l, 1, fmt.Sprint("k", i%2)))
	}
	eventually(t, "the statistics", 20*time.Second, func() bool {
		var changed, hot int64
		err := s.pool.QueryRow(context.Background(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'baton_limit'`).Scan(&changed, &hot)
		return err == nil && changed >= 590 && hot >= changed*95/100
	})
	var size int64
	if err := s.pool.QueryRow(t.Context(), `SELECT pg_relation_size('baton_limit')`).Scan(&size); err != nil || size > 128<<10 {
		t.Errorf("baton_limit has %d bytes after 600 decisions, %v", size, err)
	}
}

// What limits write need not be on the disk before it is answered.
func TestLimitsDoNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	for name, r := range shapes(window(50), 1) {
		tx := begin(t, s, pgx.ReadCommitted)
		takeIn(t, s, tx, r)
		var mode string
		if err := tx.QueryRow(t.Context(), `SELECT current_setting('synchronous_commit')`).Scan(&mode); err != nil || mode != "off" {
			t.Errorf("%s: synchronous_commit is %s, %v", name, mode, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
