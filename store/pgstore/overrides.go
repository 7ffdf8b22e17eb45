package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver/limits"
)

var _ limits.Overrider = (*Store)(nil)

const (
	setOverrideSQL   = `SELECT baton_override_set_1($1::bytea, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::int)`
	listOverridesSQL = `SELECT key, n, period, burst, (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint
		FROM baton_override WHERE until > clock_timestamp()`
)

// SetOverride implements limits.Overrider, by one function on the server and its clock.
// What was set is on the disk before it is answered.
func (s *Store) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil {
		return err
	}
	var done int
	err := s.row(ctx, setOverrideSQL, []any{[]byte(o.Key), o.N, o.Period.Microseconds(), o.Burst, ceilMicros(keep), int32(limits.MaxOverrides)}, &done)
	if err == nil && done == 0 {
		err = &limits.OverridesFullError{Key: o.Key, Store: traits.Store}
	}
	return err
}

// Overrides implements limits.Overrider.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	err = s.ask(ctx, listOverridesSQL, nil, func(rows pgx.Rows) error {
		all = nil
		for rows.Next() {
			var key []byte
			var o limits.Override
			var period, left int64
			if err := rows.Scan(&key, &o.N, &period, &o.Burst, &left); err != nil {
				return err
			}
			if o.Key, o.Period, o.Left = string(key), micros(period), micros(left); left > 0 {
				all = append(all, o)
			}
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
