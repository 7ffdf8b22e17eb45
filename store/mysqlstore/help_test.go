package mysqlstore

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
)

// earlyByChance is what decides outside of tests.
var earlyByChance = standard.early

// What tests count must not be chance.
func init() { standard.early = func() bool { return false } }

// tb makes a drivertest.T what a server wants.
type tb struct{ drivertest.T }

func (t tb) Skipf(format string, args ...any) { t.Fatalf(format, args...) }

// databasesOf remembers where a store's locks are.
type databasesOf struct {
	mu sync.Mutex
	m  map[driver.Locks]*database
}

var databases = &databasesOf{m: map[driver.Locks]*database{}}

func (d *databasesOf) put(l driver.Locks, is *database) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.m[l] = is
}

func (d *databasesOf) of(l driver.Locks) *database {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.m[l]
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

// numbers is a table with a column seq, from 1 to n.
func numbers(n int) string {
	const digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	seq, from := "1", ""
	for i, unit := 0, 1; unit < n; i, unit = i+1, 10*unit {
		seq += fmt.Sprintf("+%d*t%d.d", unit, i)
		from += fmt.Sprintf(",%s t%d", digits, i)
	}
	return fmt.Sprintf("(SELECT %s seq FROM %s) numbers WHERE seq<=%d", seq, from[1:], n)
}

// hardModes are values of sql_mode that change the meaning of a statement.
func hardModes(t testserver.TB) string {
	t.Helper()
	modes := "ANSI,NO_BACKSLASH_ESCAPES"
	if !testserver.IsMySQL(t) {
		modes += ",SIMULTANEOUS_ASSIGNMENT"
	}
	return modes
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

// stay keeps all claims alive, however slow the machine is.
func (d *database) stay(t testing.TB) {
	t.Helper()
	d.exec(t, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6)+INTERVAL 1 HOUR")
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
