package memstore

import (
	"context"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/lockstate"
	"github.com/batonhq/baton/internal/quorum"
)

// Acquire implements driver.Locks.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, traits); err != nil {
		return driver.Grant{}, err
	}
	if err := s.check(ctx); err != nil {
		return driver.Grant{}, err
	}
	sh := s.shard(r.Key)
	sh.mu.Lock()
	now := s.now()
	st := sh.keys[r.Key]
	if st == nil {
		st = sh.create(r.Key, now)
	}
	g, err := st.Acquire(now, r)
	wake := sh.settle(r.Key, st, now)
	sh.mu.Unlock()
	wake.all()
	return g, err
}

// Renew implements driver.Locks.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	answers := make([]driver.Renewal, len(claims))
	for i, c := range claims {
		answers[i] = s.renew(ctx, c, ttl)
	}
	return answers
}

func (s *Store) renew(ctx context.Context, c driver.Claim, ttl time.Duration) (a driver.Renewal) {
	a.Err = check.Claim(c)
	if a.Err == nil {
		a.Err = check.TTL(c.Key, ttl, traits)
	}
	if a.Err == nil {
		a.Err = s.check(ctx)
	}
	if a.Err != nil {
		return a
	}
	a.State = driver.Lost
	s.visit(c.Key, func(st *lockstate.State, now time.Duration) { a = st.Renew(now, c, ttl) })
	return a
}

// Release implements driver.Locks.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	if err := check.Claim(c); err != nil {
		return err
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	err := driver.ErrLost
	s.visit(c.Key, func(st *lockstate.State, now time.Duration) { err = st.Release(now, c) })
	return err
}

// Raise implements quorum.Member.
func (s *Store) Raise(ctx context.Context, key string, token int64) (int64, error) {
	if err := s.checkKey(ctx, key); err != nil {
		return 0, err
	}
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.tokens.Raise(token), nil
}

// Life implements quorum.Member.
func (s *Store) Life(ctx context.Context) (quorum.Life, error) {
	if err := s.check(ctx); err != nil {
		return quorum.Life{}, err
	}
	return quorum.Life{Server: s.life, Age: time.Since(s.opened)}, nil
}
