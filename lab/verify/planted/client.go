package planted

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
)

// A self is a store as used by a wrong client. It hides all that the store implements besides
// driver.Locks, driver.Watcher, driver.Inspector and limits.Store.
type self struct {
	driver.Store
	acquire func(context.Context, driver.Request) (driver.Grant, error)
	renew   func(context.Context, []driver.Claim, time.Duration) []driver.Renewal
	release func(context.Context, driver.Claim) error
	granted func(driver.Claim, driver.Grant) driver.Grant // the grant in the client's view
	deaf    bool
	close   func() error
	take    func(context.Context, limits.Request) (limits.Taken, error)
}

func (s self) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	if s.acquire != nil {
		g, err = s.acquire(ctx, r)
	} else {
		g, err = s.Store.Acquire(ctx, r)
	}
	if err == nil && !g.Waiting && s.granted != nil {
		g = s.granted(r.Claim, g)
	}
	return g, err
}

func (s self) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) (all []driver.Renewal) {
	if s.renew != nil {
		all = s.renew(ctx, claims, ttl)
	} else {
		all = s.Store.Renew(ctx, claims, ttl)
	}
	for i, r := range all {
		if r.State == driver.Held && s.granted != nil {
			all[i].Grant = s.granted(claims[i], r.Grant)
		}
	}
	return all
}

func (s self) Release(ctx context.Context, c driver.Claim) error {
	if s.release != nil {
		return s.release(ctx, c)
	}
	return s.Store.Release(ctx, c)
}

func (s self) Close() error {
	if s.close != nil {
		return s.close()
	}
	return s.Store.Close()
}

func (s self) Watch(c driver.Claim, wake func(driver.Hint)) func() {
	w, ok := s.Store.(driver.Watcher)
	if !ok || s.deaf {
		return func() {}
	}
	return w.Watch(c, func(h driver.Hint) {
		if h.Granted && s.granted != nil {
			h.Grant = s.granted(c, h.Grant)
		}
		wake(h)
	})
}

func (s self) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	if s.take != nil {
		return s.take(ctx, r)
	}
	return s.Store.(limits.Store).Take(ctx, r)
}

func breakKey(ctx context.Context, s driver.Store, key string) {
	breaks(ctx, s.(driver.Inspector), key)
}

// silent reports whether an error leaves the effect of a request open.
func silent(err error) bool {
	return errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func stillHeld(c driver.Claim, ttl time.Duration) driver.Renewal {
	return driver.Renewal{State: driver.Held, Grant: driver.Grant{Token: c.Ticket, Ticket: c.Ticket, TTL: ttl}}
}

func trustsFailures(s driver.Store) driver.Store {
	return self{Store: s, renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
		all := s.Renew(ctx, claims, ttl)
		for i, r := range all {
			if r.State == driver.Unknown && claims[i].Ticket != 0 {
				all[i] = stillHeld(claims[i], ttl)
			}
		}
		return all
	}}
}

// renewsNothing knows its locks only from the answers to Acquire.
func renewsNothing(s driver.Store) driver.Store {
	var held sync.Map // IDs
	return self{
		Store: s,
		acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := s.Acquire(ctx, r)
			if err == nil && !g.Waiting {
				held.Store(r.ID, true)
			}
			return g, err
		},
		renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
			all := make([]driver.Renewal, len(claims))
			for i, c := range claims {
				if _, ok := held.Load(c.ID); ok {
					all[i] = stillHeld(c, ttl)
				} else {
					all[i] = s.Renew(ctx, claims[i:i+1], ttl)[0]
				}
			}
			return all
		},
	}
}

// asksFor makes the store count a shorter TTL than the client. It is deaf, because hints carry a TTL,
// too.
func asksFor(part, of time.Duration) func(driver.Store) driver.Store {
	return func(s driver.Store) driver.Store {
		c := shortened(s, part, of)
		c.Store, c.deaf = s, true
		return c
	}
}

// withTokens gives each claim another token, which stays the same as long as the claim lives.
func withTokens(s driver.Store, next func() int64) driver.Store {
	var mu sync.Mutex
	given := map[string]int64{}
	return self{Store: s, granted: func(c driver.Claim, g driver.Grant) driver.Grant {
		mu.Lock()
		defer mu.Unlock()
		if given[c.ID] == 0 {
			given[c.ID] = next()
		}
		g.Token, g.Ticket = given[c.ID], 0
		return g
	}}
}

func ownTokens(s driver.Store) driver.Store {
	var n atomic.Int64
	return withTokens(s, func() int64 { return n.Add(1) })
}

func oneToken(s driver.Store) driver.Store { return withTokens(s, func() int64 { return 1 }) }

func randomTokens(s driver.Store) driver.Store {
	return withTokens(s, func() int64 { return rand.Int64N(1<<40) + 1 })
}

func releasesLate(s driver.Store) driver.Store {
	return self{Store: s, release: func(ctx context.Context, c driver.Claim) error {
		err := s.Release(ctx, c)
		time.AfterFunc(30*time.Millisecond, func() { breakKey(context.Background(), s, c.Key) })
		return err
	}}
}

func unlocksTwice(s driver.Store) driver.Store {
	return self{Store: s, release: func(ctx context.Context, c driver.Claim) error {
		err := s.Release(ctx, c)
		breakKey(ctx, s, c.Key)
		return err
	}}
}

// neverAsks renews its position and ignores the answer.
func neverAsks(s driver.Store) driver.Store {
	var waiting sync.Map // IDs
	return self{
		Store: s, deaf: true,
		acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := s.Acquire(ctx, r)
			if err == nil && g.Waiting {
				waiting.Store(r.ID, g)
			}
			return g, err
		},
		renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
			all := s.Renew(ctx, claims, ttl)
			for i, c := range claims {
				if g, ok := waiting.Load(c.ID); ok {
					all[i] = driver.Renewal{State: driver.Waiting, Grant: g.(driver.Grant)}
				}
			}
			return all
		},
	}
}

func steals(s driver.Store) driver.Store {
	return self{Store: s, acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		g, err := s.Acquire(ctx, r)
		if errors.Is(err, driver.ErrHeld) {
			breakKey(ctx, s, r.Key)
			return s.Acquire(ctx, r)
		}
		return g, err
	}}
}

// as changes all claims by of.
func as(s driver.Store, of func(driver.Claim) driver.Claim) self {
	return self{
		Store: s, deaf: true,
		acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			r.Claim = of(r.Claim)
			return s.Acquire(ctx, r)
		},
		renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
			changed := make([]driver.Claim, len(claims))
			for i, c := range claims {
				changed[i] = of(c)
			}
			return s.Renew(ctx, changed, ttl)
		},
		release: func(ctx context.Context, c driver.Claim) error { return s.Release(ctx, of(c)) },
	}
}

func writersRead(s driver.Store) driver.Store {
	return as(s, func(c driver.Claim) driver.Claim {
		if c.Exclusive() {
			c.Weight = 1
		}
		return c
	})
}

// ownPermits uses a separate key for the permits of this process.
func ownPermits(s driver.Store) driver.Store {
	mine := "." + driver.NewID()
	return as(s, func(c driver.Claim) driver.Claim {
		if c.Capacity < driver.Whole {
			c.Key += mine
		}
		return c
	})
}

func fallsOpen(s driver.Store) driver.Store {
	grant := func(ttl time.Duration) driver.Grant {
		return driver.Grant{Token: time.Now().UnixMicro(), TTL: ttl}
	}
	return self{
		Store: s,
		acquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			ctx, cancel := context.WithTimeout(ctx, r.TTL/8)
			defer cancel()
			g, err := s.Acquire(ctx, r)
			if err != nil && silent(err) {
				return grant(r.TTL), nil
			}
			return g, err
		},
		renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
			ctx, cancel := context.WithTimeout(ctx, ttl/8)
			defer cancel()
			all := s.Renew(ctx, claims, ttl)
			for i, r := range all {
				if r.State == driver.Unknown {
					all[i] = driver.Renewal{State: driver.Held, Grant: grant(ttl)}
				}
			}
			return all
		},
	}
}

// zombie renews, now and then, a claim that its caller has released.
func zombie(s driver.Store) driver.Store {
	return self{Store: s, release: func(ctx context.Context, c driver.Claim) error {
		if rand.N(20) > 0 {
			return s.Release(ctx, c)
		}
		go func() {
			for {
				time.Sleep(50 * time.Millisecond)
				if s.Renew(context.Background(), []driver.Claim{c}, time.Second)[0].State == driver.Lost {
					return
				}
			}
		}()
		return nil
	}}
}

// renewsTooLate renews every third claim only after its end.
func renewsTooLate(s driver.Store) driver.Store {
	return self{Store: s, deaf: true, renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
		all := s.Renew(ctx, claims, ttl)
		for i, c := range claims {
			if c.ID[0]%3 == 0 && all[i].State == driver.Held {
				all[i] = driver.Renewal{State: driver.Unknown, Err: driver.ErrUnavailable}
			}
		}
		return all
	}}
}

// hasty rejects answers that take longer than those of a near store.
func hasty(s driver.Store) driver.Store {
	return self{Store: s, renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
		ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		defer cancel()
		return s.Renew(ctx, claims, ttl)
	}}
}

// asksOnce stops renewing after a renewal without an answer.
func asksOnce(s driver.Store) driver.Store {
	var silent atomic.Bool
	return self{Store: s, renew: func(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
		all := make([]driver.Renewal, len(claims))
		if !silent.Load() {
			ctx, cancel := context.WithTimeout(ctx, ttl/8)
			defer cancel()
			all = s.Renew(ctx, claims, ttl)
		}
		for i := range all {
			if all[i].State == driver.Unknown {
				silent.Store(true)
				all[i].Err = errors.Join(all[i].Err, driver.ErrUnavailable)
			}
		}
		return all
	}}
}
