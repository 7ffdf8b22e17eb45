package pgstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// database is a fresh database on the shared server.
func database(t *testing.T) (server *testserver.PostgresServer, url string) {
	t.Helper()
	server = testserver.SharedPostgres(t)
	return server, server.URL(server.Database(t))
}

func writer(key string) driver.Request {
	return driver.Request{
		Claim: driver.Claim{Key: key, ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole},
		TTL:   time.Minute,
	}
}

func queued(r driver.Request) driver.Request {
	r.Queue = true
	return r
}

// hold acquires at once.
func hold(t *testing.T, s *Store, r driver.Request) driver.Claim {
	t.Helper()
	g, err := s.Acquire(t.Context(), r)
	if err != nil || g.Waiting {
		t.Fatalf("acquire %q: %+v, %v, want a grant", r.Key, g, err)
	}
	return with(r, g)
}

// join takes a position.
func join(t *testing.T, s *Store, r driver.Request) driver.Claim {
	t.Helper()
	g, err := s.Acquire(t.Context(), queued(r))
	if err != nil || !g.Waiting {
		t.Fatalf("acquire %q: %+v, %v, want a position", r.Key, g, err)
	}
	return with(r, g)
}

func release(t *testing.T, s *Store, c driver.Claim) {
	t.Helper()
	if err := s.Release(t.Context(), c); err != nil {
		t.Fatalf("release %q: %v", c.Key, err)
	}
}

// state renews one claim for a minute.
func state(t *testing.T, s *Store, c driver.Claim) driver.State {
	t.Helper()
	r := s.Renew(t.Context(), []driver.Claim{c}, time.Minute)[0]
	if r.State == driver.Unknown {
		t.Fatalf("renew %q: %v", c.Key, r.Err)
	}
	return r.State
}

func mustBe(t *testing.T, s *Store, c driver.Claim, want driver.State) {
	t.Helper()
	if got := state(t, s, c); got != want {
		t.Errorf("%q is %v, want %v", c.Key, got, want)
	}
}

func mustRefuse(t *testing.T, s *Store, key string) {
	t.Helper()
	if _, err := s.Acquire(t.Context(), writer(key)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("acquire %q: %v, want a refusal", key, err)
	}
}

// stay keeps all claims alive, however slow the machine is.
func stay(t *testing.T, s *Store) {
	t.Helper()
	exec(t, s, `UPDATE baton_claim SET ends = ends + interval '1 hour'`)
}

// exec runs SQL as another program would.
func exec(t *testing.T, s *Store, sql string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// leased is a lease that has not ended, as far as the program knows.
type leased driver.Claim

func (l leased) Pin() (driver.Claim, error) { return driver.Claim(l), nil }

func with(r driver.Request, g driver.Grant) driver.Claim {
	r.Claim.Ticket = g.Ticket
	return r.Claim
}
