package pgstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
)

// openAhead returns a store on a server whose clock is an hour ahead.
func openAhead(t *testing.T) (*Store, *testserver.Clock) {
	t.Helper()
	clock := testserver.NewClock(t)
	server := clock.Postgres()
	clock.Set(time.Hour)
	return openAt(t, server.URL(server.Database(t)), func(o *options) { o.sweep = time.Hour }), clock
}

// sweepMeets runs a statement that sweeps, and stops it where it comes to the
// table: it has read the clock by then, and sees no row yet. Meanwhile the clock
// is set right, and whatever act does in tx is committed.
func sweepMeets(t *testing.T, s *Store, clock *testserver.Clock, table, sweep string, act func(tx pgx.Tx)) {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), sweep); err != nil { // what is read for the first time is read before the clock
		t.Fatal(err)
	}
	tx := begin(t, s, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), sweep)
		done <- err
	}()
	eventually(t, "the sweep comes to the table", 20*time.Second, func() bool {
		var waits bool
		err := s.pool.QueryRow(t.Context(), `SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = $1`,
			conn.Conn().PgConn().PID()).Scan(&waits)
		return err == nil && waits
	})
	clock.Set(0)
	act(tx)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the sweep: %v", err)
	}
}

// The clock is set back between the sweep's look at it and its look at the rows.
// What was taken by the clock that is right is not old by the one that was not.
func TestLimitSweepMeetsAClockSetBack(t *testing.T) {
	t.Parallel()
	s, clock := openAhead(t)
	l := limits.Limit{Algorithm: limits.SlidingLog, N: 5, Period: 20 * time.Minute}
	once := withID(take(window(100), 1, "once"))
	for range l.N {
		mustTake(t, s, take(l, 1, "k"))
	}
	sweepMeets(t, s, clock, "baton_limit", `SELECT baton_sweep_limits_1('', 100)`, func(tx pgx.Tx) {
		if d := takeIn(t, s, tx, take(l, 1, "k")); d.OK {
			t.Errorf("by the clock that is right: %+v", d)
		}
	})
	if d := mustTake(t, s, take(l, 1, "k")); d.OK {
		t.Errorf("%+v: what was taken is forgotten", d)
	}

	clock.Set(time.Hour)
	sweepMeets(t, s, clock, "baton_limit_id", `SELECT baton_sweep_limits_1('', 100)`, func(tx pgx.Tx) {
		once.Keep = time.Minute
		if d := takeIn(t, s, tx, once); !d.OK {
			t.Errorf("with an ID: %+v", d)
		}
	})
	if d := mustTake(t, s, once); !d.Repeated {
		t.Errorf("%+v: the ID is forgotten", d)
	}
}

// So it is with the rows of locks: a holder keeps its lock.
func TestSweepMeetsAClockSetBack(t *testing.T) {
	t.Parallel()
	s, clock := openAhead(t)
	r := writer("k")
	sweepMeets(t, s, clock, "baton_lock", `SELECT baton_sweep_1('', 100, 600000000)`, func(tx pgx.Tx) {
		var text string
		err := tx.QueryRow(t.Context(), acquireSQL, []byte(r.Key), r.ID, r.Owner, "", r.Weight, r.Capacity, r.TTL.Microseconds(), false, false, int64(0)).Scan(&text)
		if err != nil || readAnswer(text).state != isHeld {
			t.Fatalf("%q, %v, want a grant", text, err)
		}
	})
	mustBe(t, s, r.Claim, driver.Held)
	if _, err := s.Acquire(t.Context(), writer("k")); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("another claim: %v, want driver.ErrHeld", err)
	}
}

// LockAll makes a row, and while it waits for another transaction that makes the same
// one the clock is set back. The readers that are granted then are seen by writers.
func TestTogetherMeetsAClockSetBack(t *testing.T) {
	t.Parallel()
	s, clock := openAhead(t)
	all := writers("a", "b")
	for i := range all {
		all[i].Weight = 1
	}
	tx := begin(t, s, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `INSERT INTO baton_lock (k, last, first, busy, id, token, weight, owner, node, since, ends)
		VALUES ('b', 0, 0, false, '', 0, 1, '', '', now(), now())`); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		grants []driver.Grant
		err    error
	}
	got := make(chan answer, 1)
	go func() {
		grants, err := s.AcquireAll(context.Background(), all)
		got <- answer{grants, err}
	}()
	awaitBlocked(t, s, 1)
	clock.Set(0)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := <-got
	if a.err != nil {
		t.Fatal(a.err)
	}
	for i, r := range all {
		mustRefuse(t, s, r.Key)
		mustBe(t, s, with(r, a.grants[i]), driver.Held)
		release(t, s, with(r, a.grants[i]))
		hold(t, s, writer(r.Key))
	}
}

// A command that runs for a moment now and then sweeps what other programs have left,
// before and after the key that it uses.
func TestCommandsSweep(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	plain := openAt(t, url)
	const others = 1200 // more than a page
	exec(t, plain, `INSERT INTO baton_lock SELECT convert_to('key' || lpad(i::text, 4, '0'), 'UTF8'), 1, 1, false, '', 1, 1, 'o', 'n', '2020-01-01', '2020-01-01' FROM generate_series(1, 1200) AS i`)
	for _, early := range []bool{false, true} {
		s := openAt(t, url, func(o *options) { o.early, o.sweep = early, time.Hour })
		release(t, s, hold(t, s, writer("key0600")))
		if early {
			eventually(t, "the sweep", 20*time.Second, func() bool { return rowsOf(t, plain) < others/10 })
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := rowsOf(t, plain); !early && n != others {
			t.Errorf("%d rows are left of %d, though it was not early", n, others)
		}
	}
	early := 0
	for range 1600 {
		if defaults().early {
			early++
		}
	}
	if early < 20 || early > 400 {
		t.Errorf("%d of 1600 stores sweep early, want about 100", early)
	}
}
