package sqlitestore

import (
	"context"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
)

// AcquireAll implements driver.Together, for locks of any kind. All keys share one
// transaction, and so one commit.
func (s *Store) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	if err := check.Together(r, traits); err != nil {
		return nil, err
	}
	var grants []driver.Grant
	var refused error
	err := s.do(ctx, func(t *tx) (failed error) {
		s.sweeper.startAt(r[0].Key)
		grants, refused, failed = sqlstore.AcquireAll(t, r, &t.fx)
		return failed
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return nil, err
	}
	return grants, nil
}
