package sqlitestore

import (
	"context"
	"errors"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
)

// Acquire implements driver.Locks. A free exclusive lock costs one statement that changes
// one row.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, traits); err != nil {
		return driver.Grant{}, err
	}
	var g driver.Grant
	var refused error
	o := &op{run: func(t *tx) (failed error) {
		s.sweeper.startAt(r.Key)
		g, refused, failed = sqlstore.Acquire(t, r, &t.fx)
		return failed
	}}
	if r.Exclusive() {
		o.fast = func(t *tx) (done bool, err error) {
			s.sweeper.startAt(r.Key)
			g, done, err = t.fastAcquire(r)
			refused = nil // of a run that was undone
			return done, err
		}
	}
	err := s.ask(ctx, o)
	if err == nil {
		err = refused
	}
	if err != nil {
		return driver.Grant{}, err
	}
	if g.Waiting {
		s.watchers.Waits(r.Key, r.ID, g.Ticket)
	}
	return g, nil
}

// Renew implements driver.Locks, by one statement for all locks and one for all claims,
// in one transaction.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	b := sqlstore.NewBatch(claims, ttl, traits)
	if b.Legal() {
		if err := s.do(ctx, func(t *tx) error { return t.renew(b, ttl) }); err != nil {
			r := driver.Renewal{Err: err}
			if errors.Is(err, ErrReplaced) || errors.Is(err, ErrOtherMachine) {
				r.State = driver.Lost // the file was replaced: other processes use another one
			}
			return b.Failed(r)
		}
	}
	answers := b.Done()
	s.watchers.Answered(claims, answers)
	return answers
}

// Release implements driver.Locks. An exclusive lock without waiters costs one statement
// that changes one row, and does not wait for the disk. Otherwise the same commit grants
// the next waiters.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	if err := check.Claim(c); err != nil {
		return err
	}
	var refused error
	err := s.ask(ctx, &op{
		lazy: true,
		fast: func(t *tx) (bool, error) {
			refused = nil // of a run that was undone
			return t.fastRelease(c)
		},
		run: func(t *tx) (failed error) {
			refused, failed = sqlstore.Release(t, c, &t.fx)
			return failed
		},
	})
	if err != nil {
		return err
	}
	return refused
}
