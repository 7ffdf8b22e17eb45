package badstores

import (
	"context"
	"slices"
	"time"

	"github.com/batonhq/baton/driver"
)

// A Process is the store as one process sees it.
type Process struct {
	*Store
	number int
}

// In returns the store for the process of that number.
func (s *Store) In(number int) *Process { return &Process{s, number} }

// Acquire implements driver.Locks, for process 0.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return s.acquire(ctx, r, 0)
}

// Acquire implements driver.Locks.
func (p *Process) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return p.acquire(ctx, r, p.number)
}

// Renew implements driver.Locks.
func (p *Process) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	answers := p.Store.Renew(ctx, claims, ttl)
	for i, c := range claims {
		if answers[i].State != driver.Unknown && p.isOthers(c) {
			p.goesAway(c)
		}
		if p.bug == RenewsItsOwn && answers[i].State != driver.Unknown && p.isOthers(c) {
			answers[i] = driver.Renewal{State: driver.Lost}
		}
	}
	return answers
}

// Release implements driver.Locks.
func (p *Process) Release(ctx context.Context, c driver.Claim) error {
	if p.bug == RenewsItsOwn && p.isOthers(c) {
		return driver.ErrLost
	}
	return p.Store.Release(ctx, c)
}

// AcquireAll implements driver.Together.
func (p *Process) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	for _, q := range r {
		if p.bug == TogetherAlone && p.isOthers(q.Claim) {
			return nil, &driver.HeldError{Key: q.Key}
		}
	}
	return p.Store.AcquireAll(ctx, r) // as process 0
}

// isOthers reports whether a claim stands that another process made.
func (p *Process) isOthers(r driver.Claim) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.keys[r.Key]
	if l == nil {
		return false
	}
	c := l.find(r.ID)
	return c != nil && c.process != p.number
}

// goesAway notes that this process renewed another one's claim.
func (p *Process) goesAway(r driver.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.keys[r.Key].find(r.ID); c != nil {
		c.away = true
	}
}

// sweep removes the claims of a process that were renewed elsewhere.
func (s *Store) sweep(l *lock, process int) {
	if s.bug == SweepsReturned {
		l.claims = slices.DeleteFunc(l.claims, func(c *claim) bool { return c.process == process && c.away })
	}
}

// overlooks reports whether the store does not find a claim of another process.
func (s *Store) overlooks(c *claim) bool {
	switch s.bug {
	case LocksOthersOut:
		return c.Exclusive()
	case CountsOthers:
		return c.held && c.Shared()
	case QueuesOthers:
		return !c.held
	case FindsNoGrants:
		return c.held && c.end.Sub(c.since) <= driver.ClaimTTL
	}
	return false
}

// revived restores what another process has released.
func (s *Store) revived(l *lock, r driver.Request, process int) *claim {
	if s.bug != RevivesForOthers || !r.Retry {
		return nil
	}
	i := slices.IndexFunc(l.left, func(c *claim) bool { return c.ID == r.ID && c.process != process })
	if i < 0 {
		return nil
	}
	c := l.left[i]
	s.confirm(c, r.TTL)
	l.claims = append([]*claim{c}, l.claims...)
	return c
}
