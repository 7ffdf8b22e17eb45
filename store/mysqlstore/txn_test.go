package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// leased is a lease with a claim, as package baton has them.
type leased struct {
	claim driver.Claim
	err   error
}

func (l leased) Pin() (driver.Claim, error) { return l.claim, l.err }

func shared(t *testing.T) *database {
	t.Helper()
	return newDatabase(t, testserver.SharedMariaDB(t))
}

func begin(t *testing.T, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

// Holders of every kind are let through, at every isolation, from a session
// whose database is another one and which has looked at the tables before.
func TestInTxLetsHoldersThrough(t *testing.T) { inTxLetsHoldersThrough(t, shared(t)) }

func inTxLetsHoldersThrough(t *testing.T, d *database) {
	t.Parallel()
	s := d.open(t)
	other := newDatabase(t, d.server)
	fast, _ := take(t, s, claimOf("fast", "a"), time.Minute, false)
	head, _ := take(t, s, claimOf("queue", "b"), time.Minute, false)
	next, _ := take(t, s, claimOf("queue", "c"), time.Minute, true)
	d.stay(t)
	mustRelease(t, s, head)
	d.stay(t)
	reader := claimOf("shared", "d")
	reader.Weight = 1
	reader, _ = take(t, s, reader, time.Minute, false)
	permit := claimOf("permits", "e")
	permit.Weight, permit.Capacity = 2, 5
	permit, _ = take(t, s, permit, time.Minute, false)
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, c := range []driver.Claim{fast, next, reader, permit} {
			tx := begin(t, other.plain, level)
			if _, err := tx.Exec("DO (SELECT COUNT(*) FROM " + s.table("baton_lock") + ")"); err != nil {
				t.Fatal(err)
			}
			if err := s.InTx(t.Context(), tx, leased{claim: c}); err != nil {
				t.Errorf("%v, %s: %v", level, c.Key, err)
			}
			if err := tx.Commit(); err != nil {
				t.Errorf("%v, %s: commit: %v", level, c.Key, err)
			}
		}
	}
}

// At REPEATABLE READ a transaction sees the lock as it was when it began. The
// check must not.
func TestInTxSeesTheLossThatItsSnapshotDoesNot(t *testing.T) {
	inTxSeesTheLossThatItsSnapshotDoesNot(t, shared(t))
}

func inTxSeesTheLossThatItsSnapshotDoesNot(t *testing.T, d *database) {
	t.Parallel()
	s := d.open(t)
	for name, lose := range map[string]func(c driver.Claim){
		"released": func(c driver.Claim) { mustRelease(t, s, c) },
		"broken": func(c driver.Claim) {
			if _, err := s.Break(t.Context(), c.Key); err != nil {
				t.Fatal(err)
			}
		},
		"taken over": func(c driver.Claim) {
			mustRelease(t, s, c)
			take(t, s, claimOf(c.Key, "next"), time.Minute, false)
		},
		"deleted": func(c driver.Claim) { d.exec(t, "DELETE FROM baton_lock WHERE k=?", c.Key) },
		"expired": func(c driver.Claim) {
			d.exec(t, "UPDATE baton_lock SET ends=UTC_TIMESTAMP(6) WHERE k=?", c.Key)
		},
	} {
		c, _ := take(t, s, claimOf(name, "a"), time.Minute, false)
		tx := begin(t, d.plain, sql.LevelRepeatableRead)
		var n int
		if err := tx.QueryRow("SELECT COUNT(*) FROM baton_lock WHERE k=? AND id=?", c.Key, c.ID).Scan(&n); err != nil || n != 1 {
			t.Fatalf("%s: %d rows, %v", name, n, err)
		}
		lose(c)
		err := s.InTx(t.Context(), tx, leased{claim: c})
		if !errors.Is(err, driver.ErrLost) && !(d.snapshots && number(err) == erChanged && errors.Is(err, driver.ErrUnavailable)) {
			t.Errorf("%s: %v, want ErrLost", name, err)
		}
		tx.Rollback()
	}
	gone := errors.New("ended")
	if err := s.InTx(t.Context(), begin(t, d.plain, sql.LevelDefault), leased{err: gone}); !errors.Is(err, gone) {
		t.Errorf("a lease that has ended: %v", err)
	}
	waiting := claimOf("held", "b")
	take(t, s, claimOf("held", "a"), time.Minute, false)
	waiting, _ = take(t, s, waiting, time.Minute, true)
	if err := s.InTx(t.Context(), begin(t, d.plain, sql.LevelDefault), leased{claim: waiting}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a position: %v, want ErrLost", err)
	}
}

// The lease expires while the transaction is open. No claim is granted the lock before
// the commit, by either path.
func TestInTxCommitsBeforeTheNextHolder(t *testing.T) { inTxCommitsBeforeTheNextHolder(t, shared(t)) }

func inTxCommitsBeforeTheNextHolder(t *testing.T, d *database) {
	t.Parallel()
	s := d.open(t)
	d.exec(t, "CREATE TABLE account (balance BIGINT NOT NULL) ENGINE=InnoDB")
	d.exec(t, "INSERT INTO account VALUES (1000)")
	const ttl = 3 * time.Second // a busy machine takes long for what comes before its end
	for _, queue := range []bool{false, true} {
		key := "fast"
		if queue {
			key = "queue"
		}
		c := claimOf(key, "a")
		if queue {
			first, _ := take(t, s, claimOf(key, "first"), time.Minute, false)
			c, _ = take(t, s, c, ttl, true)
			mustRelease(t, s, first)
		} else {
			c, _ = take(t, s, c, ttl, false)
		}
		if r := renewOne(t, s, c, ttl); r.State != driver.Held {
			t.Fatalf("%s: %+v", key, r)
		}
		tx := begin(t, d.plain, sql.LevelDefault)
		if err := s.InTx(t.Context(), tx, leased{claim: c}); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		if _, err := tx.Exec("UPDATE account SET balance=balance-1"); err != nil {
			t.Fatal(err)
		}
		var before int
		if err := d.plain.QueryRow("SELECT balance FROM account").Scan(&before); err != nil {
			t.Fatal(err)
		}
		// Long after its end by the server's clock.
		eventually(t, "the lease is over", 10*time.Second, func() bool {
			var over bool
			err := d.plain.QueryRow(`SELECT UTC_TIMESTAMP(6) > GREATEST(
				(SELECT ends FROM baton_lock WHERE k=?), IFNULL((SELECT MAX(ends) FROM baton_claim WHERE k=?), '1970-01-01'))`, key, key).Scan(&over)
			return err == nil && over
		})
		next := claimOf(key, "next")
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		g, err := s.Acquire(short, driver.Request{Claim: next, TTL: time.Minute})
		cancel()
		if err == nil {
			t.Fatalf("%s: granted %+v while the transaction is open", key, g)
		}
		if err := tx.Commit(); err != nil {
			t.Fatalf("%s: commit: %v", key, err)
		}
		eventually(t, "the next holder", 20*time.Second, func() bool {
			_, err := s.Acquire(t.Context(), driver.Request{Claim: next, TTL: time.Minute, Retry: true})
			return err == nil
		})
		var after int
		if err := d.plain.QueryRow("SELECT balance FROM account").Scan(&after); err != nil || after != before-1 {
			t.Errorf("%s: the next holder sees %d after %d, %v", key, after, before, err)
		}
	}
}

// The answer to InTx, or to the commit, is lost. Without the first nothing is
// committed; the second leaves what was written, once. Neither holds the lock's
// row any longer than its connection.
func TestInTxAnswerCut(t *testing.T) {
	t.Parallel()
	d := shared(t)
	plain := d.open(t)
	proxy := faultproxy.New(t, d.server.Addr)
	c := d.config()
	c.Addr = proxy.Addr
	db := pool(t, c)
	d.exec(t, "CREATE TABLE work (what VARCHAR(9)) ENGINE=InnoDB")
	for want, cut := range []string{"FOR UPDATE", "COMMIT"} {
		held, _ := take(t, plain, claimOf("cut", "a"), time.Minute, false)
		tx := begin(t, db, sql.LevelDefault)
		if _, err := tx.Exec("INSERT INTO work VALUES ('once')"); err != nil {
			t.Fatal(err)
		}
		sprung := proxy.CutAfterRequest(carries(cut))
		err := plain.InTx(t.Context(), tx, leased{claim: held})
		if cut == "COMMIT" && err == nil {
			err = tx.Commit()
		}
		if err == nil || errors.Is(err, driver.ErrLost) {
			t.Errorf("cut after %q: %v, want an error that does not say that the lease is lost", cut, err)
		}
		<-sprung
		if err := tx.Commit(); err == nil {
			t.Errorf("cut after %q: committed afterwards", cut)
		}
		mustRelease(t, plain, held) // whatever the server still does of that transaction
		next, _ := take(t, plain, claimOf("cut", "b"), time.Minute, true)
		eventually(t, "the next holder", 10*time.Second, func() bool {
			return plain.Renew(t.Context(), []driver.Claim{next}, time.Minute)[0].State == driver.Held
		})
		var n int
		if err := d.plain.QueryRow("SELECT COUNT(*) FROM work").Scan(&n); err != nil || n != want {
			t.Errorf("cut after %q: %d rows were written, %v, want %d", cut, n, err, want)
		}
		mustRelease(t, plain, next)
	}
}
