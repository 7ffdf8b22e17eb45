package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
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
	sweepUntil(ctx, t, stores[0], end)
	wg.Wait()
	if served.Load() == 0 {
		t.Error("no client was served")
	}
	t.Logf("%d served, %d gave up", served.Load(), given.Load())
}

// Sixty-four clients of four processes hold sets of keys that overlap, taken one after the
// other as LockAll does, or wait for one of them, and renew many at once, while rows are
// swept away under them. No deadlock or timeout of the server reaches a caller, and no two
// claims hold at once that must not.
func TestManyKeysNoDeadlockSurfaces(t *testing.T) { manyKeysNoDeadlockSurfaces(t, shared(t)) }

func manyKeysNoDeadlockSurfaces(t *testing.T, d *database) {
	testserver.Long(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), stormFor(t)+2*time.Minute)
	defer cancel()
	const keys, clients = 24, 64
	var stores []*Store
	for range 4 {
		stores = append(stores, d.openWith(t, func(c *Server, o *options) { c.Connections, o.sweepAge, o.stall = 12, time.Microsecond, 60 }))
	}
	var inside [keys]atomic.Int64
	var several, refused, single atomic.Int64
	end := time.Now().Add(stormFor(t))
	work := func(s *Store, random *rand.Rand, name string) (err error) {
		at := random.Perm(keys)[:1+random.IntN(4)]
		slices.Sort(at)
		waits := random.IntN(6) == 0
		if waits {
			at = at[:1]
		}
		var claims []driver.Claim
		for _, n := range at {
			c := claimOf(fmt.Sprint("key", n), name)
			held := true
			if waits {
				held, err = stormOnce(ctx, s, &c, random)
			} else {
				var g driver.Grant
				g, err = s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute})
				c.Ticket = g.Ticket
			}
			switch {
			case errors.Is(err, driver.ErrHeld):
				refused.Add(1)
				for i, c := range claims {
					inside[at[i]].Add(-1)
					if err := s.Release(ctx, c); err != nil {
						return err
					}
				}
				return nil
			case err != nil || !held:
				return err
			}
			if claims = append(claims, c); inside[n].Add(1) > 1 {
				t.Errorf("key%d has two holders", n)
			}
		}
		if waits {
			single.Add(1)
		} else {
			several.Add(1)
		}
		for i, r := range s.Renew(ctx, claims, 2*time.Minute) {
			if r.State != driver.Held {
				err = errors.Join(err, fmt.Errorf("a holder of %s is %v: %w", claims[i].Key, r.State, r.Err))
			}
		}
		for i, c := range claims {
			inside[at[i]].Add(-1)
			err = errors.Join(err, s.Release(ctx, c))
		}
		return err
	}
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 12))
			for n := 0; (n == 0 || time.Now().Before(end)) && !t.Failed(); n++ {
				if err := work(stores[i%len(stores)], random, fmt.Sprint("client", i)); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
	sweepUntil(ctx, t, stores[0], end)
	wg.Wait()
	if several.Load() == 0 || single.Load() == 0 {
		t.Error("no client was granted several, or none after waiting")
	}
	t.Logf("%d times several were granted, %d times one was refused, %d single ones", several.Load(), refused.Load(), single.Load())
}

// sweepUntil sweeps rows away.
func sweepUntil(ctx context.Context, t *testing.T, s *Store, end time.Time) {
	t.Helper()
	for time.Now().Before(end) && !t.Failed() {
		if _, err := s.sweepStep(ctx, "", 100); err != nil {
			t.Errorf("sweep: %v", err)
		}
	}
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
