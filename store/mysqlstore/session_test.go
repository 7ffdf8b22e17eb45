package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
	"github.com/batonhq/baton/internal/testserver"
)

// lockAll makes the store do a bit of everything.
func lockAll(t *testing.T, s *Store, prefix string) {
	t.Helper()
	var held []driver.Claim
	for i := range 600 { // more than one statement names, with keys as long as can be
		key := fmt.Sprintf("%s-%03d-", prefix, i)
		if i%10 == 0 {
			key += strings.Repeat("x", check.MaxKey-len(key))
		}
		c, _ := take(t, s, claimOf(key, "o"), 10*time.Minute, false)
		held = append(held, c)
	}
	w, _ := take(t, s, claimOf(held[0].Key, "w"), 10*time.Minute, true)
	for i, r := range s.Renew(t.Context(), append(held, w), 10*time.Minute) {
		if want := driver.Held; i < len(held) && r.State != want {
			t.Fatalf("%.20s: %+v", held[i].Key, r)
		}
	}
	mustRelease(t, s, held[0])
	r := claimOf(prefix+"r", "r")
	r.Weight = 1
	r, _ = take(t, s, r, 10*time.Minute, false)
	mustRelease(t, s, r)
	for _, c := range held[1:] {
		if err := s.Release(t.Context(), c); err != nil {
			t.Fatalf("release %.20s: %v", c.Key, err)
		}
	}
}

// A server whose defaults are as hostile as they get, on fresh connections
// and on those that replace them.
func TestHostileDefaults(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	d := newDatabase(t, testserver.MariaDB(t, "--transaction-isolation=SERIALIZABLE", "--autocommit=0", "--sql-mode="+hardModes(t),
		"--max-allowed-packet=1M", "--default-time-zone=-11:00", "--innodb-lock-wait-timeout=1", "--wait-timeout=600",
		"--innodb-flush-log-at-trx-commit=0", "--character-set-server=latin1", "--innodb-rollback-on-timeout=1"))
	s := d.open(t)
	lockAll(t, s, "fresh")
	d.killConnections(t)
	awaitReachable(t, s)
	lockAll(t, s, "again")
}

// The server ended idle connections. The next request must not notice.
func TestIdleConnectionsThatEnded(t *testing.T) {
	t.Parallel()
	d := shared(t)
	for _, s := range []*Store{d.open(t), d.wrap(t, d.config())} {
		for i := range 5 {
			h, _ := take(t, s, claimOf("k", "h"), time.Minute, true)
			w, _ := take(t, s, claimOf("k", "w"), time.Minute, true)
			d.killConnections(t)
			eventually(t, "no connection is left", 10*time.Second, func() bool { return d.connections(t) == 0 })
			if err := s.Release(t.Context(), h); err != nil {
				t.Fatalf("round %d: release: %v", i, err)
			}
			if r := renewOne(t, s, w, time.Minute); r.State == driver.Lost || r.Err != nil && i == 0 {
				t.Fatalf("round %d: renew: %+v", i, r)
			}
			mustRelease(t, s, w)
		}
	}
}

// connections is how many there are to the database besides the plain client's.
func (d *database) connections(t *testing.T) (n int) {
	t.Helper()
	if err := d.plain.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE db=? AND id<>CONNECTION_ID()", d.name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Several statements in one request, of which one in the middle fails, leave a
// transaction open. It is undone, and the connection is as before.
func TestFailureInTheMiddleIsUndone(t *testing.T) {
	t.Parallel()
	d := shared(t)
	for i, s := range []*Store{d.open(t), d.wrap(t, d.config())} {
		key := fmt.Sprint("k", i)
		h, _ := take(t, s, claimOf(key, "h"), time.Minute, false)
		d.exec(t, "RENAME TABLE baton_claim TO elsewhere")
		for range 10 {
			_, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf(key, "w"), TTL: time.Minute, Queue: true})
			if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrSchema) {
				t.Fatalf("without a table: %v, want ErrUnavailable and ErrSchema", err)
			}
		}
		var id string
		if err := d.plain.QueryRow("SELECT id FROM baton_lock WHERE k=? FOR UPDATE NOWAIT", key).Scan(&id); err != nil || id != h.ID {
			t.Errorf("the row: %q, %v, want it free and unchanged", id, err)
		}
		d.exec(t, "RENAME TABLE elsewhere TO baton_claim")
		w, _ := take(t, s, claimOf(key, "w"), time.Minute, true)
		mustRelease(t, s, h)
		if r := renewOne(t, s, w, time.Minute); r.State != driver.Held {
			t.Errorf("%+v", r)
		}
		wait := 0
		if err := s.slow.QueryRow("SELECT @@session.wait_timeout").Scan(&wait); err != nil || wait < 100 {
			t.Errorf("a session that was used has wait_timeout %d, %v", wait, err)
		}
	}
}

// A process is stopped between the statements of a transaction and holds the
// key's row. The server ends its connection.
func TestStoppedInTheMiddle(t *testing.T) {
	t.Parallel()
	d := shared(t)
	stopped, s := d.open(t), d.open(t)
	c, _ := take(t, s, claimOf("k", "a"), time.Minute, false)
	ses, err := stopped.session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer ses.close()
	x := &tx{ctx: t.Context(), ses: ses, key: "k"}
	if _, _, err := x.LockKey("k"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "others get at the row", 30*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := s.Release(ctx, c)
		if err != nil && !errors.Is(err, driver.ErrUnavailable) {
			t.Fatalf("release: %v", err)
		}
		return err == nil
	})
}

// Contexts end while an answer is on its way, just before it and just after it. No
// connection is worse for it, and what was done is known or can be undone.
func TestContextsThatEndInTheMidst(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, func(c *Server, _ *options) { c.Connections = 2 })
	h, _ := take(t, s, claimOf("k", "first"), time.Minute, false)
	mustRelease(t, s, h)
	began := time.Now()
	outcomes := make(map[string]int)
	for i := 0; time.Since(began) < sqlstore.Grace+time.Second; i++ { // what is late comes in this time
		c := claimOf("k", fmt.Sprint("h", i))
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(2*time.Millisecond))))
		_, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute})
		cancel()
		switch {
		case err == nil:
			outcomes["held"]++
		case errors.Is(err, driver.ErrUnknown):
			outcomes["unknown"]++
		case errors.Is(err, context.DeadlineExceeded):
			outcomes["too late"]++
		default:
			t.Fatalf("acquire %d: %v", i, err)
		}
		if e := s.Release(t.Context(), c); e != nil && (err == nil || !errors.Is(e, driver.ErrLost)) {
			t.Fatalf("release %d: %v, after %v", i, e, err)
		}
	}
	t.Logf("%v", outcomes)
	if outcomes["held"] == 0 || outcomes["unknown"]+outcomes["too late"] == 0 {
		t.Errorf("contexts ended always or never: %v", outcomes)
	}
}
