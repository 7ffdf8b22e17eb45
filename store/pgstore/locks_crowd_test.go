package pgstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// stormFor is how long each storm lasts: BATON_STORM, "60s" for a real one.
func stormFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BATON_STORM")
	if text == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("BATON_STORM: %v", err)
	}
	return d
}

// Sixty-four clients of four processes on one key and on many, with every kind of
// request, while rows are swept away under them. No caller hears of deadlocks or
// serialization, and no two claims hold at once that must not.
func TestNoDeadlockSurfaces(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	lasts := stormFor(t)
	for _, keys := range []int{1, 8, 64} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			server, url := database(t)
			var stores []*Store
			for i := range 4 {
				conns := []int32{1, 2, 16, 16}[i] // with few, requests are merged
				stores = append(stores, openOn(t, newPool(t, url, func(c *pgxpool.Config) {
					if c.MaxConns = conns; i%2 == 1 {
						likeOpen(c)
					}
				}), func(o *options) {
					o.idle, o.sweep = time.Millisecond, 20*time.Millisecond
				}))
			}
			rooms := make([]room, keys)
			var made, granted atomic.Int64
			end := time.Now().Add(lasts)
			var wg sync.WaitGroup
			for c := range 64 {
				wg.Go(func() {
					for i := c; i == c || time.Now().Before(end); i++ {
						held, err := traffic(stores[c%4], fmt.Sprint("k", i%keys), i, &rooms[i%keys])
						if err != nil {
							t.Errorf("client %d: %v", c, err)
							return
						}
						if made.Add(1); held {
							granted.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if granted.Load() == 0 {
				t.Errorf("no client was granted anything in %d rounds", made.Load())
			}
			if n, err := server.Query("postgres", `SELECT sum(deadlocks) FROM pg_stat_database WHERE datname = '`+stores[0].pool.Config().ConnConfig.Database+`'`); err != nil || n != "0" {
				t.Errorf("the server counted %s deadlocks, %v", n, err)
			}
			t.Logf("%d rounds, %d grants", made.Load(), granted.Load())
		})
	}
}

// room is the holders of a key.
type room struct {
	mu                       sync.Mutex
	writers, readers, permit int64
}

// enter notes a holder, or with -1 that it leaves, and reports which holders are there
// that must not be.
func (r *room) enter(c driver.Claim, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case c.Exclusive():
		r.writers += n
	case c.Shared():
		r.readers += n
	default:
		r.permit += n * c.Weight
	}
	if r.writers > 1 || r.writers == 1 && r.readers+r.permit > 0 || r.readers > 0 && r.permit > 0 || r.permit > 5 {
		return fmt.Errorf("%d writers, %d readers and %d of 5 permits hold %q", r.writers, r.readers, r.permit, c.Key)
	}
	return nil
}

// traffic is one round of a client: it asks, renews with others, holds, and
// leaves.
func traffic(s *Store, key string, i int, room *room) (held bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	broken := i%13 == 0 // by force, which others must not meet
	if broken {
		key = "broken " + key
	}
	r := writer(key)
	r.Queue = i%5 != 0
	switch i % 7 {
	case 1, 2:
		r.Weight = 1
	case 3:
		r.Weight, r.Capacity = 2, 5
	}
	crashes := i%37 == 0
	if crashes {
		r.TTL = 300 * time.Millisecond
	}
	g, err := s.Acquire(ctx, r)
	switch {
	case errors.Is(err, driver.ErrHeld), errors.As(err, new(*driver.CapacityError)):
		return false, nil
	case err != nil:
		return false, err
	case crashes:
		return false, nil
	}
	held = !g.Waiting
	for n := 0; !held && n < 20; n++ {
		answer := s.Renew(ctx, []driver.Claim{with(r, g), {Key: key + "x", ID: "nobody", Ticket: 1}}, r.TTL)[0]
		if answer.Err != nil {
			return false, answer.Err
		}
		if held = answer.State == driver.Held; answer.State == driver.Lost {
			break // this machine is slow
		}
	}
	if broken {
		_, err := s.Break(ctx, key)
		return held, err
	}
	if held {
		err = room.enter(r.Claim, 1)
		if answer := s.Renew(ctx, []driver.Claim{with(r, g)}, r.TTL)[0]; answer.State != driver.Held {
			err = errors.Join(err, fmt.Errorf("a holder of %q is %v: %w", key, answer.State, answer.Err))
		}
		_ = room.enter(r.Claim, -1) // as before
	}
	if e := s.Release(ctx, with(r, g)); e != nil && (held || !errors.Is(e, driver.ErrLost)) {
		err = errors.Join(err, fmt.Errorf("release: %w", e))
	}
	return held, err
}

// Ten thousand wait on four connections, and one that releases is served as if it were
// alone.
func TestTenThousandWaitersOnFourConnections(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	_, url := database(t)
	s := openOn(t, newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 4 }))
	other := openAt(t, url)
	const n = 10_000
	first := writer("k")
	first.TTL = time.Hour // this may take a while
	holder := hold(t, other, first)
	claims := make([]driver.Claim, n)
	var wg sync.WaitGroup
	gate := make(chan struct{}, 64)
	for i := range claims {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			r := queued(writer("k"))
			if i%2 == 1 {
				r.Key = fmt.Sprint("k", i/10) // a thousand keys of five
			}
			g, err := s.Acquire(t.Context(), r)
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
			claims[i] = with(r, g)
		})
	}
	wg.Wait()
	if st := s.pool.Stat(); st.MaxConns() != 4 || st.AcquiredConns() != 0 {
		t.Errorf("%d of %d connections are held while no client asks", st.AcquiredConns(), st.MaxConns())
	}
	// Each waiter's position ends after a while unless it is renewed, as it is here,
	// all in two statements. This machine may be too slow for all.
	states := map[driver.State]int{}
	for _, r := range s.Renew(t.Context(), claims, time.Minute) {
		if states[r.State]++; r.State == driver.Unknown {
			t.Fatalf("renew: %v", r.Err)
		}
	}
	t.Logf("%v", states)
	release(t, other, holder)
	again := queued(writer("k"))
	g, err := other.Acquire(t.Context(), again)
	if err != nil {
		t.Fatal(err)
	}
	release(t, other, with(again, g))
}
