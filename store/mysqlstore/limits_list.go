package mysqlstore

import (
	"context"
	"database/sql"
	"iter"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/sqlstore"
)

var _ limits.Lister = (*Store)(nil)

// ListStates implements limits.Lister.
func (s *Store) ListStates(ctx context.Context, prefix, after string) iter.Seq2[limits.State, error] {
	return sqlstore.PagesAfter(after, func(after string) (page []limits.State, last string, err error) {
		where, any := spanOf(prefix, after, check.MaxKey)
		if !any {
			return nil, "", nil
		}
		err = s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
			page, last = nil, ""
			n := 0
			_, err = s.inOne(ctx, statement{
				words("SELECT ", micros, ",k,state,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',ends) FROM baton_limit WHERE ", where, " ORDER BY k LIMIT ", integer(listPage)),
				func(rows *sql.Rows) error {
					var now, ends int64
					var text string
					if err := rows.Scan(&now, &last, &text, &ends); err != nil {
						return err
					}
					n++
					if st, ok := rate.Describe(last, rate.Parse(text), now, ends); ok {
						page = append(page, st)
					}
					return nil
				},
			})
			if n < listPage {
				last = ""
			}
			return false, err
		})
		return page, last, err
	})
}

// spanOf is the condition for keys of at most most bytes that begin with prefix and come
// after after. any is false if there can be none.
func spanOf(prefix, after string, most int) (where string, any bool) {
	// The server compares correctly only with a text of at most the column's length, so a
	// zero byte cannot be added to after.
	if len(prefix) > most {
		return "", false
	}
	after = after[:min(len(after), most)] // no key is between the two
	where = "k>=" + literal(prefix)
	if after != "" && after >= prefix {
		where = "k>" + literal(after)
	}
	if end := sqlstore.PrefixEnd(prefix); end != nil {
		where = "k<" + literal(string(end)) + " AND " + where
	}
	return where, true
}
