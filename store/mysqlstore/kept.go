package mysqlstore

import (
	"context"
	"database/sql"
	"iter"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
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
// limits.Overrider, by the server's clock. A change is durable before it is answered, as
// locks are. A failover to a replica that lags may lose a record: then the operation can
// run again.
//
// Reads lock nothing. InnoDB may show a commit a moment before it is on the disk: a crash
// of the server in that moment undoes an outcome that FindRecord may have returned, but
// FinishAttempt has not yet.
type (
	records   = kept.Records
	overrides = kept.Overrides
)

// textLeft is the rest of the time for which a text is kept.
const textLeft = "TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),until)"

// swapText takes one round trip on a Store from Open.
func (s *Store) swapText(ctx context.Context, f kept.Folder, key, old, next string, keep time.Duration) (is kept.Text, swapped bool, err error) {
	where := "k=" + literal(f.Name(key))
	read := func(rows *sql.Rows, more ...any) error {
		var text []byte
		var left sql.NullInt64
		if err := rows.Scan(append(more, &text, &left)...); err != nil {
			return err
		}
		is = kept.Text{Text: string(text), Left: time.Duration(left.Int64) * time.Microsecond}
		return nil
	}
	if old == "" && next == "" {
		err = s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
			is = kept.Text{}
			_, err = s.inOne(ctx, statement{
				words("SELECT text,", textLeft, " FROM baton_kept WHERE ", where, " AND until>UTC_TIMESTAMP(6)"),
				func(rows *sql.Rows) error { return read(rows) },
			})
			return false, err
		})
		return is, is.Text == "", err
	}
	s.sweepEarly(key)
	// A statement of its own locks the row, so that the next one reads the clock after
	// that. It makes a missing row, so that two that add it wait for each other.
	lock := statement{
		words("SELECT k FROM baton_kept WHERE ", where, " FOR UPDATE"),
		func(rows *sql.Rows) error { return rows.Scan(new(string)) },
	}
	if old == "" {
		lock = exec(words("INSERT INTO baton_kept (k,text,until) VALUES (", literal(f.Name(key)), ",'','1970-01-01') ON DUPLICATE KEY UPDATE until=baton_kept.until"))
	}
	where = words(where, " AND IF(until>UTC_TIMESTAMP(6),text,'')=", literal(old))
	keep = (keep + time.Microsecond - 1).Truncate(time.Microsecond)
	write := exec(words("UPDATE baton_kept SET text=", literal(next), ",until=UTC_TIMESTAMP(6)+INTERVAL ", integer(keep.Microseconds()), " MICROSECOND WHERE ", where))
	if next == "" {
		write = exec(words("DELETE FROM baton_kept WHERE ", where))
	}
	err = s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
		return s.inOne(ctx, lock, write,
			exec("SET @baton_swapped=ROW_COUNT()>0"),
			statement{
				words("SELECT @baton_swapped,text,", textLeft, " FROM (SELECT 1 AS one) AS one LEFT JOIN baton_kept ON k=", literal(f.Name(key)),
					" AND until>UTC_TIMESTAMP(6) AND NOT @baton_swapped"),
				func(rows *sql.Rows) error { return read(rows, &swapped) },
			})
	})
	switch {
	case err != nil:
		return kept.Text{}, false, err
	case swapped && next != "":
		is = kept.Text{Text: next, Left: keep}
	}
	s.kept.Store(true)
	return is, swapped, nil
}

func (s *Store) listTexts(ctx context.Context, f kept.Folder, prefix string) iter.Seq2[kept.Text, error] {
	return sqlstore.Pages(func(after string) (page []kept.Text, last string, err error) {
		where, any := spanOf(f.Name(prefix), after, len(f.Name(""))+check.MaxKey)
		if !any {
			return nil, "", nil
		}
		err = s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
			page, last = nil, ""
			n := 0
			_, err = s.inOne(ctx, statement{
				words("SELECT k,LEFT(text,", integer(kept.Cut), "),", textLeft, " FROM baton_kept WHERE ", where, " ORDER BY k LIMIT ", integer(int64(kept.Page(f)))),
				func(rows *sql.Rows) error {
					var name, text []byte
					var left int64
					if err := rows.Scan(&name, &text, &left); err != nil {
						return err
					}
					if n, last = n+1, string(name); left > 0 {
						page = append(page, kept.Text{Key: f.Key(name), Text: string(text), Left: time.Duration(left) * time.Microsecond})
					}
					return nil
				},
			})
			if n < kept.Page(f) {
				last = ""
			}
			return false, err
		})
		return page, last, err
	})
}

// inOne runs statements in one transaction, on a Store from Open in one round trip.
// unsure says that they may have been committed in spite of the error.
func (s *Store) inOne(ctx context.Context, all ...statement) (unsure bool, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return false, err
	}
	defer ses.close() // undoes what was not committed
	return ses.commit(ctx, append(ses.beginning(), all...)...)
}

// sweepTexts removes expired texts. It skips those that a transaction has locked.
func (s *Store) sweepTexts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for more := true; more; {
		old, err := s.sweepSomeTexts(ctx)
		more = err == nil && old == sweepList // after a failure a later sweep tries again
	}
}

func (s *Store) sweepSomeTexts(ctx context.Context) (n int, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return 0, err
	}
	defer ses.close()
	var old list
	err = ses.run(ctx, append(ses.beginning(), statement{
		words("SELECT k FROM baton_kept WHERE until<=UTC_TIMESTAMP(6) ORDER BY until LIMIT ", integer(sweepList), " FOR UPDATE SKIP LOCKED"),
		func(r *sql.Rows) error {
			var key string
			err := r.Scan(&key)
			old.add(literal(key))
			n++
			return err
		},
	})...)
	if err != nil || n == 0 {
		return 0, err
	}
	// The clock may have been set back since the first statement began. Without the
	// index, and this condition, the server reads all of a small table, and waits for
	// rows that other transactions have locked.
	remove := exec("DELETE r FROM baton_kept r FORCE INDEX (PRIMARY) WHERE k IN (" + old.String() + ") AND until<=UTC_TIMESTAMP(6)")
	if err := ses.run(ctx, remove, exec(toCommit), exec(restore)); err != nil {
		return 0, err
	}
	ses.done()
	return n, nil
}
