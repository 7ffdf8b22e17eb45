package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/record"
	"github.com/batonhq/baton/internal/sqlstore"
)

var (
	_ driver.Records      = (*Store)(nil)
	_ driver.RecordLister = (*Store)(nil)
)

// ?1 the first key, ?2 the end of the range, ?3 how many.
const listRecordsSQL = `SELECT k, state, token, owner, attempts, began, finished, until, CASE state WHEN 'failed' THEN result END FROM baton_record
	WHERE k >= ?1 AND k < ?2 ORDER BY k LIMIT ?3`

// BeginAttempt implements driver.Records. Requests of this process that meet
// share a transaction and one commit, and what was recorded is on the disk
// before it is answered.
//
// Records outlive a reboot. They are kept by a clock that goes on through suspension
// and follows the wall clock when that is set by more than a second: if the wall clock
// is set ahead, records end earlier by as much.
func (s *Store) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	if err := check.Begin(a, keep); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, a.Key, func(st *record.State, now int64) (bool, error) { return st.Begin(a, now, keep) })
}

// FinishAttempt implements driver.Records.
func (s *Store) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	if err := check.Finish(a, o, keep); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, a.Key, func(st *record.State, now int64) (bool, error) { return st.Finish(a, o, now, keep) })
}

// FindRecord implements driver.Records. It does not wait for the disk.
func (s *Store) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	if err := check.Key(key); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, key, (*record.State).Find)
}

// ForgetRecord implements driver.Records.
func (s *Store) ForgetRecord(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	_, err := s.record(ctx, key, (*record.State).Forget)
	return err
}

// record runs one step of the state machine in a transaction.
func (s *Store) record(ctx context.Context, key string, step func(*record.State, int64) (changed bool, err error)) (driver.Record, error) {
	var r driver.Record
	var refused error
	err := s.do(ctx, func(t *tx) error {
		now, err := t.limitClock()
		if err != nil {
			return err
		}
		st, err := t.loadRecord(key)
		if err != nil {
			return err
		}
		var changed bool
		if changed, refused = step(&st, now); refused != nil {
			return nil
		}
		r = st.Record(key, now)
		if !changed {
			return nil
		}
		if st.Token == 0 {
			return t.s.exec(stDropRecord, []byte(key))
		}
		if err := t.saveRecord(key, st); err != nil {
			return err
		}
		return t.s.exec(stSweepRecords, now)
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return driver.Record{}, err
	}
	return r, nil
}

func (t *tx) loadRecord(key string) (st record.State, err error) {
	var state string
	err = t.s.row(stRecord, []byte(key)).Scan(&state, &st.Token, &st.Owner, &st.Attempts, &st.Began, &st.Finished, &st.Until, &st.Result)
	if errors.Is(err, sql.ErrNoRows) {
		return record.State{}, nil
	}
	st.SetWord(state)
	return st, err
}

func (t *tx) saveRecord(key string, st record.State) error {
	return t.s.exec(stSaveRecord, []byte(key), st.Word(), st.Token, st.Owner, st.Attempts, st.Began, st.Finished, st.Until, st.Result)
}

// ListRecords implements driver.RecordLister.
func (s *Store) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return sqlstore.Pages(func(after string) (page []driver.Record, last string, err error) {
		from, end := sqlstore.Span(prefix, after)
		err = s.read(ctx, func(tx *sql.Tx) error {
			page, last = nil, ""
			now, err := s.readClock(ctx, tx)
			if err != nil {
				return err
			}
			rows, err := tx.QueryContext(ctx, listRecordsSQL, from, end, listPage)
			if err != nil {
				return err
			}
			defer rows.Close()
			n := 0
			var key []byte
			for rows.Next() {
				var state string
				var st record.State
				if err := rows.Scan(&key, &state, &st.Token, &st.Owner, &st.Attempts, &st.Began, &st.Finished, &st.Until, &st.Result); err != nil {
					return err
				}
				st.SetWord(state)
				if n++; st.Exists(now) {
					page = append(page, st.Listed(string(key), now))
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
			if o, valid := kept.At(string(key), now); valid {
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
