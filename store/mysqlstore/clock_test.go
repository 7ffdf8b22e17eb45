package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// The server's clock is set back while a statement waits: it began at a time at
// which what is written now would be over.

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
	h, _ := take(t, s, claimOf("k", "h"), time.Minute, false)
	renewing := lockRow(t, d, "baton_lock", "k")
	other := make(chan error, 1)
	go func() {
		_, err := s.Acquire(context.Background(), driver.Request{Claim: claimOf("k", "other"), TTL: time.Minute})
		other <- err
	}()
	awaitBlocked(t, d, 1)
	clock.Set(0)
	within(t, renewing, "UPDATE baton_lock SET ends=UTC_TIMESTAMP(6)+INTERVAL 60 SECOND WHERE k='k'")
	commit(t, renewing)
	if err := <-other; !errors.Is(err, driver.ErrHeld) {
		t.Errorf("beside the holder: %v, want it held", err)
	}
	if r := renewOne(t, s, h, time.Minute); r.State != driver.Held {
		t.Errorf("the holder: %+v", r)
	}
	mustRelease(t, s, h)
	take(t, s, claimOf("k", "next"), time.Minute, false)
}

// A holder that looked dead is being renewed while another takes it away.
func TestClockSetBackWhileTheDeadAreRemoved(t *testing.T) {
	t.Parallel()
	d, clock := ahead(t)
	s := d.openWith(t, patient)
	reader := claimOf("k", "reader")
	reader.Weight = 1
	reader, _ = take(t, s, reader, time.Minute, false)
	writer, _ := take(t, s, claimOf("k", "writer"), time.Minute, true)
	d.exec(t, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6) WHERE k='k' AND held=1")
	renewing := begin(t, d.plain, sql.LevelReadCommitted)
	within(t, renewing, "UPDATE baton_claim SET ttl=ttl+1 WHERE k='k' AND held=1")
	got := make(chan driver.Renewal, 1)
	go func() { got <- s.Renew(context.Background(), []driver.Claim{writer}, time.Minute)[0] }()
	awaitBlocked(t, d, 1)
	clock.Set(0)
	within(t, renewing, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6)+INTERVAL 60 SECOND WHERE k='k' AND held=1")
	commit(t, renewing)
	if r := <-got; r.State != driver.Waiting {
		t.Errorf("the writer: %+v, want it waiting", r)
	}
	if r := renewOne(t, s, reader, time.Minute); r.State != driver.Held {
		t.Errorf("the reader: %+v", r)
	}
	mustRelease(t, s, reader)
	if r := renewOne(t, s, writer, time.Minute); r.State != driver.Held {
		t.Errorf("the writer, when the reader has gone: %+v", r)
	}
}
