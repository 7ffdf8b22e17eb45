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

// A program leaves the only connection of its pool in a state in which nothing that is
// done there is committed, and in which it sees old rows. What the store answers is
// committed and true all the same.
func TestConnectionsThatAreLeftBehind(t *testing.T) {
	t.Parallel()
	const snapshot = "SELECT COUNT(*) FROM baton_lock, baton_limit, baton_kept"
	for how, left := range map[string][]string{
		"autocommit is off":              {"SET autocommit=0", snapshot},
		"autocommit is off, no snapshot": {"SET autocommit=0"},
		"a transaction is open":          {"START TRANSACTION", snapshot},
		"a commit is chained":            {"SET completion_type=CHAIN", "START TRANSACTION", "COMMIT", snapshot},
		"a commit ends the session":      {"SET completion_type=2"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := shared(t)
			db := pool(t, d.config())
			db.SetMaxOpenConns(1)
			s, err := New(t.Context(), db)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			other := d.open(t)
			if how == "a transaction is open" && testserver.IsMySQL(t) {
				leaveBehind(t, db, left)
				grantedInATransaction(t, s, other)
				return
			}
			// leave leaves the connection behind, then runs what others do.
			leave := func(others ...func()) {
				t.Helper()
				leaveBehind(t, db, left)
				for _, do := range others {
					do()
				}
			}
			refused := func(c driver.Claim) {
				t.Helper()
				if _, err := other.Acquire(t.Context(), driver.Request{Claim: claimOf(c.Key, "other"), TTL: time.Minute}); !errors.Is(err, driver.ErrHeld) {
					t.Errorf("%s: others are answered with %v, want driver.ErrHeld", c.Key, err)
				}
			}

			leave()
			c, _ := take(t, s, claimOf("k", "new"), time.Minute, false)
			refused(c)
			leave()
			again, g := c, driver.Grant{}
			if g, err = s.Acquire(t.Context(), driver.Request{Claim: again, TTL: time.Minute, Retry: true}); err != nil || g.Token != c.Ticket {
				t.Errorf("asked again: %+v, %v, want token %d", g, err, c.Ticket)
			}
			leave()
			if r := renewOne(t, s, c, time.Hour); r.State != driver.Held {
				t.Errorf("renewed: %+v", r)
			}
			if info, err := other.Inspect(t.Context(), "k"); err != nil || len(info.Holders) != 1 || info.Holders[0].Remaining < 50*time.Minute {
				t.Errorf("renewed for an hour: %+v, %v", info, err)
			}
			leave()
			mustRelease(t, s, c)
			c, _ = take(t, other, claimOf("k", "other"), time.Minute, false)
			mustRelease(t, other, c)
			leave()
			c, _ = take(t, s, claimOf("k", "known"), time.Minute, false)
			refused(c)
			leave()
			w, _ := take(t, other, claimOf("k", "waiter"), time.Minute, true)
			mustRelease(t, s, c)
			if r := renewOne(t, other, w, time.Minute); r.State != driver.Held {
				t.Errorf("the next waiter: %+v", r)
			}
			leave(func() { take(t, other, claimOf("seen", "other"), time.Minute, false) })
			if info, err := s.Inspect(t.Context(), "seen"); err != nil || len(info.Holders) != 1 {
				t.Errorf("inspected: %+v, %v, want a holder", info, err)
			}

			l := bucketOf(1, 1000*time.Hour, 10)
			leave()
			takeOne(t, s, "k", l, 1)
			leave(func() { takeOne(t, other, "k", l, 3) })
			if d := takeOne(t, s, "k", l, 0); d.Limits[0].Remaining != 6 {
				t.Errorf("a look at a limit: %d are left, want 6", d.Limits[0].Remaining)
			}

			leave()
			beginRecord(t, s, "k", 7)
			leave(func() { finishRecord(t, other, "k", 7, "done") })
			if r, err := s.FindRecord(t.Context(), "k"); err != nil || string(r.Result) != "done" {
				t.Errorf("found %+v, %v", r, err)
			}
			leave()
			if err := s.ForgetRecord(t.Context(), "k"); err != nil {
				t.Error(err)
			}
			if _, err := other.FindRecord(t.Context(), "k"); !errors.Is(err, driver.ErrNoRecord) {
				t.Errorf("forgotten: %v, want driver.ErrNoRecord", err)
			}
		})
	}
}

// MySQL does not say that there is a transaction, so a lock may be granted in one. The
// store's next transaction on the connection undoes it. Until then it is granted to no
// other claim.
func grantedInATransaction(t *testing.T, s, other *Store) {
	t.Helper()
	c, _ := take(t, s, claimOf("k", "lost"), time.Minute, false)
	next := driver.Request{Claim: claimOf("k", "next"), TTL: time.Minute}
	if _, err := other.Acquire(t.Context(), next); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("others are answered with %v, want driver.ErrUnavailable: the row is locked", err)
	}
	if _, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("k2", "any"), TTL: time.Minute, Queue: true}); err != nil {
		t.Error(err)
	}
	if r := renewOne(t, s, claimOf("k", "waiter"), time.Minute); r.State != driver.Lost {
		t.Errorf("%+v", r)
	}
	if _, err := other.Acquire(t.Context(), next); err != nil {
		t.Errorf("after a transaction of the store: %v", err)
	}
	if r := renewOne(t, s, c, time.Minute); r.State != driver.Lost {
		t.Errorf("what was granted in the transaction: %+v, want it lost", r)
	}
}

// leaveBehind runs statements on the connection of a pool, and returns it.
func leaveBehind(t *testing.T, db *sql.DB, statements []string) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, text := range statements {
		rows, err := conn.QueryContext(t.Context(), text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		rows.Close()
	}
}

// A server that begins a transaction after each commit. Open does without; New says
// what the pool lacks.
func TestServerThatChainsCommits(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	d := newDatabase(t, testserver.MariaDB(t, "--completion-type=CHAIN"))
	s := d.open(t)
	lockAll(t, s, "own")
	if _, err := New(t.Context(), d.plain); !errors.Is(err, ErrCompletion) {
		t.Errorf("a pool as it is: %v, want ErrCompletion", err)
	}
	c := d.config()
	c.Params = map[string]string{"completion_type": "0"}
	given := d.wrap(t, c)
	held, _ := take(t, given, claimOf("k", "a"), time.Minute, false)
	given.Close()
	if _, err := s.Acquire(context.Background(), driver.Request{Claim: claimOf("k", "b"), TTL: time.Minute}); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("%v, want driver.ErrHeld", err)
	}
	mustRelease(t, s, held)
}
