package sqlitestore

import (
	"context"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
)

// Downgrade implements driver.Downgrader.
func (s *Store) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	if err := check.Claim(c); err != nil {
		return driver.Grant{}, err
	}
	if err := check.TTL(c.Key, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	return s.grant(ctx, func(t *tx) (driver.Grant, error, error) {
		return sqlstore.Downgrade(t, c, ttl.Microseconds(), &t.fx)
	})
}

// Move implements driver.Mover.
func (s *Store) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
	if err := check.Move(c, id, owner, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	return s.grant(ctx, func(t *tx) (driver.Grant, error, error) {
		return sqlstore.Move(t, c, id, owner, ttl.Microseconds(), &t.fx)
	})
}

// Rename implements driver.Renamer.
func (s *Store) Rename(ctx context.Context, c driver.Claim, owner string) error {
	if err := check.Rename(c, owner); err != nil {
		return err
	}
	var refused error
	err := s.do(ctx, func(t *tx) (failed error) {
		refused, failed = sqlstore.Rename(t, c, owner, &t.fx)
		return failed
	})
	if err != nil {
		return err
	}
	return refused
}

// grant runs act in a transaction and returns its grant or its refusal.
func (s *Store) grant(ctx context.Context, act func(*tx) (g driver.Grant, refused, failed error)) (driver.Grant, error) {
	var g driver.Grant
	var refused error
	err := s.do(ctx, func(t *tx) (failed error) {
		g, refused, failed = act(t)
		return failed
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}
