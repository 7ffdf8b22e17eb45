package pgstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
)

func begin(t *testing.T, s *Store, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := s.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// holders are the rows that a lease may have.
func holders(t *testing.T, s *Store) map[string]driver.Claim {
	first := hold(t, s, writer("queue"))
	next := join(t, s, writer("queue"))
	release(t, s, first)
	mustBe(t, s, next, driver.Held)
	reader := writer("reader")
	reader.Weight = 1
	down := hold(t, s, writer("downgraded"))
	if _, err := s.Downgrade(t.Context(), down, time.Minute); err != nil {
		t.Fatal(err)
	}
	return map[string]driver.Claim{
		"fast": hold(t, s, writer("fast")), "queue": next, "reader": hold(t, s, reader), "downgraded": down,
	}
}

// While a transaction depends on a lease, no other claim is granted the lock: not when
// the lease expires, is released or is broken. Renewals, refusals and new positions do
// not wait for the transaction.
func TestInTx(t *testing.T) {
	t.Parallel()
	ends := map[string]func(t *testing.T, s *Store, c driver.Claim){
		"expired": func(t *testing.T, s *Store, c driver.Claim) {
			s.Renew(t.Context(), []driver.Claim{c}, 100*time.Millisecond)
			eventually(t, "the end", 10*time.Second, func() bool {
				info, err := s.Inspect(t.Context(), c.Key)
				return err == nil && len(info.Holders) == 0
			})
		},
		"released": func(t *testing.T, s *Store, c driver.Claim) { release(t, s, c) },
		"broken": func(t *testing.T, s *Store, c driver.Claim) {
			if n, err := s.Break(t.Context(), c.Key); err != nil || n != 1 {
				t.Errorf("break %q: %d holders, %v", c.Key, n, err)
			}
		},
	}
	ends["released directly"] = ends["released"]
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := database(t)
			s, other := openAt(t, url), openAt(t, url)
			if name == "released directly" {
				s = openDirect(t, url)
			}
			exec(t, s, `CREATE TABLE work (what text)`)
			for kind, c := range holders(t, s) {
				tx := begin(t, s, pgx.ReadCommitted)
				if err := s.InTx(t.Context(), tx, leased(c)); err != nil {
					t.Fatalf("%s: %v", kind, err)
				}
				if _, err := tx.Exec(t.Context(), `INSERT INTO work VALUES ($1)`, kind); err != nil {
					t.Fatal(err)
				}
				mustBe(t, s, c, driver.Held)
				mustRefuse(t, other, c.Key)
				waiter := join(t, other, writer(c.Key))

				end(t, s, c)
				mustBe(t, s, c, driver.Lost)
				mustRefuse(t, other, c.Key)
				mustBe(t, other, waiter, driver.Waiting)
				if err := tx.Commit(t.Context()); err != nil {
					t.Errorf("%s: commit: %v", kind, err)
				}
				mustBe(t, other, waiter, driver.Held)
				tx = begin(t, s, pgx.ReadCommitted)
				if err := s.InTx(t.Context(), tx, leased(c)); !errors.Is(err, driver.ErrLost) {
					t.Errorf("%s: a lease that has ended: %v, want driver.ErrLost", kind, err)
				}
				tx.Rollback(t.Context())
				release(t, other, waiter)
			}
		})
	}
}

// A snapshot that is older than the lease's last renewal is noticed; one of
// another holder's time never passes for the present.
func TestInTxInASnapshot(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, other := openAt(t, url), openAt(t, url)
	for kind, c := range holders(t, s) {
		tx := begin(t, s, pgx.Serializable)
		if err := s.InTx(t.Context(), tx, leased(c)); err != nil {
			t.Errorf("%s, first statement: %v", kind, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Errorf("%s: commit: %v", kind, err)
		}

		tx = begin(t, s, pgx.RepeatableRead)
		if _, err := tx.Exec(t.Context(), `SELECT count(*) FROM baton_lock`); err != nil {
			t.Fatal(err)
		}
		release(t, s, c)
		if kind != "downgraded" && kind != "reader" {
			hold(t, other, writer(c.Key))
		}
		err := s.InTx(t.Context(), tx, leased(c))
		if e, ok := errors.AsType[*pgconn.PgError](err); !errors.Is(err, driver.ErrLost) && (!ok || e.Code != "40001") {
			t.Errorf("%s, released after the snapshot: %v, want an error", kind, err)
		}
		tx.Rollback(t.Context())
	}
}

// A lease is not moved to another process while a transaction depends on it.
func TestMoveWaitsForTransactions(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	for kind, c := range holders(t, s) {
		tx := begin(t, s, pgx.ReadCommitted)
		if err := s.InTx(t.Context(), tx, leased(c)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := s.Move(context.Background(), c, driver.NewID(), "owner", time.Minute)
			done <- err
		}()
		awaitBlocked(t, s, 1)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		tx = begin(t, s, pgx.ReadCommitted)
		if err := s.InTx(t.Context(), tx, leased(c)); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: by the old ID: %v, want driver.ErrLost", kind, err)
		}
		tx.Rollback(t.Context())
	}
}

// A plan for the release: the lease ends in the middle of InTx itself.
func TestInTxWaitsForARelease(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	c := hold(t, s, writer("k"))
	releasing := begin(t, s, pgx.ReadCommitted)
	if _, err := releasing.Exec(t.Context(), releaseSQL, []byte(c.Key), c.ID, c.Ticket); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, s, pgx.ReadCommitted)
	done := make(chan error, 1)
	go func() { done <- s.InTx(context.Background(), tx, leased(c)) }()
	awaitBlocked(t, s, 1)
	if err := releasing.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, driver.ErrLost) {
		t.Errorf("released meanwhile: %v, want driver.ErrLost", err)
	}
}

func TestInSQLTx(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	for kind, c := range holders(t, s) {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.InSQLTx(t.Context(), tx, leased(c)); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		release(t, s, c)
		mustRefuse(t, s, c.Key)
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		hold(t, s, writer(c.Key))
	}
}

// awaitBlocked waits until n wait for rows in this database.
func awaitBlocked(t *testing.T, s *Store, n int) {
	t.Helper()
	eventually(t, "statements that wait for a row", 20*time.Second, func() bool {
		var blocked int
		err := s.pool.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&blocked)
		return err == nil && blocked >= n
	})
}

// The answer to InTx, or to the commit, is lost. Without the first nothing is
// committed; the second leaves what was written, once. Neither holds the lock's
// row any longer than its connection.
func TestInTxAnswerCut(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	plain, s := openAt(t, url), openAt(t, strings.Replace(url, server.Addr, proxy.Addr, 1))
	exec(t, plain, `CREATE TABLE work (what text)`)
	done := func() (n int) {
		t.Helper()
		if err := plain.pool.QueryRow(t.Context(), `SELECT count(*) FROM work`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for want, cut := range []string{"FOR KEY SHARE", "commit"} {
		c := hold(t, plain, writer("k"))
		tx := begin(t, s, pgx.ReadCommitted)
		if _, err := tx.Exec(t.Context(), `INSERT INTO work VALUES ('once')`); err != nil {
			t.Fatal(err)
		}
		sprung := proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte(cut)) })
		err := s.InTx(t.Context(), tx, leased(c))
		if cut == "commit" && err == nil {
			err = tx.Commit(t.Context())
		}
		if err == nil || errors.Is(err, driver.ErrLost) {
			t.Errorf("cut after %q: %v, want an error that does not say that the lease is lost", cut, err)
		}
		<-sprung
		if err := tx.Commit(t.Context()); err == nil {
			t.Errorf("cut after %q: committed afterwards", cut)
		}
		mustBe(t, plain, c, driver.Held)
		release(t, plain, c) // whatever the server still does of that transaction
		next := writer("k")
		eventually(t, "the next holder", 10*time.Second, func() bool {
			g, err := plain.Acquire(t.Context(), next)
			next.Ticket = g.Ticket
			return err == nil
		})
		if n := done(); n != want {
			t.Errorf("cut after %q: %d rows were written, want %d", cut, n, want)
		}
		release(t, plain, next.Claim)
	}
}
