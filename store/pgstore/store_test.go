package pgstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// Behind a pooler each statement may meet another connection: the store finds
// that out, prepares nothing and does not listen.
func TestPoolerIsNoticed(t *testing.T) {
	t.Parallel()
	testserver.NeedPgBouncer(t)
	server, url := database(t)
	if s := openAt(t, url); s.pooled || s.hints.node == "" {
		t.Error("a direct connection was taken for a pooler's")
	}
	bouncer := testserver.PgBouncer(t, server)
	s := openAt(t, strings.Replace(url, server.Addr, bouncer.Addr, 1))
	if !s.pooled || s.hints.node != "" {
		t.Error("the pooler was not noticed")
	}
	// Open offers settings that a pooler refuses, and goes without.
	ctx := t.Context()
	_, name, _ := strings.Cut(strings.TrimSuffix(url, "?sslmode=disable"), server.Addr+"/")
	opened, err := Open(ctx, Server{Addrs: []string{bouncer.Addr}, User: "postgres", Database: name}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if !opened.pooled {
		t.Error("Open did not notice the pooler")
	}
	release(t, opened, hold(t, opened, writer("k")))
}

// The clock of a transaction stops; that of the functions does not, so
// a claim that was made after a long wait for the row has its whole time.
func TestTimeIsReadAfterTheWait(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	plain, direct := openAt(t, url), openDirect(t, url)
	release(t, plain, hold(t, plain, writer("k")))
	for name, blocker := range map[string]string{
		"locked":  `SELECT FROM baton_lock WHERE k = 'k' FOR UPDATE`,
		"changed": `UPDATE baton_lock SET owner = owner WHERE k = 'k'`,

		"locked, functions":  `SELECT FROM baton_lock WHERE k = 'k' FOR UPDATE`,
		"changed, functions": `UPDATE baton_lock SET owner = owner WHERE k = 'k'`,
	} {
		s := direct
		if strings.HasSuffix(name, "functions") {
			s = plain
		}
		tx := begin(t, s, pgx.ReadCommitted)
		if _, err := tx.Exec(t.Context(), blocker); err != nil {
			t.Fatal(err)
		}
		r := writer("k")
		r.TTL = 10 * time.Second
		got := make(chan error, 1)
		go func() {
			_, err := s.Acquire(context.Background(), r)
			got <- err
		}()
		awaitBlocked(t, s, 1)
		var unblocked time.Time
		if err := s.pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&unblocked); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		var ends time.Time
		if err := s.pool.QueryRow(t.Context(), `SELECT ends FROM baton_lock WHERE k = 'k'`).Scan(&ends); err != nil {
			t.Fatal(err)
		}
		if d := ends.Sub(unblocked); d < r.TTL {
			t.Errorf("%s: it ends %v after the wait, want %v", name, d, r.TTL)
		}
		release(t, s, r.Claim)
	}
}

// Settings of the user that would break a promise are overridden, and come
// back for the user's own statements.
func TestSettingsOfTheUserAreOverridden(t *testing.T) {
	t.Parallel()
	for _, settings := range []map[string]string{
		{"default_transaction_isolation": "serializable"},
		{"default_transaction_isolation": "repeatable read", "synchronous_commit": "off"},
		{"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan", "standard_conforming_strings": "off"},
		{"enable_seqscan": "off", "default_transaction_isolation": "serializable"},
		{"timezone": "Asia/Kathmandu", "intervalstyle": "sql_standard", "datestyle": "german", "extra_float_digits": "0", "bytea_output": "escape"},
	} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			t.Parallel()
			_, url := database(t)
			s := openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams = settings }))
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 20 {
						r := writer("contended")
						r.Queue = true
						g, err := s.Acquire(t.Context(), r)
						for err == nil && g.Waiting {
							answer := s.Renew(t.Context(), []driver.Claim{with(r, g)}, r.TTL)[0]
							err, g = answer.Err, answer.Grant
						}
						if err == nil && g.Token > 0 { // else the machine was slow
							err = s.Release(t.Context(), with(r, g))
						}
						if err != nil {
							t.Errorf("%v", err)
							return
						}
					}
				})
			}
			wg.Wait()
			for name, want := range settings {
				var got string
				if err := s.pool.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&got); err != nil {
					t.Fatal(err)
				}
				if !strings.HasPrefix(strings.ToLower(got), strings.ToLower(want)) {
					t.Errorf("%s is %s afterwards, want %s", name, got, want)
				}
			}
		})
	}
}

// A grant is durable although the user's setting says that commits need not be; what no
// caller relies on is not.
func TestOnlyGrantsAndRenewalsWaitForTheDisk(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" }))
	commit := func(query string, args ...any) (mode string) {
		t.Helper()
		tx := begin(t, s, pgx.ReadCommitted)
		if _, err := tx.Exec(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), `SELECT current_setting('synchronous_commit')`).Scan(&mode); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		return mode
	}
	acquire := func(r driver.Request) string {
		t.Helper()
		return commit(acquireSQL, []byte(r.Key), r.ID, r.Owner, "", r.Weight, r.Capacity, r.TTL.Microseconds(), r.Queue, r.Retry, r.Ticket)
	}
	a, b, reader := writer("k"), queued(writer("k")), writer("r")
	reader.Weight = 1
	renew := func(r driver.Request) string {
		t.Helper()
		keys, ids := [][]byte{[]byte(r.Key)}, []string{r.ID}
		var seq int64
		if err := s.pool.QueryRow(t.Context(), `SELECT coalesce((SELECT seq FROM baton_claim WHERE id = $1), 0)`, r.ID).Scan(&seq); err != nil {
			t.Fatal(err)
		}
		return commit(renewSQL, keys, ids, []int64{seq}, r.TTL.Microseconds())
	}
	end := func(r driver.Request) string {
		t.Helper()
		return commit(releaseSQL, []byte(r.Key), r.ID, int64(0))
	}
	many := func(grant, end string) string {
		t.Helper()
		return commit(manySQL, [][]byte{[]byte(end)}, []string{"many-" + end}, [][]byte{[]byte(grant)}, []string{"many-" + grant},
			[]string{""}, []int64{time.Minute.Microseconds()}, "")
	}
	onKey := func(ends []driver.Request, queued ...driver.Request) string {
		t.Helper()
		endIDs, tickets, ids, owners, ttls := []string{}, []int64{}, []string{}, []string{}, []int64{}
		for _, r := range ends {
			endIDs = append(endIDs, r.ID)
			var seq int64
			if err := s.pool.QueryRow(t.Context(), `SELECT coalesce((SELECT seq FROM baton_claim WHERE id = $1), 0)`, r.ID).Scan(&seq); err != nil {
				t.Fatal(err)
			}
			tickets = append(tickets, seq)
		}
		for _, r := range queued {
			ids, owners, ttls = append(ids, r.ID), append(owners, r.Owner), append(ttls, r.TTL.Microseconds())
		}
		return commit(keySQL, []byte("k"), endIDs, tickets, ids, owners, ttls, "")
	}
	direct := func(r driver.Request) string {
		return commit(directAcquireSQL, []byte(r.Key), r.ID, r.Owner, "", r.TTL.Microseconds())
	}
	together := func(all ...driver.Request) string {
		t.Helper()
		args := []any{[][]byte{}, []string{}, []string{}, "", []int64{}, []int64{}, []int64{}, []bool{}, []int64{}}
		for _, r := range all {
			args[0], args[1], args[2] = append(args[0].([][]byte), []byte(r.Key)), append(args[1].([]string), r.ID), append(args[2].([]string), r.Owner)
			args[4], args[5] = append(args[4].([]int64), r.Weight), append(args[5].([]int64), r.Capacity)
			args[6], args[7] = append(args[6].([]int64), r.TTL.Microseconds()), append(args[7].([]bool), r.Retry)
			args[8] = append(args[8].([]int64), r.Ticket)
		}
		return commit(togetherSQL, args...)
	}
	place := func(r driver.Request) string {
		defer stay(t, s)
		return acquire(queued(r))
	}
	retry := func(r driver.Request) driver.Request {
		r.Retry = true
		return r
	}
	c, d, e, f, g, h := writer("k"), writer("k"), writer("k"), writer("d"), writer("g"), writer("h")
	for i, step := range []struct{ what, got, want string }{
		{"a merged grant of a new key", many("m", "-"), "on"},
		{"a merged release and a grant", many("n", "m"), "on"},
		{"a merged release and a refusal", many("n", "n2"), "off"},
		{"a merged grant of a known key", many("m", "-"), "on"},
		{"a grant", acquire(a), "on"},
		{"a refusal", acquire(writer("k")), "off"},
		{"a position", acquire(b), "off"},
		{"the renewal of a holder", renew(a), "on"},
		{"the renewal of a waiter", renew(b), "off"},
		{"a hand-over", end(a), "on"},
		{"the renewal of who was granted", renew(b), "on"},
		{"a release", end(b), "off"},
		{"a reader's grant", acquire(reader), "on"},
		{"a reader's release", end(reader), "off"},
		{"another grant", acquire(c), "on"},
		{"a position", onKey(nil, d), "off"},
		{"a hand-over and a position", onKey([]driver.Request{c}, b), "on"},
		{"the end of a position", onKey([]driver.Request{b}), "off"},
		{"a grant at once", onKey([]driver.Request{d}, e), "on"},
		{"the end of the last", onKey([]driver.Request{e}), "off"},
		{"a direct grant of a new key", direct(f), "on"},
		{"a direct refusal", direct(writer("d")), "off"},
		{"a direct release", commit(directReleaseSQL, []byte("d"), f.ID), "off"},
		{"a direct grant", direct(writer("d")), "on"},
		{"an uncontended grant", acquire(a), "on"},
		{"an uncontended release", end(a), "off"},
		{"a grant of several new keys", together(g, h), "on"},
		{"a repeated grant of several", together(retry(g), retry(h)), "on"},
		{"a refusal of several", together(writer("g1"), writer("h")), "off"},
		{"a position", place(writer("g")), "off"},
		{"a release", end(h), "off"},
		{"a grant", acquire(writer("h")), "on"},
		{"a refused repeat, which hands over", together(retry(g), retry(h)), "on"},
	} {
		if step.got != step.want {
			t.Errorf("%d, %s: synchronous_commit is %s, want %s", i, step.what, step.got, step.want)
		}
	}
}

// The row of a key that is renewed again and again stays where it is: no index
// has to be written, and old versions are cleared away page by page.
func TestRenewalsLeaveASmallTable(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	fast := hold(t, s, writer("fast"))
	reader := writer("reader")
	reader.Weight = 1
	slow := hold(t, s, reader)
	for range 500 {
		for _, r := range s.Renew(t.Context(), []driver.Claim{fast, slow}, time.Minute) {
			if r.State != driver.Held {
				t.Fatalf("%+v", r)
			}
		}
	}
	for _, table := range []string{"baton_lock", "baton_claim"} {
		eventually(t, "the statistics of "+table, 20*time.Second, func() bool {
			var changed, hot int64
			err := s.pool.QueryRow(context.Background(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1`, table).Scan(&changed, &hot)
			return err == nil && changed >= 500 && hot >= changed*95/100
		})
		var size int64
		if err := s.pool.QueryRow(t.Context(), `SELECT pg_relation_size($1::regclass)`, table).Scan(&size); err != nil {
			t.Fatal(err)
		}
		if size > 128<<10 {
			t.Errorf("%s has %d bytes after 500 renewals of one row", table, size)
		}
	}
}

// Unused keys leave nothing behind, and tokens rise all the same, even if the counter
// ran ahead of the clock.
func TestSweep(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url, func(o *options) { o.idle, o.sweep = 10*time.Millisecond, time.Hour })
	for i := range 25 {
		release(t, s, hold(t, s, writer(fmt.Sprint("idle", i))))
	}
	held := hold(t, s, writer("held"))
	dead := writer("dead")
	dead.Weight, dead.TTL = 1, 100*time.Millisecond
	hold(t, s, dead)
	ahead := hold(t, s, writer("ahead"))
	release(t, s, ahead)
	exec(t, s, `UPDATE baton_lock SET last = last + 3600000000::bigint WHERE k = 'ahead'`)
	eventually(t, "the sweep", 20*time.Second, func() bool {
		for after := []byte{}; ; {
			upto, _, err := s.sweep.page(after, 10)
			if err != nil {
				t.Fatal(err)
			}
			if after = upto; len(after) == 0 {
				break
			}
		}
		var left string
		if err := s.pool.QueryRow(t.Context(), `SELECT string_agg(encode(k, 'escape'), ' ' ORDER BY k) FROM baton_lock`).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left == "ahead held"
	})
	var claims int
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM baton_claim`).Scan(&claims); err != nil || claims != 0 {
		t.Errorf("%d claims are left, %v", claims, err)
	}
	mustBe(t, s, held, driver.Held)
	if next := hold(t, s, writer("ahead")); next.Ticket <= ahead.Ticket+3600000000 {
		t.Errorf("token %d after a counter of %d", next.Ticket, ahead.Ticket+3600000000)
	}
}

// The tables are lost with everything in them, as by a fail-over to a standby
// that never heard of them: tokens rise all the same.
func TestTokensRiseWithoutTheTables(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	old := hold(t, s, writer("k"))
	exec(t, s, `TRUNCATE baton_lock, baton_claim`)
	if c := hold(t, s, writer("k")); c.Ticket <= old.Ticket {
		t.Errorf("token %d after %d", c.Ticket, old.Ticket)
	}
	mustBe(t, s, old, driver.Lost)
}
