package mysqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

var _ limits.Overrider = (*Store)(nil)

// SetOverride implements limits.Overrider, by the server's clock. On a Store from Open it
// takes two round trips.
func (s *Store) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil {
		return err
	}
	full := false
	err := s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
		if keep == 0 {
			return s.inOne(ctx, exec(words("DELETE FROM baton_override WHERE k=", literal(o.Key))))
		}
		ses, err := s.session(ctx)
		if err != nil {
			return false, err
		}
		defer ses.close() // which undoes what was not committed
		others := 0
		err = ses.run(ctx, append(ses.beginning(),
			exec(words("DELETE FROM baton_override WHERE until<=UTC_TIMESTAMP(6) AND k<>", literal(o.Key))),
			statement{
				words("SELECT COUNT(*) FROM baton_override WHERE until>UTC_TIMESTAMP(6) AND k<>", literal(o.Key)),
				func(rows *sql.Rows) error { return rows.Scan(&others) },
			})...)
		if err != nil {
			return false, err
		}
		if full = others >= limits.MaxOverrides; full {
			return false, nil
		}
		end := words("UTC_TIMESTAMP(6)+INTERVAL ", integer((keep + time.Microsecond - 1).Microseconds()), " MICROSECOND")
		return ses.commit(ctx, exec(words("INSERT INTO baton_override (k,n,period,burst,until) VALUES (", literal(o.Key), ",", integer(o.N), ",",
			integer(o.Period.Microseconds()), ",", integer(o.Burst), ",", end,
			") ON DUPLICATE KEY UPDATE n=VALUES(n),period=VALUES(period),burst=VALUES(burst),until=VALUES(until)")))
	})
	if err == nil && full {
		err = &limits.OverridesFullError{Key: o.Key, Store: traits.Store}
	}
	return err
}

// Overrides implements limits.Overrider, in a transaction that locks nothing.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	err = s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
		all = nil
		_, err = s.inOne(ctx, statement{
			"SELECT k,n,period,burst,TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),until) FROM baton_override WHERE until>UTC_TIMESTAMP(6)",
			func(rows *sql.Rows) error {
				var o limits.Override
				var period, left int64
				err := rows.Scan(&o.Key, &o.N, &period, &o.Burst, &left)
				if o.Period, o.Left = time.Duration(period)*time.Microsecond, time.Duration(left)*time.Microsecond; err == nil {
					all = append(all, o)
				}
				return err
			},
		})
		return false, err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
