package drivertest

import (
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
)

// ClosedClient checks that a store says at once when the program has closed its client:
// no request can succeed, and callers must not try again.
func ClosedClient(t T, l driver.Locks, closed func()) {
	t.Helper()
	claim := func(key string) driver.Claim {
		return driver.Claim{Key: key, ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole}
	}
	held, waits := claim("k"), claim("k")
	for _, c := range []*driver.Claim{&held, &waits} {
		g, err := l.Acquire(t.Context(), driver.Request{Claim: *c, TTL: time.Minute, Queue: l.Traits().FIFO && c == &waits})
		if err != nil {
			t.Fatalf("acquire: %v", err)
		}
		c.Ticket = g.Ticket
	}
	closed()
	began := time.Now()
	_, err := l.Acquire(t.Context(), driver.Request{Claim: claim("other"), TTL: time.Minute})
	for what, err := range map[string]error{
		"acquire":         err,
		"release":         l.Release(t.Context(), held),
		"renew a holder":  l.Renew(t.Context(), []driver.Claim{held}, time.Minute)[0].Err,
		"renew a waiter":  l.Renew(t.Context(), []driver.Claim{waits}, time.Minute)[0].Err,
		"release a claim": l.Release(t.Context(), waits),
	} {
		if !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s, after the client was closed: %v, want driver.ErrClosed", what, err)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("that took %v", took)
	}
}
