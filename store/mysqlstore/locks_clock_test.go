package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/testserver"
)

// The server's clock is set back while a statement waits: the statement began at a time
// by which what is written now would have expired.

// life outlasts the set-up on a busy machine, which has taken more than a minute.
const life = 10 * time.Minute

// ahead is a database on a server whose clock is an hour ahead.
func ahead(t *testing.T) (*database, *testserver.Clock) {
	t.Helper()
	clock := testserver.NewClock(t)
	clock.Set(time.Hour)
	return newDatabase(t, clock.MariaDB()), clock
}

func within(t *testing.T, tx *sql.Tx, text string) {
	t.Helper()
	if _, err := tx.Exec(text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// A holder is being renewed while another asks for the free row of its key.
func TestClockSetBackWhileAcquireWaits(t *testing.T) {
	t.Parallel()
	d, clock := ahead(t)
	s := d.openWith(t, patient)
	h, _ := take(t, s, claimOf("k", "h"), life, false)
	renewing := lockRow(t, d, "baton_lock", "k")
	other := make(chan error, 1)
	go func() {
		_, err := s.Acquire(context.Background(), driver.Request{Claim: claimOf("k", "other"), TTL: life})
		other <- err
	}()
	awaitBlocked(t, d, 1)
	clock.Set(0)
	within(t, renewing, "UPDATE baton_lock SET ends=UTC_TIMESTAMP(6)+INTERVAL 60 SECOND WHERE k='k'")
	commit(t, renewing)
	if err := <-other; !errors.Is(err, driver.ErrHeld) {
		t.Errorf("beside the holder: %v, want it held", err)
	}
	if r := renewOne(t, s, h, life); r.State != driver.Held {
		t.Errorf("the holder: %+v", r)
	}
	mustRelease(t, s, h)
	take(t, s, claimOf("k", "next"), life, false)
}

// A holder that looked dead is being renewed while another transaction removes it.
func TestClockSetBackWhileTheDeadAreRemoved(t *testing.T) {
	t.Parallel()
	d, clock := ahead(t)
	s := d.openWith(t, patient)
	reader := claimOf("k", "reader")
	reader.Weight = 1
	reader, _ = take(t, s, reader, life, false)
	writer, _ := take(t, s, claimOf("k", "writer"), life, true)
	d.exec(t, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6) WHERE k='k' AND held=1")
	renewing := begin(t, d.plain, sql.LevelReadCommitted)
	within(t, renewing, "UPDATE baton_claim SET ttl=ttl+1 WHERE k='k' AND held=1")
	got := make(chan driver.Renewal, 1)
	go func() { got <- s.Renew(context.Background(), []driver.Claim{writer}, life)[0] }()
	awaitBlocked(t, d, 1)
	clock.Set(0)
	within(t, renewing, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6)+INTERVAL 60 SECOND WHERE k='k' AND held=1")
	commit(t, renewing)
	if r := <-got; r.State != driver.Waiting {
		t.Errorf("the writer: %+v, want it waiting", r)
	}
	if r := renewOne(t, s, reader, life); r.State != driver.Held {
		t.Errorf("the reader: %+v", r)
	}
	mustRelease(t, s, reader)
	if r := renewOne(t, s, writer, life); r.State != driver.Held {
		t.Errorf("the writer, when the reader has gone: %+v", r)
	}
}

// What is over is removed, but not what was written after it was looked for.
func TestClockSetBackWhileTheSweepWaits(t *testing.T) {
	t.Parallel()
	d, clock := ahead(t)
	s := d.openWith(t, patient)
	conn, err := d.plain.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	run := func(text string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	for _, c := range []struct {
		table, insert string
		sweep         func() error
	}{
		{
			"baton_kept", "(k,text,until) VALUES ('%s','',UTC_TIMESTAMP(6)+INTERVAL %d MINUTE)",
			func() error { _, err := s.sweepSomeTexts(context.Background()); return err },
		},
		{
			"baton_limit_id", "(k,id,at,wait,ends) VALUES ('%s','id',0,0,UTC_TIMESTAMP(6)+INTERVAL %d MINUTE)",
			func() error { return s.sweepIDs(context.Background(), 10) },
		},
	} {
		clock.Set(time.Hour)
		run("LOCK TABLES " + c.table + " WRITE")
		swept := make(chan error, 1)
		go func() { swept <- c.sweep() }()
		awaitTable(t, d)
		clock.Set(0)
		run("INSERT INTO " + c.table + fmt.Sprintf(c.insert, "new", 20))
		run("INSERT INTO " + c.table + fmt.Sprintf(c.insert, "old", -1))
		run("UNLOCK TABLES")
		if err := <-swept; err != nil {
			t.Errorf("%s: %v", c.table, err)
		}
		var left string
		if err := d.plain.QueryRow("SELECT GROUP_CONCAT(k) FROM " + c.table).Scan(&left); err != nil || left != "new" {
			t.Errorf("%s: %q is left, %v", c.table, left, err)
		}
	}
}

// awaitTable waits until a statement waits for a table that is locked.
func awaitTable(t *testing.T, d *database) {
	t.Helper()
	eventually(t, "a statement waits for the table", 10*time.Second, func() bool {
		var n int
		err := d.plain.QueryRow("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB=? AND STATE LIKE 'Waiting for table metadata lock%'", d.name).Scan(&n)
		return err == nil && n == 1
	})
}

// A read that has begun before something is taken, and sees it, tells of a moment after
// that.
func TestLooksAreDatedByWhatTheySee(t *testing.T) {
	t.Parallel()
	testserver.NeedMariaDB(t)
	d := shared(t)
	s := d.openWith(t, patient)
	limit := bucketOf(1, time.Hour, 10)
	takeOne(t, s, "k", limit, 1)
	conn, err := d.plain.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "LOCK TABLES baton_limit WRITE"); err != nil {
		t.Fatal(err)
	}
	looked := make(chan limits.Taken, 1)
	go func() {
		d, err := s.Take(context.Background(), takeOf("k", limit, 0))
		if err != nil {
			t.Error(err)
		}
		looked <- d
	}()
	awaitTable(t, d)
	var at int64
	if err := conn.QueryRowContext(t.Context(), "SELECT "+micros).Scan(&at); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "DELETE FROM baton_limit"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "UNLOCK TABLES"); err != nil {
		t.Fatal(err)
	}
	if l := <-looked; l.Limits[0].Remaining != 10 || l.At < at {
		t.Errorf("%+v, %d µs after what it has seen", l, l.At-at)
	}
}
