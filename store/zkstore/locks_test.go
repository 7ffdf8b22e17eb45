package zkstore

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// What an acquisition and its release cost the server. Sessions are so long that
// nothing is sent to keep them alive. Many rounds need a few requests less: the first
// and the last waiters are not measured completely.
func TestCost(t *testing.T) {
	t.Parallel()
	const rounds, others = 50, 10
	server := testserver.ZooKeeper(t, "maxSessionTimeout=1200000")
	open := func(t *testing.T, root string) *Store {
		return patient(mustOpen(t, Server{Addrs: []string{server.Addr}, Session: 20 * time.Minute}, Config{Root: root}))
	}
	writer := func(key string) driver.Request {
		r := writer(key)
		r.TTL = time.Minute
		return r
	}
	// On a machine that was too busy the store asked again meanwhile: count once more.
	expect := func(t *testing.T, work func(), requests, commits int64) {
		t.Helper()
		got := counted(t, server, work)
		for tries := 2; tries > 0 && got.Requests > requests*rounds+others; tries-- {
			t.Logf("%d rounds took %d requests: again", rounds, got.Requests)
			got = counted(t, server, work)
		}
		if got.Commits != commits*rounds {
			t.Errorf("%d rounds took %d transactions, want %d each", rounds, got.Commits, commits)
		}
		if got.Requests < requests*rounds-others || got.Requests > requests*rounds+others {
			t.Errorf("%d rounds took %d requests, want %d each", rounds, got.Requests, requests)
		}
	}

	t.Run("nobody else, a known key", func(t *testing.T) {
		s := open(t, "/"+driver.NewID())
		r := writer("k")
		hold(t, s, r)
		release(t, s, r)
		expect(t, func() {
			for range rounds {
				r := writer("k")
				hold(t, s, r)
				release(t, s, r)
			}
		}, 2, 2)
	})
	t.Run("a new key", func(t *testing.T) {
		s := open(t, "/"+driver.NewID())
		r := writer("k")
		hold(t, s, r) // makes the root
		release(t, s, r)
		n := 0
		expect(t, func() {
			for range rounds {
				n++
				r := writer(fmt.Sprint("k", n))
				hold(t, s, r)
				release(t, s, r)
			}
		}, 3, 2)
	})
	for name, c := range map[string]struct {
		stores   int
		requests int64
	}{
		// One watch serves the owner of a node and the waiter behind it.
		"eight of a process who wait": {1, 3},
		"eight processes that wait":   {9, 5},
	} {
		t.Run(name, func(t *testing.T) {
			root := "/" + driver.NewID()
			var stores []*Store
			for range c.stores {
				stores = append(stores, open(t, root))
			}
			type waiter struct {
				driver.Request
				s     *Store
				hints <-chan driver.Hint
			}
			n := 0
			join := func(waits bool) waiter {
				r, s := writer("k"), stores[n%len(stores)]
				n++
				w := waiter{r, s, watching(t, s, r)}
				if g := acquire(t, s, r); g.Waiting != waits {
					t.Fatalf("waiting: %v, want %v", g.Waiting, waits)
				}
				return w
			}
			holder := join(false)
			var line []waiter
			for range 8 {
				line = append(line, join(true))
			}
			expect(t, func() {
				for range rounds {
					release(t, holder.s, holder.Request)
					awaitHeld(t, line[0].s, line[0].Request, line[0].hints)
					holder = line[0]
					line = append(line[1:], join(true))
				}
			}, c.requests, 2)
		})
	}
	t.Run("a crowd that comes at once", func(t *testing.T) {
		s := open(t, "/"+driver.NewID())
		hold(t, s, writer("k"))
		if g := acquire(t, s, writer("k")); !g.Waiting {
			t.Fatalf("%+v, want a position", g)
		}
		const crowd = 32 * 50
		got := counted(t, server, func() {
			var joining sync.WaitGroup
			for range 32 {
				joining.Go(func() {
					for range crowd / 32 {
						if g, err := s.Acquire(t.Context(), writer("k")); err != nil || !g.Waiting {
							t.Errorf("%+v, %v, want a position", g, err)
						}
					}
				})
			}
			joining.Wait()
		})
		// One request creates, one watches, and hardly any waiter reads the queue.
		if most := int64(2*crowd + crowd/10); got.Requests > most {
			t.Errorf("%d places took %d requests, want %d at most", crowd, got.Requests, most)
		}
	})
	t.Run("three hundred renewed", func(t *testing.T) {
		s := open(t, "/"+driver.NewID())
		var claims []driver.Claim
		for i := range 300 {
			r := writer(fmt.Sprint("k", i))
			hold(t, s, r)
			claims = append(claims, r.Claim)
		}
		expect(t, func() {
			for range rounds {
				for _, a := range s.Renew(t.Context(), claims, time.Minute) {
					if a.State != driver.Held {
						t.Fatalf("renewed: %+v", a)
					}
				}
			}
		}, 2, 2)
	})
}
