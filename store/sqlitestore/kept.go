package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"time"

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
// limits.Overrider. Requests of this process that wait at the same time share a
// transaction and its commit. A change is on the disk before it is answered. A read does
// not wait for the disk, and a list does not wait for a writer.
//
// Records and overrides outlive a reboot. They expire by the clock of the rate limits: if
// the wall clock is set ahead, they end earlier by as much.
type (
	records   = kept.Records
	overrides = kept.Overrides
)

// ?1 the first name, ?2 the end of the range, ?3 how many, ?4 the length of a text.
const listTextsSQL = `SELECT k, substr(text, 1, ?4), until FROM baton_kept WHERE k >= ?1 AND k < ?2 ORDER BY k LIMIT ?3`

func (s *Store) swapText(ctx context.Context, f kept.Folder, key, old, next string, keep time.Duration) (is kept.Text, swapped bool, err error) {
	name := []byte(f.Name(key))
	err = s.do(ctx, func(t *tx) error {
		now, err := t.limitClock()
		if err != nil {
			return err
		}
		var text []byte
		var until int64
		err = t.s.row(stText, name).Scan(&text, &until)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		is = kept.Text{}
		if until > now {
			is = kept.Text{Text: string(text), Left: time.Duration(until-now) * time.Microsecond}
		}
		swapped = is.Text == old
		switch {
		case !swapped || old == "" && next == "":
			return nil
		case next == "":
			is = kept.Text{}
			return t.s.exec(stDropText, name)
		}
		keep := (keep + time.Microsecond - 1).Truncate(time.Microsecond)
		is = kept.Text{Text: next, Left: keep}
		if err := t.s.exec(stSaveText, name, []byte(next), now+keep.Microseconds()); err != nil {
			return err
		}
		return t.s.exec(stSweepTexts, now)
	})
	if err != nil {
		return kept.Text{}, false, err
	}
	return is, swapped, nil
}

func (s *Store) listTexts(ctx context.Context, f kept.Folder, prefix string) iter.Seq2[kept.Text, error] {
	return sqlstore.Pages(func(after string) (page []kept.Text, last string, err error) {
		from, end := sqlstore.Span(f.Name(prefix), after)
		err = s.read(ctx, func(tx *sql.Tx) error {
			page, last = nil, ""
			now, err := s.readClock(ctx, tx)
			if err != nil {
				return err
			}
			rows, err := tx.QueryContext(ctx, listTextsSQL, from, end, kept.Page(f), kept.Cut)
			if err != nil {
				return err
			}
			defer rows.Close()
			n := 0
			var name, text []byte
			for rows.Next() {
				var until int64
				if err := rows.Scan(&name, &text, &until); err != nil {
					return err
				}
				if n++; until > now {
					page = append(page, kept.Text{Key: f.Key(name), Text: string(text), Left: time.Duration(until-now) * time.Microsecond})
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
