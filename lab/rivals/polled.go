package main

import (
	"context"
	"errors"
	"time"
)

// polledEvery is how often programs usually poll a lock table.
const polledEvery = 5 * time.Millisecond

// A polledSeat locks by a row of a table, and polls while another owner has the row.
type polledSeat struct {
	// take makes the row ours if it is missing or has expired.
	take func(ctx context.Context, key string, now, expires int64) (ours bool, err error)
	// drop removes the row, which must be ours.
	drop func(key string) error

	key string
}

func (s *polledSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	for {
		at := time.Now()
		ours, err := s.take(ctx, key, at.UnixMilli(), at.Add(ttl).UnixMilli())
		if err != nil {
			return nil, err
		}
		if ours {
			s.key = key
			return s, nil
		}
		select {
		case <-time.After(polledEvery):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *polledSeat) Unlock() error { return s.drop(s.key) }

// dropped checks how many rows a drop has removed.
func dropped(rows int64, err error) error {
	if err == nil && rows != 1 {
		err = errors.New("polled table: the lock was lost")
	}
	return err
}
