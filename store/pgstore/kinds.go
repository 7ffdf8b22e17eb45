package pgstore

import (
	"context"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// Downgrade implements driver.Downgrader. It waits for a transaction that depends on the
// lease by InTx.
func (s *Store) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	if err := check.Claim(c); err != nil {
		return driver.Grant{}, err
	}
	if err := check.TTL(c.Key, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	var state int
	var token int64
	var granted string
	err := s.row(ctx, downgradeSQL, []any{[]byte(c.Key), c.ID, c.Ticket, ttl.Microseconds()}, &state, &token, &granted)
	if err != nil {
		return driver.Grant{}, err
	}
	if granted != "" {
		s.hints.tell(c.Key, granted, "")
	}
	if state == isLost {
		return driver.Grant{}, driver.ErrLost
	}
	return driver.Grant{Token: token, Ticket: token, TTL: ttl}, nil
}

// Move implements driver.Mover. It waits for a transaction that depends on the lease by
// InTx.
func (s *Store) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
	if err := check.Move(c, id, owner, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	var state int
	var token int64
	args := []any{[]byte(c.Key), c.ID, c.Ticket, id, owner, s.hints.node, ttl.Microseconds()}
	if err := s.row(ctx, moveSQL, args, &state, &token); err != nil {
		return driver.Grant{}, err
	}
	if state == isLost {
		return driver.Grant{}, driver.ErrLost
	}
	return driver.Grant{Token: token, Ticket: token, TTL: ttl}, nil
}

// Rename implements driver.Renamer.
func (s *Store) Rename(ctx context.Context, c driver.Claim, owner string) error {
	if err := check.Rename(c, owner); err != nil {
		return err
	}
	var state int
	if err := s.row(ctx, renameSQL, []any{[]byte(c.Key), c.ID, c.Ticket, owner}, &state); err != nil {
		return err
	}
	if state == isLost {
		return driver.ErrLost
	}
	return nil
}
