package sqlitestore

import (
	"context"
	"database/sql"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

var _ limits.Overrider = (*Store)(nil)

// ?1 the present.
const listOverridesSQL = `SELECT k, n, period, burst, until FROM baton_override WHERE until > ?1`

// SetOverride implements limits.Overrider, by the clock of the rate limits. An override
// outlives a reboot.
func (s *Store) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil {
		return err
	}
	full := false
	err := s.do(ctx, func(t *tx) error {
		full = false
		now, err := t.limitClock()
		if err != nil {
			return err
		}
		if keep == 0 {
			return t.s.exec(stDropOverride, []byte(o.Key))
		}
		if err := t.s.exec(stSweepOverrides, now); err != nil {
			return err
		}
		var others int
		if err := t.s.row(stCountOverrides, []byte(o.Key)).Scan(&others); err != nil {
			return err
		}
		if full = others >= limits.MaxOverrides; full {
			return nil
		}
		kept := rate.NewOverride(o, now, keep)
		return t.s.exec(stSaveOverride, []byte(o.Key), kept.N, kept.Period, kept.Burst, kept.Until)
	})
	if err == nil && full {
		err = &limits.OverridesFullError{Key: o.Key, Store: traits.Store}
	}
	return err
}

// Overrides implements limits.Overrider. It waits for no writer.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	err = s.read(ctx, func(tx *sql.Tx) error {
		all = nil
		var now int64
		if err := tx.QueryRowContext(ctx, statements[stBooted]).Scan(&now); err != nil {
			return err
		}
		now += s.opts.clock() // as limitClock, which also corrects what the file says
		rows, err := tx.QueryContext(ctx, listOverridesSQL, now)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var key []byte
			var kept rate.Override
			if err := rows.Scan(&key, &kept.N, &kept.Period, &kept.Burst, &kept.Until); err != nil {
				return err
			}
			if o, stands := kept.At(string(key), now); stands {
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
