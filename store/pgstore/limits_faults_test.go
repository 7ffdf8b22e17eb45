package pgstore

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/faultproxy"
)

// saves finds the request that writes the state of a window of the key, and commits.
func saves(key string) func([]byte) bool {
	return func(request []byte) bool {
		return bytes.Contains(request, []byte(key)) && bytes.Contains(request, []byte("1 "+strconv.FormatInt(1<<51+window(1).Period.Microseconds(), 10)))
	}
}

// An answer that is lost is asked for again by its ID; what certainly did not
// happen is said to be so.
func TestLimitFaults(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	plain := openAt(t, url)
	s := openOn(t, newPool(t, strings.Replace(url, server.Addr, proxy.Addr, 1), likeOpen, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["lock_timeout"] = "1s"
	}))
	left := func(want int64) {
		t.Helper()
		if d := mustTake(t, plain, take(window(10), 0, "key-that-is-cut")); d.Limits[0].Remaining != want {
			t.Errorf("%+v, want %d left", d, want)
		}
	}
	for i, r := range []limits.Request{take(window(10), 1, "key-that-is-cut"), withID(take(window(10), 1, "key-that-is-cut")), take(window(10), 1, "key-that-is-cut", "b")} {
		sprung := proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte("key-that-is-cut")) })
		if _, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("cut while it locks the row: %v, want driver.ErrUnavailable", err)
		}
		<-sprung
		sprung = proxy.CutAfterRequest(saves("key-that-is-cut"))
		if _, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("cut: %v, want driver.ErrUnknown", err)
		}
		<-sprung
		left(int64(9 - i))
		if r.ID != "" {
			if d := mustTake(t, s, r); !d.OK || !d.Repeated {
				t.Errorf("asked again: %+v", d)
			}
		}
	}
	left(7)

	tx := begin(t, plain, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `SELECT FROM baton_limit WHERE key = 'key-that-is-cut' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]limits.Request{"one": take(window(10), 1, "key-that-is-cut"), "two": take(window(10), 1, "key-that-is-cut", "b")} {
		if _, err := s.Take(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s, a row that is locked for longer than lock_timeout: %v", name, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() { _, err := plain.Take(ctx, r); got <- err }()
		awaitBlocked(t, plain, 1)
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("%s, a context that ends while it waits: %v", name, err)
		}
		eventually(t, "the end of the statement", 20*time.Second, func() bool {
			var n int
			err := plain.pool.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
			return err == nil && n == 0
		})
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	left(7)

	slow := openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "300ms" }))
	tx = begin(t, plain, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `SELECT FROM baton_limit WHERE key = 'key-that-is-cut' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Take(t.Context(), take(window(10), 1, "key-that-is-cut")); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("statement_timeout: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	left(7)

	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Take(ctx, take(window(10), 1, "k")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silence: %v", err)
	}
}

// A person locks rows by hand in the other order. Whichever the server makes give way,
// the decision is made.
func TestLimitDeadlockByHand(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, other := openAt(t, url), openAt(t, url)
	r := take(window(5), 1, "a", "b")
	mustTake(t, s, r)
	tx := begin(t, other, pgx.ReadCommitted)
	for _, sql := range []string{`SET LOCAL deadlock_timeout = '20s'`, `SELECT FROM baton_limit WHERE key = 'b' FOR UPDATE`} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan error, 1)
	go func() { _, err := s.Take(context.Background(), r); got <- err }()
	awaitBlocked(t, s, 1)
	_, err := tx.Exec(t.Context(), `SELECT FROM baton_limit WHERE key = 'a' FOR UPDATE`)
	t.Logf("by hand: %v", err)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("the decision: %v", err)
	}
	if d := mustTake(t, s, take(window(5), 0, "a", "b")); d.Limits[0].Remaining != 3 || d.Limits[1].Remaining != 3 {
		t.Errorf("%+v", d)
	}
}

// A process is stopped while it has locked a row: the server throws it out before other
// processes give up waiting. What it was about to write was not written, and when it goes
// on it begins again.
func TestLimitsOfAStoppedProcess(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	s, other := openDirect(t, strings.Replace(url, server.Addr, proxy.Addr, 1)), openDirect(t, url)
	for _, store := range []*Store{s, other} { // so that connections and statements are there
		mustTake(t, store, take(window(9), 1, "k"))
	}
	proxy.Hold(faultproxy.ToClient)
	got := make(chan error, 1)
	go func() {
		_, err := s.Take(context.Background(), take(window(9), 1, "k"))
		got <- err
	}()
	eventually(t, "a transaction that does nothing", 20*time.Second, func() bool {
		var n int
		err := other.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`).Scan(&n)
		return err == nil && n == 1
	})
	if d := mustTake(t, other, take(window(9), 1, "k")); !d.OK || d.Limits[0].Remaining != 6 {
		t.Errorf("another process: %+v", d)
	}
	proxy.Heal()
	if err := <-got; err != nil {
		t.Errorf("when it goes on: %v", err)
	}
	if d := mustTake(t, other, take(window(9), 0, "k")); d.Limits[0].Remaining != 5 {
		t.Errorf("%+v, want 5 left", d)
	}
}

// A connection is dead, and no caller's context ends: the request ends all the same, and
// those that come later for the same key are served on another connection.
func TestLimitsOnADeadConnection(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openOn(t, newPool(t, strings.Replace(url, server.Addr, proxy.Addr, 1)), func(o *options) { o.decide = time.Second })
	mustTake(t, s, take(window(9), 1, "k"))
	proxy.HalfOpen()
	errs := make(chan error, 3)
	for range cap(errs) {
		go func() {
			_, err := s.Take(context.Background(), take(window(9), 1, "k"))
			errs <- err
		}()
	}
	served := 0
	for range cap(errs) {
		switch err := <-errs; {
		case err == nil:
			served++
		case !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded):
			t.Errorf("on a connection that is dead: %v", err)
		}
	}
	if d := mustTake(t, s, take(window(9), 0, "k")); d.Limits[0].Remaining != int64(8-served) {
		t.Errorf("%+v, and %d were allowed", d, served)
	}
}

// The connection ended with its transaction, as when the server found that it did nothing
// for too long, and no other one can be had.
func TestLimitsWithoutConnection(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	conn, err := s.connect(t.Context(), s.pool)
	if err != nil {
		t.Fatal(err)
	}
	rows := &limitRows{s, conn}
	if err := conn.Conn().Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 { // several requests of one batch
		if _, err := rows.Read(ctx, []string{"k"}); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("read: %v, want driver.ErrUnavailable", err)
		}
		if _, err := rows.Change(ctx, []string{"k"}, nil); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("change: %v, want driver.ErrUnavailable", err)
		}
	}
	rows.Close()
	if _, err := rows.Read(t.Context(), []string{"k"}); err != nil {
		t.Errorf("when one can be had again: %v", err)
	}
	rows.Close()
}
