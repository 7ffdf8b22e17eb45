package mysqlstore

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton/internal/sqlstore"
)

// sweepPage is the number of keys in a step of the sweep, besides twice the number of
// keys made since the last step.
const sweepPage = 1000

// sweepList is the greatest number of keys in one statement.
const sweepList = 200

// sweep removes the rows of keys that were not used for a while, a page at a time. It
// keeps no floor for their tokens: new ones start from the server's clock, and a row is
// removed only when that clock has been past its counter for as long.
func (s *Store) sweep() {
	after, afterLimit := "", ""
	for {
		t := time.NewTimer(s.opts.sweepEvery/2 + rand.N(s.opts.sweepEvery))
		early := false
		select {
		case <-s.quit:
			t.Stop()
			return
		case from := <-s.kick:
			after, afterLimit, early = from, from, true
		case <-t.C:
		}
		if s.used.Swap(false) {
			// A page that failed is repeated.
			after, _ = around(s.life, after, sweepPage+2*int(s.inserted.Swap(0)), s.sweepStep)
			afterLimit, _ = around(s.life, afterLimit, sweepPage+2*int(s.changed.Swap(0)), s.sweepLimits)
			if early || s.kept.Load() {
				s.sweepTexts(s.life)
			}
		}
	}
}

// sweepEarly starts a sweep at the first key that a program uses, so that many
// short-lived programs together reach all keys.
func (s *Store) sweepEarly(key string) {
	if s.early.Load() && s.early.Swap(false) {
		s.kick <- key
	}
}

// around makes a step, and after the last page another one from the beginning. It returns
// where to continue.
func around(ctx context.Context, after string, n int, step func(context.Context, string, int) (string, error)) (string, error) {
	last, err := step(ctx, after, n)
	if err == nil && last == "" && after != "" {
		last, err = step(ctx, "", n)
	}
	return last, err
}

// sweepStep looks at the next n keys and returns where it ended: "" at the end of the
// table, and with an error the beginning of the page that failed.
func (s *Store) sweepStep(ctx context.Context, after string, n int) (string, error) {
	for n > 0 {
		page := min(n, sweepList)
		n -= page
		last, err := s.sweepSome(ctx, after, page)
		if err != nil {
			return after, err
		}
		if after = last; last == "" {
			break
		}
	}
	return after, nil
}

func (s *Store) sweepSome(ctx context.Context, after string, page int) (last string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	last, dead, err := s.sweepIdle(ctx, after, page)
	if err != nil {
		return "", err
	}
	for _, key := range dead {
		// All its waiters may have died.
		err := s.do(ctx, key, false, func(t *tx) error { return sqlstore.Serve(t, key, &t.fx) })
		if err != nil && ctx.Err() != nil {
			return "", err
		}
		// Otherwise a transaction may have locked the row for long: later keys do not
		// wait for that.
	}
	return last, nil
}

// sweepIdle removes unused rows of one page and returns the keys of unused rows that may
// have waiters. It reads the page without locks: renewals skip locked rows, and would
// have to ask again for each.
func (s *Store) sweepIdle(ctx context.Context, after string, page int) (last string, dead []string, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return "", nil, err
	}
	defer ses.close()
	age := integer(s.opts.sweepAge.Microseconds())
	unused := words("ends<UTC_TIMESTAMP(6)-INTERVAL ", age, " MICROSECOND AND last<", micros, "-", age)
	var idle list
	seen := 0
	err = ses.run(ctx, append(ses.beginning(), statement{
		words("SELECT k,busy,", unused, " FROM baton_lock FORCE INDEX (PRIMARY) WHERE k>", literal(after), " ORDER BY k LIMIT ", integer(int64(page))),
		func(r *sql.Rows) error {
			var key string
			var busy, unused bool
			if err := r.Scan(&key, &busy, &unused); err != nil {
				return err
			}
			seen, last = seen+1, key
			switch {
			case unused && busy:
				dead = append(dead, key)
			case unused:
				idle.add(literal(key))
			}
			return nil
		},
	})...)
	if err != nil {
		return "", nil, err
	}
	var second []statement
	if idle.text != nil {
		// A sweep that waited for a row while it holds others could deadlock.
		var locked list
		err := ses.run(ctx, statement{
			words("SELECT k FROM baton_lock FORCE INDEX (PRIMARY) WHERE k IN (", idle.String(), ") AND busy=0 AND ", unused, " ORDER BY k FOR UPDATE SKIP LOCKED"),
			func(r *sql.Rows) error {
				var key string
				err := r.Scan(&key)
				locked.add(literal(key))
				return err
			},
		})
		if err != nil {
			return "", nil, err
		}
		if locked.text != nil {
			// Without the index the server reads all of a small table, and waits for rows
			// that other transactions have locked.
			second = append(second, exec(words("DELETE l FROM baton_lock l FORCE INDEX (PRIMARY) WHERE k IN (", locked.String(), ") AND busy=0 AND ", unused)))
		}
	}
	if err := ses.run(ctx, append(second, exec(toCommit), exec(restore))...); err != nil {
		return "", nil, err
	}
	ses.done()
	if seen < page {
		last = ""
	}
	return last, dead, nil
}
