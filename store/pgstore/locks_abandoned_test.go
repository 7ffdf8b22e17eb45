package pgstore

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
)

// sending is a connection that tells what is written to it.
type sending struct {
	net.Conn
	tell func([]byte)
}

func (c sending) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.tell(b)
	return n, err
}

// behind is a store whose first connection goes through a proxy, and the others
// do not.
type behind struct {
	*Store
	proxy *faultproxy.Proxy
	other *Store
	wrote atomic.Pointer[func([]byte)]
}

func firstThrough(t *testing.T, change func(*pgxpool.Config), opts ...option) *behind {
	t.Helper()
	server, url := database(t)
	b := &behind{proxy: faultproxy.New(t, server.Addr), other: openAt(t, url)}
	var dialed atomic.Int64
	pool := newPool(t, url, change, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == b.proxy.Addr {
				return nil, errors.New("no request that is delayed on the way can be cancelled")
			}
			if dialed.Add(1) > 1 {
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, network, b.proxy.Addr)
			return sending{conn, func(data []byte) {
				if f := b.wrote.Load(); f != nil {
					(*f)(data)
				}
			}}, err
		}
	})
	b.Store = openOn(t, pool, append([]option{func(o *options) { o.patience, o.sweep = time.Millisecond, time.Hour }}, opts...)...)
	// Statements are prepared, and keys known.
	for _, c := range append(holdAll(t, b.Store, writers("k", "l")...), hold(t, b.Store, writer("m"))) {
		release(t, b.Store, c)
	}
	if n := dialed.Load(); n != 1 {
		t.Fatalf("opening took %d connections, not one", n)
	}
	return b
}

// abandon has act make requests that are held up, and give up when they were sent.
func (b *behind) abandon(t *testing.T, id string, act func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tell := func(data []byte) {
		if bytes.Contains(data, []byte(id)) {
			cancel()
		}
	}
	b.wrote.Store(&tell)
	b.proxy.Hold(faultproxy.ToServer)
	if err := act(ctx); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Fatalf("given up: %v, want driver.ErrUnknown and the context's error", err)
	}
}

// changes counts what was written to a key's row.
func (b *behind) changes(t *testing.T, key string) (version string) {
	t.Helper()
	if err := b.other.pool.QueryRow(t.Context(), `SELECT xmin || ' ' || ends FROM baton_lock WHERE k = $1`, []byte(key)).Scan(&version); err != nil {
		t.Fatal(err)
	}
	return version
}

// arrive lets through what is held up, and returns when it has taken effect.
func (b *behind) arrive(t *testing.T, key string) {
	t.Helper()
	before := b.changes(t, key)
	b.proxy.Heal()
	eventually(t, "the request takes effect", 20*time.Second, func() bool { return b.changes(t, key) != before })
}

func (b *behind) isFree(t *testing.T, key string) bool {
	t.Helper()
	info, err := b.other.Inspect(t.Context(), key)
	return err == nil && len(info.Holders) == 0
}

// A caller gives up while the server has yet to get at its request, and the release
// overtakes that on another connection. What the request then leaves is found.
func TestReleaseOvertakesAnAbandonedAcquire(t *testing.T) {
	t.Parallel()
	plainly := func(*pgxpool.Config) {}
	for name, change := range map[string]func(*pgxpool.Config){"by the function": plainly, "directly": likeOpen} {
		for _, retried := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := firstThrough(t, change)
				r := writer("m")
				r.TTL = time.Hour
				b.abandon(t, r.ID, func(ctx context.Context) error { _, err := b.Acquire(ctx, r); return err })
				want := driver.ErrLost
				if r.Retry = retried; retried {
					hold(t, b.Store, r)
					want = nil
				}
				if err := b.Release(t.Context(), r.Claim); !errors.Is(err, want) {
					t.Errorf("release: %v, want %v", err, want)
				}
				b.arrive(t, "m")
				eventually(t, "the lock is free", 10*time.Second, func() bool { return b.isFree(t, "m") })
			})
		}
	}
}

// So does the release of several that were asked for at once.
func TestReleaseOvertakesAnAbandonedAcquireAll(t *testing.T) {
	t.Parallel()
	b := firstThrough(t, func(*pgxpool.Config) {})
	all := writers("k", "l")
	all[0].TTL, all[1].TTL = time.Hour, time.Hour
	b.abandon(t, all[0].ID, func(ctx context.Context) error { _, err := b.AcquireAll(ctx, all); return err })
	for _, r := range all {
		if err := b.Release(t.Context(), r.Claim); !errors.Is(err, driver.ErrLost) {
			t.Errorf("release: %v, want driver.ErrLost", err)
		}
	}
	b.arrive(t, "k")
	eventually(t, "the locks are free", 10*time.Second, func() bool { return b.isFree(t, "k") && b.isFree(t, "l") })
}

// A claim that asks again and is granted keeps the lock, whatever was given up before.
func TestAbandonedAcquireThatIsRepeatedStands(t *testing.T) {
	t.Parallel()
	b := firstThrough(t, func(*pgxpool.Config) {}, func(o *options) { o.repeats = []time.Duration{time.Millisecond, time.Millisecond} })
	r := writer("m")
	b.abandon(t, r.ID, func(ctx context.Context) error { _, err := b.Acquire(ctx, r); return err })
	r.Retry = true
	c := hold(t, b.Store, r)
	b.arrive(t, "m")
	other := hold(t, b.Store, writer("k"))
	release(t, b.Store, other)
	if err := b.Close(); err != nil { // which waits for what is repeated
		t.Error(err)
	}
	mustBe(t, b.other, c, driver.Held)
}

// Closing repeats the release once more, and does not wait for the others.
func TestCloseCleansUpBehindAnAbandonedAcquire(t *testing.T) {
	t.Parallel()
	b := firstThrough(t, func(*pgxpool.Config) {}, func(o *options) { o.repeats = []time.Duration{time.Hour, time.Hour} })
	r := writer("m")
	r.TTL = time.Hour
	b.abandon(t, r.ID, func(ctx context.Context) error { _, err := b.Acquire(ctx, r); return err })
	if err := b.Release(t.Context(), r.Claim); !errors.Is(err, driver.ErrLost) {
		t.Errorf("release: %v, want driver.ErrLost", err)
	}
	b.arrive(t, "m")
	if b.isFree(t, "m") {
		t.Error("it is free already")
	}
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if !b.isFree(t, "m") {
		t.Error("something was left behind")
	}
}
