package mysqlstore

import (
	"context"
	"errors"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/batch"
	"github.com/batonhq/baton/internal/sqlstore"
)

// Acquire implements driver.Locks.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, traits); err != nil {
		return driver.Grant{}, err
	}
	if err := s.ready(ctx); err != nil {
		return driver.Grant{}, err
	}
	s.sweepEarly(r.Key)
	g, err := s.acquire(ctx, r)
	if errors.Is(err, driver.ErrUnknown) {
		s.left.Leave(r.ID)
	}
	return g, err
}

func (s *Store) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if r.Exclusive() && !s.hot.Has(r.Key) {
		g, ok, err := s.fastAcquire(ctx, r)
		if ok || err != nil {
			return g, err
		}
	}
	g, err := s.grant(ctx, r.Key, !r.Retry && r.Ticket == 0, func(t *tx) (driver.Grant, error, error) {
		return sqlstore.Acquire(t, r, &t.fx)
	})
	if g.Waiting {
		s.watchers.Waits(r.Key, r.ID, g.Ticket)
	}
	return g, err
}

// grant runs act in a transaction about key, see do, and returns its grant or its
// refusal.
func (s *Store) grant(ctx context.Context, key string, fresh bool, act func(*tx) (g driver.Grant, refused, failed error)) (driver.Grant, error) {
	var g driver.Grant
	var refused error
	err := s.do(ctx, key, fresh, func(t *tx) (failed error) {
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

// Release implements driver.Locks.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	if err := check.Claim(c); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	err := s.release(ctx, c)
	s.left.Released(c)
	return err
}

func (s *Store) release(ctx context.Context, c driver.Claim) error {
	if !s.hot.Has(c.Key) {
		if ok, err := s.fastRelease(ctx, c); ok || err != nil {
			return err
		}
	}
	var refused error
	err := s.do(ctx, c.Key, false, releasing(c, &refused))
	if err == nil {
		err = refused
	}
	return err
}

// releaseAlone is Release for Close, without the queues.
func (s *Store) releaseAlone(ctx context.Context, c driver.Claim) error {
	var refused error
	o := &op{Item: batch.NewItem(), run: releasing(c, &refused)}
	s.transact(ctx, c.Key, []*op{o})
	if o.err != nil {
		return o.err
	}
	return refused
}

func releasing(c driver.Claim, refused *error) func(*tx) error {
	return func(t *tx) (failed error) {
		*refused, failed = sqlstore.Release(t, c, &t.fx)
		return failed
	}
}
