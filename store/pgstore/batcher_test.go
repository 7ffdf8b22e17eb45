package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

func acquiring(r driver.Request) *operation { return &operation{claim: r.Claim, ttl: r.TTL} }

func send(t *testing.T, s *Store, all ...*operation) {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.batcher.sendLocks(t.Context(), conn, all); err != nil {
		t.Fatal(err)
	}
}

// One statement serves the operations that no other claim is in the way of, waits for
// no row, and leaves the others as they were.
func TestMerged(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	mine, locked, used := hold(t, s, writer("mine")), hold(t, s, writer("locked")), hold(t, s, writer("used"))
	held, wanted := hold(t, s, writer("held")), hold(t, s, writer("wanted"))
	waiter := join(t, s, writer("wanted"))
	stay(t, s)
	reader := writer("read")
	reader.Weight = 1
	hold(t, s, reader)
	old := hold(t, s, writer("free"))
	release(t, s, old)

	tx := begin(t, s, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `SELECT FROM baton_lock WHERE k = 'locked' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	depends := begin(t, s, pgx.ReadCommitted)
	if err := s.InTx(t.Context(), depends, leased(used)); err != nil {
		t.Fatal(err)
	}
	free, fresh, twice := writer("free"), writer("new"), writer("twice")
	served := []*operation{{claim: mine}, acquiring(free), acquiring(fresh), acquiring(twice), acquiring(writer("mine"))}
	left := []*operation{
		{claim: locked},
		{claim: used},
		{claim: wanted},
		{claim: writer("held").Claim},
		{claim: writer("unknown").Claim},
		acquiring(writer("locked")), acquiring(writer("held")), acquiring(writer("wanted")), acquiring(writer("read")), acquiring(writer("twice")),
	}
	send(t, s, append(served, left...)...)
	for _, o := range served {
		if !o.served || o.ttl > 0 && o.grant.Token <= old.Ticket {
			t.Errorf("%q: served %v, token %d", o.claim.Key, o.served, o.grant.Token)
		}
	}
	for _, o := range left {
		if o.served {
			t.Errorf("%q was served", o.claim.Key)
		}
	}
	mustBe(t, s, mine, driver.Lost)
	for _, o := range served[1:] {
		o.claim.Ticket = o.grant.Token
		mustBe(t, s, o.claim, driver.Held)
	}
	for _, c := range []driver.Claim{used, held, wanted} {
		mustBe(t, s, c, driver.Held)
	}
	mustBe(t, s, waiter, driver.Waiting)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustBe(t, s, locked, driver.Held)
}

// On one connection everything but the first is merged, whatever the mix.
func TestMergedTraffic(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	server := testserver.Postgres(t) // its own, because commits are counted
	s := openOn(t, newPool(t, server.URL("postgres"), func(c *pgxpool.Config) { c.MaxConns = 1 }))
	commits := func() (n int64) {
		if err := s.pool.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text::bigint`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const clients, rounds = 32, 20
	before := commits()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			last := int64(0)
			for range rounds {
				r := writer(fmt.Sprint("k", i))
				g, err := s.Acquire(t.Context(), r)
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if g.Token <= last {
					t.Errorf("token %d after %d", g.Token, last)
				}
				last = g.Token
				if err := s.Release(t.Context(), with(r, g)); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if n := commits() - before; n > clients*rounds {
		t.Errorf("%d commits for %d pairs", n, clients*rounds)
	}
}

// inLine makes a request wait for a row that was locked by hand, on the only
// connection, and n more wait behind it until free is called.
func inLine(t *testing.T, s, plain *Store, ctx context.Context, n int) (all []driver.Request, errs []chan error, free func()) {
	t.Helper()
	for i := range n + 1 {
		r := writer(fmt.Sprint("line", i))
		release(t, s, hold(t, s, r))
		r.ID = driver.NewID()
		all, errs = append(all, r), append(errs, make(chan error, 1))
	}
	tx := begin(t, plain, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `SELECT FROM baton_lock WHERE k = 'line0' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for i, r := range all {
		ctx := ctx
		if i == 0 {
			ctx = t.Context()
		}
		go func() {
			_, err := s.Acquire(ctx, r)
			errs[i] <- err
		}()
		if i == 0 {
			awaitBlocked(t, plain, 1)
		}
		eventually(t, "a position", 20*time.Second, func() bool { return s.batcher.many.Waiting() == i })
	}
	return all, errs, func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// oneConnection is a store on a pool of one, through a proxy, and another.
func oneConnection(t *testing.T) (s, plain *Store, proxy *faultproxy.Proxy) {
	t.Helper()
	server, url := database(t)
	proxy = faultproxy.New(t, server.Addr)
	pool := newPool(t, strings.Replace(url, server.Addr, proxy.Addr, 1), func(c *pgxpool.Config) { c.MaxConns = 1 })
	return openOn(t, pool), openAt(t, url), proxy
}

// A caller that gives up before anything was sent has nothing to clean up.
func TestMergedCallerLeavesTheQueue(t *testing.T) {
	t.Parallel()
	s, plain, _ := oneConnection(t)
	ctx, cancel := context.WithCancel(t.Context())
	all, errs, free := inLine(t, s, plain, ctx, 3)
	cancel()
	for _, err := range errs[1:] {
		if err := <-err; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("left: %v", err)
		}
	}
	free()
	if err := <-errs[0]; err != nil {
		t.Errorf("the first: %v", err)
	}
	for _, r := range all[1:] {
		hold(t, plain, writer(r.Key))
	}
}

// The answer to all of them is lost after its effect: asking again finds it.
func TestMergedAnswerCut(t *testing.T) {
	t.Parallel()
	s, plain, proxy := oneConnection(t)
	all, errs, free := inLine(t, s, plain, t.Context(), 3)
	sprung := proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte(all[2].ID)) })
	free()
	if err := <-errs[0]; err != nil {
		t.Fatal(err)
	}
	<-sprung
	for i, r := range all[1:] {
		if err := <-errs[i+1]; !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("cut: %v, want driver.ErrUnknown", err)
		}
		mustRefuse(t, plain, r.Key)
		r.Retry = true
		release(t, s, hold(t, s, r))
	}
}

// The server falls silent when all was sent: each caller gives up when its context
// ends, not knowing, and the connection is given up with the last.
func TestMergedSilence(t *testing.T) {
	t.Parallel()
	s, plain, proxy := oneConnection(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, errs, free := inLine(t, s, plain, ctx, 3)
	proxy.Swallow(faultproxy.ToClient)
	free()
	cut, cancelFirst := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancelFirst()
	cancel()
	for _, err := range errs[1:] {
		select {
		case err := <-err:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("silence: %v", err)
			}
		case <-cut.Done():
			t.Fatal("it waits for a server that is silent")
		}
	}
	proxy.Heal()
	<-errs[0] // whatever became of it
	hold(t, s, writer("another"))
}

// Close refuses the operations that wait.
func TestMergedClose(t *testing.T) {
	t.Parallel()
	s, plain, _ := oneConnection(t)
	_, errs, free := inLine(t, s, plain, t.Context(), 3)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, err := range errs[1:] {
		if err := <-err; !errors.Is(err, driver.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
	free()
	<-errs[0] // it was sent before
}
