package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// stormFor is how long the storm lasts: BATON_STORM, "60s" for a real one.
func stormFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BATON_STORM")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("BATON_STORM: %v", err)
	}
	return d
}

// Gotchas 1 to 3, and trap 5: 64 clients of four processes lock, share, wait, give up
// and renew on few keys, while rows are swept away under them. No deadlock or timeout
// of the server reaches a caller, and no two claims hold at once that must not.
func TestNoDeadlockSurfaces(t *testing.T) { noDeadlockSurfaces(t, shared(t)) }

func noDeadlockSurfaces(t *testing.T, d *database) {
	testserver.Long(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), stormFor(t)+time.Minute)
	defer cancel()
	const keys, clients = 6, 64
	var stores []*Store
	for range 4 {
		stores = append(stores, d.openWith(t, func(c *Server, o *options) { c.Connections, o.sweepAge, o.stall = 12, time.Microsecond, 60 }))
	}
	var inside [keys]atomic.Int64
	var served, given atomic.Int64
	end := time.Now().Add(stormFor(t))
	var wg sync.WaitGroup
	for i := range clients {
		s := stores[i%len(stores)]
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for n := 0; (n == 0 || time.Now().Before(end)) && !t.Failed(); n++ {
				at := random.IntN(keys)
				c := claimOf(fmt.Sprint("key", at), fmt.Sprint("client", i))
				units, limit := int64(1000), int64(1000)
				switch {
				case at < 2 && random.IntN(2) == 0:
					c.Weight, units = 1, 1
				case at == 2:
					c.Weight, c.Capacity = random.Int64N(3)+1, 4
					units, limit = c.Weight, 4
				}
				held, err := stormOnce(ctx, s, &c, random)
				if err != nil {
					t.Errorf("client %d on %s: %v", i, c.Key, err)
					return
				}
				if !held {
					given.Add(1)
					continue
				}
				if now := inside[at].Add(units); now > limit && !(at < 2 && now < 1000) {
					t.Errorf("%s: %d in use of %d", c.Key, now, limit)
				}
				time.Sleep(time.Duration(random.IntN(500)) * time.Microsecond) // the work
				inside[at].Add(-units)
				if err := s.Release(ctx, c); err != nil {
					t.Errorf("client %d releases %s: %v", i, c.Key, err)
				}
				served.Add(1)
			}
		})
	}
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		for time.Now().Before(end) && !t.Failed() {
			if _, err := stores[0].sweepStep(ctx, "", 100); err != nil {
				t.Errorf("sweep: %v", err)
			}
		}
	}()
	wg.Wait()
	<-swept
	if served.Load() == 0 {
		t.Error("no client was served")
	}
	t.Logf("%d served, %d gave up", served.Load(), given.Load())
}

// stormOnce waits until c is held, or gives up and reports false. It joins the queue
// again if a slow machine has lost its position.
func stormOnce(ctx context.Context, s *Store, c *driver.Claim, random *rand.Rand) (held bool, err error) {
	const ttl = 2 * time.Minute
	woke := make(chan struct{}, 1)
	stop := s.Watch(*c, func(driver.Hint) {
		select {
		case woke <- struct{}{}:
		default:
		}
	})
	defer stop()
	g, err := s.Acquire(ctx, driver.Request{Claim: *c, TTL: ttl, Queue: true})
	if err != nil {
		return false, err
	}
	c.Ticket = g.Ticket
	for g.Waiting {
		if random.IntN(20) == 0 {
			if err := s.Release(ctx, *c); err != nil && !errors.Is(err, driver.ErrLost) {
				return false, fmt.Errorf("giving up: %w", err)
			}
			return false, nil
		}
		select {
		case <-woke:
		case <-time.After(time.Duration(random.IntN(300)) * time.Millisecond): // a poll is behind each hint
		}
		switch r := s.Renew(ctx, []driver.Claim{*c}, ttl)[0]; r.State {
		case driver.Held:
			return true, nil
		case driver.Lost:
			return false, nil
		case driver.Unknown:
			return false, fmt.Errorf("renewing: %w", r.Err)
		}
	}
	return true, nil
}

// Waiters hold no connection, however many there are.
func TestTenThousandWaitersOnFourConnections(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, func(c *Server, _ *options) { c.Connections = 4 })
	const waiters, keys = 10_000, 20
	holders := make([]driver.Claim, keys)
	for i := range holders {
		holders[i], _ = take(t, s, claimOf(fmt.Sprint("k", i), "h"), 10*time.Minute, false)
	}
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			c := claimOf(fmt.Sprint("k", i%keys), "w")
			stop := s.Watch(c, func(driver.Hint) {})
			defer stop()
			g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: 10 * time.Minute, Queue: true})
			if err != nil || !g.Waiting {
				t.Errorf("%+v, %v", g, err)
			}
		})
	}
	wg.Wait()
	if n := d.connections(t); n > 4 {
		t.Errorf("%d connections", n)
	}
	// All positions were abandoned, and have expired or will: the next request does not
	// wait for each.
	for _, h := range holders {
		mustRelease(t, s, h)
	}
	for i := range keys {
		eventually(t, "the lock is free of the dead", 30*time.Second, func() bool {
			c := claimOf(fmt.Sprint("k", i), "next")
			_, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute})
			if err != nil && !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
}
