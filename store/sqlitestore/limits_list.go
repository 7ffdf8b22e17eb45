package sqlitestore

import (
	"context"
	"database/sql"
	"iter"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/sqlstore"
)

var _ limits.Lister = (*Store)(nil)

// ?1 the first key, ?2 the end of the range, ?3 how many.
const listStatesSQL = `SELECT k, state, ends FROM baton_limit WHERE k >= ?1 AND k < ?2 ORDER BY k LIMIT ?3`

// ListStates implements limits.Lister.
func (s *Store) ListStates(ctx context.Context, prefix, after string) iter.Seq2[limits.State, error] {
	return sqlstore.PagesAfter(after, func(after string) (page []limits.State, last string, err error) {
		from, end := sqlstore.Span(prefix, after)
		err = s.read(ctx, func(tx *sql.Tx) error {
			page, last = nil, ""
			now, err := s.readClock(ctx, tx)
			if err != nil {
				return err
			}
			rows, err := tx.QueryContext(ctx, listStatesSQL, from, end, listPage)
			if err != nil {
				return err
			}
			defer rows.Close()
			n := 0
			var key []byte
			for rows.Next() {
				var text string
				var ends int64
				if err := rows.Scan(&key, &text, &ends); err != nil {
					return err
				}
				n++
				if st, ok := rate.Describe(string(key), rate.Parse(text), now, ends); ok {
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

// readClock is limitClock for requests that only read: it does not correct the file.
func (s *Store) readClock(ctx context.Context, tx *sql.Tx) (now int64, err error) {
	err = tx.QueryRowContext(ctx, statements[stBooted]).Scan(&now)
	return now + s.opts.clock(), err
}
