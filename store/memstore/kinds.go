package memstore

import (
	"context"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/lockstate"
)

// Downgrade implements driver.Downgrader.
func (s *Store) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	if err := check.Claim(c); err != nil {
		return driver.Grant{}, err
	}
	if err := check.TTL(c.Key, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	if err := s.check(ctx); err != nil {
		return driver.Grant{}, err
	}
	g, err := driver.Grant{}, driver.ErrLost
	s.visit(c.Key, func(st *lockstate.State, now time.Duration) { g, err = st.Downgrade(now, c, ttl) })
	return g, err
}

// Move implements driver.Mover.
func (s *Store) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
	if err := check.Move(c, id, owner, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	if err := s.check(ctx); err != nil {
		return driver.Grant{}, err
	}
	g, err := driver.Grant{}, driver.ErrLost
	s.visit(c.Key, func(st *lockstate.State, now time.Duration) { g, err = st.Move(now, c, id, owner, ttl) })
	return g, err
}

// Rename implements driver.Renamer.
func (s *Store) Rename(ctx context.Context, c driver.Claim, owner string) error {
	if err := check.Rename(c, owner); err != nil {
		return err
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	err := driver.ErrLost
	s.visit(c.Key, func(st *lockstate.State, now time.Duration) { err = st.Rename(now, c, owner) })
	return err
}
