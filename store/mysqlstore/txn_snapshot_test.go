package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// snapshots makes the server refuse to lock a row that has changed since the
// transaction's snapshot, as newer ones of MariaDB do by default. MySQL has no such option.
const snapshots = "--loose-innodb-snapshot-isolation=ON"

// What may meet such a refusal: transactions of users that depend on leases, and
// many clients at the same rows. TestContractOnPool runs on such a server, too.
func TestSnapshotIsolation(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	server := testserver.MariaDB(t, snapshots)
	for name, test := range map[string]func(*testing.T, *database){
		"transactions let holders through":             inTxLetsHoldersThrough,
		"transactions see the loss":                    inTxSeesTheLossThatItsSnapshotDoesNot,
		"transactions end before the next holder":      inTxCommitsBeforeTheNextHolder,
		"a transaction that has read before":           inTxAfterARenewal,
		"no deadlock surfaces":                         noDeadlockSurfaces,
		"no deadlock surfaces with many keys a client": manyKeysNoDeadlockSurfaces,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t, server)
			d.snapshots = !testserver.IsMySQL(t)
			test(t, d)
		})
	}
}

func TestInTxAfterARenewal(t *testing.T) { inTxAfterARenewal(t, shared(t)) }

// A transaction has read, and the lease that it is to depend on is renewed after
// that. It depends on the lease, or is told to be made again, and never that the
// lease is lost.
func inTxAfterARenewal(t *testing.T, d *database) {
	t.Parallel()
	s := d.open(t)
	row, _ := take(t, s, claimOf("row", "a"), time.Minute, false)
	reader := claimOf("claim", "a")
	reader.Weight = 1
	reader, _ = take(t, s, reader, time.Minute, false)
	for _, c := range []driver.Claim{row, reader} {
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			tx := begin(t, d.plain, level)
			if err := tx.QueryRow("SELECT (SELECT COUNT(*) FROM baton_lock) + (SELECT COUNT(*) FROM baton_claim)").Scan(new(int)); err != nil {
				t.Fatal(err)
			}
			if r := renewOne(t, s, c, time.Minute); r.State != driver.Held {
				t.Fatalf("%+v", r)
			}
			err := s.InTx(t.Context(), tx, leased{claim: c})
			if refuses := d.snapshots && level == sql.LevelRepeatableRead; refuses != (err != nil) {
				t.Errorf("%s, %v: %v", c.Key, level, err)
			}
			if err != nil && (errors.Is(err, driver.ErrLost) || !errors.Is(err, driver.ErrUnavailable) || number(err) != erChanged) {
				t.Errorf("%s, %v: %v, want driver.ErrUnavailable and error 1020", c.Key, level, err)
			}
			tx.Rollback()

			tx = begin(t, d.plain, level)
			if err := s.InTx(t.Context(), tx, leased{claim: c}); err != nil {
				t.Errorf("%s, %v, asked first: %v", c.Key, level, err)
			}
			tx.Rollback()
		}
	}
}

// Going back to a savepoint that is older than the call undoes it. Asked again, it
// holds.
func TestInTxAndSavepoints(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.open(t)
	c, _ := take(t, s, claimOf("k", "a"), time.Minute, false)
	refused := uint16(erLockTimeout)
	if testserver.IsMySQL(t) {
		refused = 3572 // its own error for NOWAIT
	}
	other := func() error {
		return d.plain.QueryRow("SELECT id FROM baton_lock WHERE k=? FOR UPDATE NOWAIT", c.Key).Scan(new(string))
	}
	tx := begin(t, d.plain, sql.LevelDefault)
	for _, text := range []string{"", "SAVEPOINT here", "ROLLBACK TO SAVEPOINT here"} {
		if text != "" {
			if _, err := tx.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.InTx(t.Context(), tx, leased{claim: c}); err != nil {
			t.Fatal(err)
		}
		if err := other(); number(err) != refused {
			t.Errorf("asked after %q: others get at the row: %v, want error %d", text, err, refused)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
}

// A transaction of the store that the server undid for a reason which may be gone is
// made again, and no caller hears of it.
func TestTransactionsThatWereUndoneAreMadeAgain(t *testing.T) {
	t.Parallel()
	s := shared(t).open(t)
	for _, reason := range []uint16{erDeadlock, erDuplicate, erChanged, erInTransaction} {
		made := 0
		err := s.call(t.Context(), func(context.Context) (unsure bool, err error) {
			if made++; made == 1 {
				err = &mysql.MySQLError{Number: reason}
			}
			return false, err
		})
		if err != nil || made != 2 {
			t.Errorf("error %d: made %d times, %v, want twice", reason, made, err)
		}
	}
}
