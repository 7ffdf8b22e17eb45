//go:build unix

package pgstore

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// The answer to each kind of request is lost after its effect: the error says
// that it may have happened, and asking again finds it.
func TestAnswerCutAfterTheEffect(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	plain := openAt(t, url)
	s := openAt(t, strings.Replace(url, server.Addr, proxy.Addr, 1))
	cut := func(what, id string, act func() error) {
		t.Helper()
		sprung := proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte(id)) })
		if err := act(); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s: %v, want driver.ErrUnknown", what, err)
		}
		<-sprung
	}
	r := writer("k")
	cut("acquire", r.ID, func() error { _, err := s.Acquire(t.Context(), r); return err })
	mustRefuse(t, plain, "k")
	r.Retry = true
	c := hold(t, s, r)
	cut("renew", r.ID, func() error { return s.Renew(t.Context(), []driver.Claim{c}, time.Minute)[0].Err })
	mustBe(t, s, c, driver.Held)
	cut("release", r.ID, func() error { return s.Release(t.Context(), c) })
	if err := s.Release(t.Context(), c); !errors.Is(err, driver.ErrLost) {
		t.Errorf("released again: %v", err)
	}
	hold(t, plain, writer("k"))
	w := queued(writer("k"))
	cut("join", w.ID, func() error { _, err := s.Acquire(t.Context(), w); return err })
	w.Retry = true
	join(t, s, w)
	if info, err := plain.Inspect(t.Context(), "k"); err != nil || len(info.Waiters) != 1 {
		t.Errorf("%+v, %v, want one position", info, err)
	}
}

// The server answers no more: every method obeys its context.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openAt(t, strings.Replace(url, server.Addr, proxy.Addr, 1))
	c := hold(t, s, writer("k"))
	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)
	for name, act := range map[string]func(ctx context.Context) error{
		"acquire":   func(ctx context.Context) error { _, err := s.Acquire(ctx, writer("k2")); return err },
		"renew":     func(ctx context.Context) error { return s.Renew(ctx, []driver.Claim{c}, time.Minute)[0].Err },
		"release":   func(ctx context.Context) error { return s.Release(ctx, c) },
		"downgrade": func(ctx context.Context) error { _, err := s.Downgrade(ctx, c, time.Minute); return err },
		"inspect":   func(ctx context.Context) error { _, err := s.Inspect(ctx, "k"); return err },
		"break":     func(ctx context.Context) error { _, err := s.Break(ctx, "k"); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		err := act(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("%s took %v", name, d)
		}
	}
}

// A program that locks rows by hand holds up requests for that key, but not
// for ever, and says so; other keys are served on the connections that are
// left.
func TestRowLockedByHand(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	_, name, _ := strings.Cut(strings.TrimSuffix(url, "?sslmode=disable"), server.Addr+"/")
	s, err := Open(t.Context(), Server{Addrs: []string{server.Addr}, User: "postgres", Database: name}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	other := openAt(t, url)
	c := hold(t, s, writer("k"))
	tx := begin(t, other, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `SELECT FROM baton_lock WHERE k = 'k' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := s.Acquire(context.Background(), writer("k"))
		got <- err
	}()
	awaitBlocked(t, other, 1)
	release(t, s, hold(t, s, writer("another")))
	if err := <-got; !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("a row that another session has locked: %v, want driver.ErrUnavailable", err)
	}
	answers := s.Renew(t.Context(), []driver.Claim{c, hold(t, s, writer("second"))}, time.Minute)
	if answers[0].State != driver.Unknown || answers[1].State != driver.Held {
		t.Errorf("a batch with a locked row: %+v", answers)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustBe(t, s, c, driver.Held)
}

// The connection that listens is cut while there is a waiter, and cannot be made again:
// the waiter hears of its grant all the same, by the poll.
func TestDeafWaiterIsServed(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	s, other := openAt(t, strings.Replace(url, server.Addr, proxy.Addr, 1)), openAt(t, url)
	holder := hold(t, other, writer("k"))
	r := writer("k")
	woken := make(chan driver.Hint, 100)
	stop := s.Watch(r.Claim, func(h driver.Hint) {
		select {
		case woken <- h:
		default:
		}
	})
	defer stop()
	waiter := join(t, s, r)
	eventually(t, "a connection that listens", 20*time.Second, s.hints.listening.Load)
	exec(t, other, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid()`)
	release(t, other, holder)
	for deadline := time.After(30 * time.Second); ; {
		select {
		case h := <-woken:
			if h.Granted && h.Grant.Token == waiter.Ticket {
				return
			}
			if state(t, s, waiter) == driver.Held {
				return // it was told to look again, and did
			}
		case <-deadline:
			t.Fatal("the waiter never heard of its grant")
		}
	}
}

// The answer is about to come when the caller's context ends: the store waits for it,
// because a release over another connection could be served first and find nothing.
func TestContextEndsBeforeTheRequestArrives(t *testing.T) {
	t.Parallel()
	server, url := database(t)
	proxy := faultproxy.New(t, server.Addr)
	s := openAt(t, strings.Replace(url, server.Addr, proxy.Addr, 1), func(o *options) { o.patience = time.Minute })
	plain := openAt(t, url)
	release(t, s, hold(t, s, writer("k")))
	proxy.Hold(faultproxy.ToServer)
	ctx, cancel := context.WithCancel(t.Context())
	r := writer("k")
	released := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, r)
		released <- errors.Join(err, s.Release(context.Background(), r.Claim))
	}()
	eventually(t, "a request under way", 20*time.Second, func() bool { return s.pool.Stat().AcquiredConns() > 0 })
	cancel()
	proxy.Heal()
	if err := <-released; err != nil {
		t.Error(err)
	}
	hold(t, plain, writer("k")) // at once
}

// A caller that gives up while the server is kept from answering, and releases, leaves
// nothing behind either.
func TestContextEndsWhileTheServerWaits(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s, plain := openAt(t, url, func(o *options) { o.patience = time.Millisecond }), openAt(t, url)
	release(t, s, hold(t, s, writer("k")))
	tx := begin(t, plain, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `SELECT FROM baton_lock WHERE k = 'k' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := writer("k")
	gaveUp := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, r)
		gaveUp <- err
	}()
	awaitBlocked(t, plain, 1)
	cancel()
	if err := <-gaveUp; !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	released := make(chan error, 1)
	go func() { released <- s.Release(context.Background(), r.Claim) }()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil && !errors.Is(err, driver.ErrLost) {
		t.Errorf("release: %v", err)
	}
	hold(t, plain, writer("k"))
}

// A server's process that is stuck does not see that its connection was given up.
// Another connection takes its place in the pool at once.
func TestStuckConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 1 }))
	var pid int
	if err := s.pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Acquire(ctx, writer("k")); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("a server that is stuck: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second) // it would take 15
	defer cancel()
	if _, err := s.Acquire(ctx, writer("k")); err != nil {
		t.Errorf("the next: %v", err)
	}
}

// A fail-over behind one address: the old server lives on and only reads, and the open
// connections still lead to it.
func TestTheAddressLeadsToAnotherServer(t *testing.T) {
	testserver.NeedPostgres(t)
	t.Parallel()
	old, successor := testserver.Postgres(t), testserver.SharedPostgres(t)
	name := successor.Database(t)
	must := func(sql string) {
		t.Helper()
		if _, err := old.Query("postgres", sql); err != nil {
			t.Fatal(err)
		}
	}
	must("CREATE DATABASE " + name)
	proxy := faultproxy.New(t, old.Addr)
	at := Server{Addrs: []string{successor.Addr}, Database: name, User: "postgres"}
	open := func() *Store {
		s, err := Open(t.Context(), at, Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	open() // makes the tables
	at.Addrs[0] = proxy.Addr
	drivertest.Elsewhere(t, open(), func() {
		proxy.Retarget(successor.Addr)
		must("ALTER SYSTEM SET default_transaction_read_only = on")
		must("SELECT pg_reload_conf()")
	})
}

func TestClosedPool(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	pool := newPool(t, url)
	drivertest.ClosedClient(t, openOn(t, pool), pool.Close)
}

// A server that stays read-only is not asked for a connection with each request.
func TestReadOnlyServerKeepsConnections(t *testing.T) {
	t.Parallel()
	server := testserver.SharedPostgres(t)
	name := server.Database(t)
	s, err := Open(t.Context(), Server{Addrs: []string{server.Addr}, User: "postgres", Database: name}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	query := func(sql string) string {
		t.Helper()
		out, err := server.Query("postgres", sql)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	query(`ALTER DATABASE ` + name + ` SET default_transaction_read_only = on`)
	query(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '` + name + `'`)
	sessions := func() int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(query(`SELECT sessions FROM pg_stat_database WHERE datname = '` + name + `'`)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for { // the connections before have ended
		if _, err := s.Acquire(t.Context(), writer("k")); isCode(err, readOnly) {
			break
		}
	}
	began, before := time.Now(), sessions()
	const requests = 60
	for range requests {
		if _, err := s.Acquire(t.Context(), writer("k")); !errors.Is(err, driver.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	made, took := sessions()-before, time.Since(began)
	if most := 10 * int(1+took/time.Second); made > most && most < requests {
		t.Errorf("%d connections for %d requests within %v", made, requests, took)
	}
}
