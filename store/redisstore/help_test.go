package redisstore

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

// tb makes a drivertest.T what a server wants.
type tb struct{ drivertest.T }

func (t tb) Skipf(format string, args ...any) { t.Fatalf(format, args...) }

// serverOf remembers which server a store was opened on.
type serverOf struct {
	mu sync.Mutex
	m  map[driver.Locks]*testserver.RedisServer
}

func newServerOf() *serverOf { return &serverOf{m: map[driver.Locks]*testserver.RedisServer{}} }

func (s *serverOf) put(l driver.Locks, server *testserver.RedisServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[l] = server
}

func (s *serverOf) of(l driver.Locks) *testserver.RedisServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[l]
}

// eventually polls until ok says so.
func eventually(t drivertest.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}

// awaitReachable returns when s has a working connection again.
func awaitReachable(t drivertest.T, s *Store) {
	t.Helper()
	eventually(t, "the server answers again", 10*time.Second, func() bool {
		_, err := s.Inspect(t.Context(), "reachable?")
		return err == nil
	})
}

// claimOf makes an exclusive claim.
func claimOf(key, owner string) driver.Claim {
	return driver.Claim{Key: key, ID: driver.NewID(), Owner: owner, Weight: driver.Whole, Capacity: driver.Whole}
}

// take acquires and returns the claim with its ticket.
func take(t testing.TB, s *Store, c driver.Claim, ttl time.Duration, queue bool) (driver.Claim, driver.Grant) {
	t.Helper()
	g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: ttl, Queue: queue})
	if err != nil {
		t.Fatalf("acquire %s for %s: %v", c.Key, c.Owner, err)
	}
	c.Ticket = g.Ticket
	return c, g
}

func mustRelease(t testing.TB, s *Store, c driver.Claim) {
	t.Helper()
	if err := s.Release(t.Context(), c); err != nil {
		t.Fatalf("release %s by %s: %v", c.Key, c.Owner, err)
	}
}

// renewOne renews one claim.
func renewOne(t testing.TB, s *Store, c driver.Claim, ttl time.Duration) driver.Renewal {
	t.Helper()
	r := s.Renew(t.Context(), []driver.Claim{c}, ttl)
	if len(r) != 1 {
		t.Fatalf("renewing one claim gave %d answers", len(r))
	}
	return r[0]
}

func splitLines(s string) []string { return strings.Split(s, "\n") }
