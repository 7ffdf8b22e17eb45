package planted

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// A wrong is a correct store with some calls replaced. It never tells a holder of a loss, because a
// store with such a defect does not know of it.
type wrong struct {
	*memstore.Store
	acquire func(context.Context, driver.Request) (driver.Grant, error)
	renew   func(context.Context, []driver.Claim, time.Duration) []driver.Renewal
	release func(context.Context, driver.Claim) error
	watch   func(driver.Claim, func(driver.Hint)) func()
}

func (w wrong) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if w.acquire != nil {
		return w.acquire(ctx, r)
	}
	return w.Store.Acquire(ctx, r)
}

func (w wrong) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	if w.renew != nil {
		return w.renew(ctx, claims, ttl)
	}
	return w.Store.Renew(ctx, claims, ttl)
}

func (w wrong) Release(ctx context.Context, c driver.Claim) error {
	if w.release != nil {
		return w.release(ctx, c)
	}
	return w.Store.Release(ctx, c)
}

func (w wrong) Watch(c driver.Claim, wake func(driver.Hint)) func() {
	if w.watch != nil {
		return w.watch(c, wake)
	}
	return w.Store.Watch(c, func(h driver.Hint) {
		if h.Granted {
			wake(h)
		}
	})
}

// breaks frees a key, for any holder, like an unconditional delete.
func breaks(ctx context.Context, s driver.Inspector, key string) {
	_, _ = s.Break(ctx, key) // an error means that no lock was held
}

// Like Redis with an evicting maxmemory-policy.
func evicts(s *memstore.Store) driver.Locks {
	var n atomic.Int64
	var last atomic.Pointer[string]
	return wrong{Store: s, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		if victim := last.Load(); victim != nil && n.Add(1)%20 == 0 {
			breaks(ctx, s, *victim)
		}
		g, err := s.Acquire(ctx, r)
		if err == nil && !g.Waiting {
			last.Store(&r.Key)
		}
		return g, err
	}}
}

// tokens replaces the tokens of all grants.
func tokens(s *memstore.Store, other func(key string, token int64) int64) driver.Locks {
	give := func(key string, g driver.Grant) driver.Grant {
		if !g.Waiting {
			g.Token = other(key, g.Token)
			g.Ticket = 0 // so that the claim is found by its ID
		}
		return g
	}
	return wrong{
		Store: s,
		acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := s.Acquire(ctx, r)
			if err != nil {
				return g, err
			}
			return give(r.Key, g), nil
		},
		renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
			all := s.Renew(ctx, claims, ttl)
			for i, r := range all {
				if r.State == driver.Held {
					all[i].Grant = give(claims[i].Key, r.Grant)
				}
			}
			return all
		},
		watch: func(c driver.Claim, wake func(driver.Hint)) func() {
			return s.Watch(c, func(h driver.Hint) {
				if h.Granted {
					h.Grant = give(c.Key, h.Grant)
				}
				wake(h)
			})
		},
	}
}

// rank numbers the grants of each key in their order.
func rank() func(key string, token int64) int64 {
	var mu sync.Mutex
	ranks := map[string]map[int64]int64{}
	return func(key string, token int64) int64 {
		mu.Lock()
		defer mu.Unlock()
		if ranks[key] == nil {
			ranks[key] = map[int64]int64{}
		}
		if ranks[key][token] == 0 {
			ranks[key][token] = int64(len(ranks[key]) + 1)
		}
		return ranks[key][token]
	}
}

// Like ZooKeeper's sequence, a signed number of 32 bits.
func tokensWrap(s *memstore.Store) driver.Locks {
	number := rank()
	return tokens(s, func(key string, token int64) int64 { return number(key, token)%16 + 1 })
}

// Like INCR on a primary whose replica had not yet received it.
func counterLost(s *memstore.Store) driver.Locks {
	number := rank()
	return tokens(s, func(key string, token int64) int64 {
		if n := number(key, token); n > 40 {
			return n - 20
		} else {
			return n
		}
	})
}

// Like DEL of the key, whatever its value is.
func releasesByName(s *memstore.Store) driver.Locks {
	return wrong{Store: s, release: func(ctx context.Context, c driver.Claim) error {
		err := s.Release(ctx, c)
		if err != nil {
			breaks(ctx, s, c.Key)
		}
		return err
	}}
}

// After a lost answer, the repeated request takes the grant away, or that of the present holder.
func grantsRetryAnew(s *memstore.Store) driver.Locks {
	return wrong{Store: s, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		if r.Retry {
			breaks(ctx, s, r.Key)
		}
		return s.Acquire(ctx, r)
	}}
}

// Every third lock is never renewed: like a primary that says yes, and no replica receives it.
func renewsLater(s *memstore.Store) driver.Locks {
	return wrong{Store: s, renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
		all := make([]driver.Renewal, len(claims))
		for i, c := range claims {
			if len(c.ID) > 0 && c.ID[0]%3 == 0 && c.Ticket != 0 {
				if info, err := s.Inspect(ctx, c.Key); err == nil && len(info.Holders) > 0 {
					all[i] = driver.Renewal{State: driver.Held, Grant: driver.Grant{Token: c.Ticket, Ticket: c.Ticket, TTL: ttl}}
					continue
				}
			}
			all[i] = s.Renew(ctx, claims[i:i+1], ttl)[0]
		}
		return all
	}}
}

// other works for the store, too: it also finds hints by the changed claim.
func other(s *memstore.Store, of func(driver.Claim) driver.Claim) driver.Locks {
	c := as(s, of)
	return wrong{
		Store: s, acquire: c.acquire, renew: c.renew, release: c.release,
		watch: func(c driver.Claim, wake func(driver.Hint)) func() { return s.Watch(of(c), wake) },
	}
}

func readersPass(s *memstore.Store) driver.Locks {
	return other(s, func(c driver.Claim) driver.Claim {
		if c.Shared() {
			c.Key += ".readers"
		}
		return c
	})
}

func countsHolders(s *memstore.Store) driver.Locks {
	return other(s, func(c driver.Claim) driver.Claim {
		if c.Capacity < driver.Whole {
			c.Weight = 1
		}
		return c
	})
}

func freesAll(s *memstore.Store) driver.Locks {
	return wrong{Store: s, release: func(ctx context.Context, c driver.Claim) error {
		err := s.Release(ctx, c)
		if err == nil && c.Capacity < driver.Whole {
			breaks(ctx, s, c.Key)
		}
		return err
	}}
}

// Like a server's clock that gains on its clients' clocks: half a second in each.
func fastClock(s *memstore.Store) driver.Locks {
	shorter := shortened(s, 1, 2)
	return wrong{Store: s, acquire: shorter.acquire, renew: shorter.renew}
}

// shortened makes the store count only a part of each TTL, and report all of it.
func shortened(s driver.Locks, part, of time.Duration) self {
	count := func(ttl time.Duration) time.Duration { return max(ttl*part/of, s.Traits().MinTTL) }
	return self{
		acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			asked := r.TTL
			r.TTL = count(asked)
			g, err := s.Acquire(ctx, r)
			if !g.Waiting {
				g.TTL = asked
			}
			return g, err
		},
		renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
			all := s.Renew(ctx, claims, count(ttl))
			for i := range all {
				if all[i].State == driver.Held {
					all[i].Grant.TTL = ttl
				}
			}
			return all
		},
	}
}

// A TTL in seconds counts as a longer one: the holder renews in time, but after its death the lock
// stays taken.
func expiresLate(s *memstore.Store) driver.Locks {
	const late = 6 * time.Second
	return wrong{
		Store: s,
		acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			ttl := r.TTL
			r.TTL += late
			g, err := s.Acquire(ctx, r)
			g.TTL = min(g.TTL, ttl)
			return g, err
		},
		renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
			all := s.Renew(ctx, claims, ttl+late)
			for i := range all {
				all[i].Grant.TTL = min(all[i].Grant.TTL, ttl)
			}
			return all
		},
		watch: func(c driver.Claim, wake func(driver.Hint)) func() {
			return s.Watch(c, func(driver.Hint) { wake(driver.Hint{}) })
		},
	}
}
