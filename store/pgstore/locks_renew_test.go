package pgstore

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
)

// A program that has taken all connections of its pool keeps its leases.
func TestExhaustedPoolRenews(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	pool := newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 2 })
	if err := Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	lease := hold(t, s, writer("k"))
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Release)
	}
	if got := state(t, s, lease); got != driver.Held {
		t.Errorf("with the pool exhausted a lease is %v, want held", got)
	}
}
