package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
)

// firstThrough makes a store on a pool whose first connection goes through a
// proxy, and the others do not.
func firstThrough(t *testing.T, d *database, change func(*options)) (*Store, *faultproxy.Proxy) {
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
	change(&opts)
	s, err := build(t.Context(), &Store{single: db, slow: db, apart: db, opts: opts})
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
// release overtakes that on another connection. What the request then leaves is
// found.
func TestReleaseOvertakesAnAbandonedAcquire(t *testing.T) {
	t.Parallel()
	for _, retried := range []bool{false, true} {
		d := shared(t)
		s, proxy := firstThrough(t, d, func(o *options) {
			o.repeats = slices.Repeat([]time.Duration{50 * time.Millisecond}, 1000)
		})
		before, _ := take(t, s, claimOf("k", "before"), time.Minute, false)
		mustRelease(t, s, before)
		c := claimOf("k", "a")
		r := driver.Request{Claim: c, TTL: time.Hour}
		proxy.Hold(faultproxy.ToServer)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := s.Acquire(ctx, r); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("acquire: %v, want ErrUnknown and the context's error", err)
		}
		var want error = driver.ErrLost
		if r.Retry = retried; retried {
			if _, err := s.Acquire(t.Context(), r); err != nil {
				t.Fatalf("again: %v", err)
			}
			want = nil
		}
		if err := s.Release(t.Context(), c); !errors.Is(err, want) {
			t.Errorf("release: %v, want %v", err, want)
		}
		var first, token int64
		row := func(token *int64) {
			if err := d.plain.QueryRow("SELECT token FROM baton_lock WHERE k='k'").Scan(token); err != nil {
				t.Fatal(err)
			}
		}
		row(&first)
		proxy.Heal()
		eventually(t, "the request takes effect", time.Minute, func() bool {
			row(&token)
			return token > first
		})
		eventually(t, "the lock is free", time.Minute, func() bool {
			info, err := s.Inspect(t.Context(), "k")
			return err == nil && len(info.Holders) == 0
		})
	}
}

// Closing repeats the release once more, and does not wait for the others.
func TestCloseCleansUpBehindAnAbandonedAcquire(t *testing.T) {
	t.Parallel()
	for what, hot := range map[string]bool{"a key of one process": false, "a key that others wanted": true} {
		t.Run(what, func(t *testing.T) { closeCleansUp(t, hot) })
	}
}

func closeCleansUp(t *testing.T, hot bool) {
	d := shared(t)
	s, proxy := firstThrough(t, d, func(o *options) { o.repeats = []time.Duration{time.Hour, time.Hour} })
	before, _ := take(t, s, claimOf("k", "before"), time.Minute, false)
	mustRelease(t, s, before)
	c := claimOf("k", "a")
	proxy.Hold(faultproxy.ToServer)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Hour}); !errors.Is(err, driver.ErrUnknown) {
		t.Fatalf("acquire: %v, want ErrUnknown", err)
	}
	if err := s.Release(t.Context(), c); !errors.Is(err, driver.ErrLost) {
		t.Errorf("release: %v, want ErrLost", err)
	}
	proxy.Heal()
	other := d.open(t)
	eventually(t, "the request takes effect", time.Minute, func() bool {
		info, err := other.Inspect(t.Context(), "k")
		return err == nil && len(info.Holders) == 1
	})
	s.hot.Set("k", hot)
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if info, err := other.Inspect(t.Context(), "k"); err != nil || len(info.Holders) > 0 {
		t.Errorf("left behind: %+v, %v", info, err)
	}
}

// The last caller that waits for a transaction gives up before it has begun: no
// connection is free. The transaction is given up, and so is the key's queue.
func TestLeavingBeforeTheTransactionBegins(t *testing.T) {
	t.Parallel()
	s := shared(t).openWith(t, patient)
	s.slow.SetMaxOpenConns(1)
	conn, err := s.slow.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	before := s.slow.Stats().WaitCount
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		left <- s.do(ctx, "k", false, func(*tx) error {
			t.Error("the transaction went on without a caller")
			return nil
		})
	}()
	eventually(t, "the transaction waits for a connection", time.Minute, func() bool { return s.slow.Stats().WaitCount > before })
	cancel()
	if err := <-left; !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want ErrUnknown and the context's error", err)
	}
	eventually(t, "the transaction is given up", patience/2, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queues) == 0
	})
}

// A keyQueue stays as long as a caller uses it.
func TestKeyQueuesComeAndGo(t *testing.T) {
	t.Parallel()
	s := shared(t).openWith(t, patient)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			for n := range 20 {
				ctx, cancel := context.WithCancel(t.Context())
				if n%4 == 0 {
					cancel()
				}
				err := s.do(ctx, fmt.Sprint("k", i%3), false, func(*tx) error { return nil })
				if cancel(); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "no queue is left", time.Minute, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queues) == 0
	})
}
