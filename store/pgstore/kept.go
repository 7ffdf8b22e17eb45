package pgstore

import (
	"context"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/kept"
	"github.com/batonhq/baton/internal/sqlstore"
)

var (
	_ driver.Records      = (*Store)(nil)
	_ driver.RecordLister = (*Store)(nil)
	_ limits.Overrider    = (*Store)(nil)
)

// records and overrides implement driver.Records, driver.RecordLister and
// limits.Overrider. A change is on the disk before it is answered, with any
// synchronous_commit. A failover to a standby that is not synchronous may lose a record:
// then the operation can run again.
type (
	records   = kept.Records
	overrides = kept.Overrides
)

const (
	swapTextSQL = `SELECT swapped, there, rest FROM baton_swap_1($1::bytea, $2::bytea, $3::bytea, $4::bigint)`
	textLeft    = `(extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint`
	findTextSQL = `SELECT text, ` + textLeft + ` FROM baton_kept WHERE key = $1::bytea AND until > clock_timestamp()`

	// With expired texts: a page without them could read any number of rows.
	listTextsSQL = `SELECT key, substring(text FROM 1 FOR $4::int), ` + textLeft + `
		FROM baton_kept WHERE key >= $1::bytea AND key < $2::bytea ORDER BY key LIMIT $3::int`
)

// swapText takes one round trip, by the server's clock.
func (s *Store) swapText(ctx context.Context, f kept.Folder, key, old, next string, keep time.Duration) (is kept.Text, swapped bool, err error) {
	var text []byte
	var rest *int64
	name := []byte(f.Name(key))
	if old == "" && next == "" {
		err = s.ask(ctx, findTextSQL, []any{name}, func(rows pgx.Rows) error {
			text, rest = nil, nil
			if !rows.Next() {
				return rows.Err()
			}
			return rows.Scan(&text, &rest)
		})
		swapped = text == nil
	} else {
		keep = (keep + time.Microsecond - 1).Truncate(time.Microsecond)
		err = s.row(ctx, swapTextSQL, []any{name, []byte(old), []byte(next), keep.Microseconds()}, &swapped, &text, &rest)
	}
	switch {
	case err != nil:
		return kept.Text{}, false, err
	case swapped && next != "":
		is = kept.Text{Text: next, Left: keep}
	case len(text) > 0:
		is = kept.Text{Text: string(text), Left: max(micros(*rest), 1)}
	}
	return is, swapped, nil
}

func (s *Store) listTexts(ctx context.Context, f kept.Folder, prefix string) iter.Seq2[kept.Text, error] {
	return sqlstore.Pages(func(after string) (page []kept.Text, last string, err error) {
		from, end := sqlstore.Span(f.Name(prefix), after)
		err = s.ask(ctx, listTextsSQL, []any{from, end, int32(kept.Page(f)), int32(kept.Cut)}, func(rows pgx.Rows) error {
			page, last = nil, ""
			n := 0
			var name, text []byte
			for rows.Next() {
				var rest int64
				if err := rows.Scan(&name, &text, &rest); err != nil {
					return err
				}
				if n++; rest > 0 {
					page = append(page, kept.Text{Key: f.Key(name), Text: string(text), Left: micros(rest)})
				}
			}
			if n == kept.Page(f) {
				last = string(name)
			}
			return rows.Err()
		})
		return page, last, err
	})
}
