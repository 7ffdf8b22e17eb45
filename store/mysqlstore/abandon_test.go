package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
)

// firstThrough makes a store on a pool whose first connection goes through a
// proxy, and the others do not.
func firstThrough(t *testing.T, d *database, grace time.Duration) (*Store, *faultproxy.Proxy) {
	t.Helper()
	proxy := faultproxy.New(t, d.server.Addr)
	var dialed atomic.Int64
	c := d.config()
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dialed.Add(1) == 1 {
			addr = proxy.Addr
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	db := pool(t, c)
	opts := standard
	opts.grace = grace
	s, err := build(t.Context(), &Store{single: db, slow: db, opts: opts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if n := dialed.Load(); n != 1 {
		t.Fatalf("opening took %d connections, not one", n)
	}
	return s, proxy
}

// A caller gives up while the server has yet to get at its request, and the
// release overtakes that on another connection. Nothing stays behind, whether
// the request ends while the store waits for it or after it has given up.
func TestReleaseOvertakesAnAbandonedAcquire(t *testing.T) {
	t.Parallel()
	for name, grace := range map[string]time.Duration{"while it waits": time.Hour, "later": time.Millisecond} {
		for _, kind := range []string{"new", "known", "shared"} {
			t.Run(strings.ReplaceAll(name+" "+kind, " ", "_"), func(t *testing.T) {
				t.Parallel()
				d := shared(t)
				s, proxy := firstThrough(t, d, grace)
				c := claimOf("k", "a")
				switch kind {
				case "known":
					before, _ := take(t, s, claimOf("k", "before"), time.Minute, false)
					mustRelease(t, s, before)
				case "shared":
					c.Weight = 1
				}
				proxy.Hold(faultproxy.ToServer)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				_, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Hour})
				if !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("acquire: %v, want ErrUnknown and the context's error", err)
				}
				if err := s.Release(t.Context(), c); !errors.Is(err, driver.ErrLost) {
					t.Errorf("release: %v, want ErrLost", err)
				}
				proxy.Heal()
				if kind == "known" { // else the server was sent nothing that grants
					eventually(t, "the request takes effect", 30*time.Second, func() bool {
						var id string
						return d.plain.QueryRow("SELECT id FROM baton_lock WHERE k='k'").Scan(&id) == nil && id == c.ID
					})
				}
				eventually(t, "the lock is free", 30*time.Second, func() bool {
					info, err := s.Inspect(t.Context(), "k")
					return err == nil && len(info.Holders) == 0
				})
			})
		}
	}
}

// Closing waits for what was left behind, and repeats the release.
func TestCloseCleansUpBehindAnAbandonedAcquire(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s, proxy := firstThrough(t, d, time.Hour)
	c := claimOf("k", "a")
	proxy.Hold(faultproxy.ToClient) // the server executes it
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Hour}); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("acquire: %v, want ErrUnknown", err)
	}
	// The insertion of the row may not have been sent when the caller left.
	if err := s.Release(t.Context(), c); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Errorf("release: %v", err)
	}
	proxy.Heal()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	info, err := d.open(t).Inspect(t.Context(), "k")
	if err != nil || len(info.Holders) > 0 {
		t.Errorf("left behind: %v, %v", fmt.Sprint(info), err)
	}
}
