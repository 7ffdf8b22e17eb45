package pgstore

import (
	"context"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/sqlstore"
)

var _ limits.Lister = (*Store)(nil)

// Another program may have written a row with an extreme end.
const (
	clockSQL      = `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`
	expiresSQL    = `(extract(epoch FROM least(greatest(expires, '2000-01-01Z'), '4000-01-01Z')) * 1000000)::bigint`
	listStatesSQL = `SELECT key, state, ` + clockSQL + `, ` + expiresSQL + `
		FROM baton_limit WHERE key >= $1::bytea AND key < $2::bytea ORDER BY key LIMIT $3::int`
)

// ListStates implements limits.Lister.
func (s *Store) ListStates(ctx context.Context, prefix, after string) iter.Seq2[limits.State, error] {
	return sqlstore.PagesAfter(after, func(after string) (page []limits.State, last string, err error) {
		from, end := sqlstore.Span(prefix, after)
		err = s.ask(ctx, listStatesSQL, []any{from, end, int32(listPage)}, func(rows pgx.Rows) error {
			page, last = nil, ""
			n := 0
			var key []byte
			for rows.Next() {
				var state string
				var now, ends int64
				if err := rows.Scan(&key, &state, &now, &ends); err != nil {
					return err
				}
				n++
				if st, ok := rate.Describe(string(key), rate.Parse(state), now, ends); ok {
					page = append(page, st)
				}
			}
			if n == listPage {
				last = string(key)
			}
			return rows.Err()
		})
		return page, last, err
	})
}
