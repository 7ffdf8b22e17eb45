package mysqlstore

import (
	"context"
	"database/sql"
	"iter"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/record"
	"github.com/batonhq/baton/internal/sqlstore"
)

var (
	_ driver.Records      = (*Store)(nil)
	_ driver.RecordLister = (*Store)(nil)
)

const (
	listedColumns = `state,token,owner,attempts,TIMESTAMPDIFF(MICROSECOND,'1970-01-01',began),` +
		`IFNULL(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',finished),0),TIMESTAMPDIFF(MICROSECOND,'1970-01-01',until)`
	recordColumns = listedColumns + `,result`
)

// BeginAttempt implements driver.Records, by the server's clock. On a Store from
// Open it takes two round trips: one locks and reads the record, one writes it and
// commits. What was recorded is durable before it is answered, as locks are. A
// fail-over to a replica that lags may forget it: then the operation can happen
// again.
func (s *Store) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	if err := check.Begin(a, keep); err != nil {
		return driver.Record{}, err
	}
	s.sweepEarly(a.Key)
	// Locks the row, and makes it if it is missing so that two first attempts wait for
	// each other.
	lock := exec(words("INSERT INTO baton_record (k,state,token,owner,attempts,began,until) VALUES (", literal(a.Key),
		",'begun',0,'',0,'1970-01-01','1970-01-01') ON DUPLICATE KEY UPDATE until=baton_record.until"))
	return s.changeRecord(ctx, a.Key, lock, func(st *record.State, now int64) (bool, error) { return st.Begin(a, now, keep) })
}

// FinishAttempt implements driver.Records, at the cost of BeginAttempt.
func (s *Store) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	if err := check.Finish(a, o, keep); err != nil {
		return driver.Record{}, err
	}
	lock := statement{
		words("SELECT k FROM baton_record WHERE k=", literal(a.Key), " FOR UPDATE"),
		func(r *sql.Rows) error { return r.Scan(new(string)) },
	}
	return s.changeRecord(ctx, a.Key, lock, func(st *record.State, now int64) (bool, error) { return st.Finish(a, o, now, keep) })
}

// FindRecord implements driver.Records, in a transaction that locks nothing. InnoDB may
// show what is being committed a moment before it is on the disk: a crash of the server
// in that moment undoes an outcome that FindRecord may have returned, but FinishAttempt
// has not yet.
func (s *Store) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	if err := check.Key(key); err != nil {
		return driver.Record{}, err
	}
	var r driver.Record
	err := s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
		t := recordTx{}
		_, err = s.inOne(ctx, statement{
			words("SELECT ", micros, ",", recordColumns, " FROM baton_record WHERE k=", literal(key)),
			func(rows *sql.Rows) error { return t.scan(rows) },
		})
		if err == nil && !t.state.Exists(t.now) {
			return false, driver.ErrNoRecord
		}
		r = t.state.Record(key, t.now)
		return false, err
	})
	return r, err
}

// ForgetRecord implements driver.Records.
func (s *Store) ForgetRecord(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	return s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
		n := 0
		unsure, err = s.inOne(ctx, exec(words("DELETE FROM baton_record WHERE k=", literal(key), " AND until>UTC_TIMESTAMP(6)")),
			statement{"SELECT ROW_COUNT()", func(rows *sql.Rows) error { return rows.Scan(&n) }})
		if err == nil && n == 0 {
			err = driver.ErrNoRecord
		}
		return unsure, err
	})
}

// ListRecords implements driver.RecordLister.
func (s *Store) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return sqlstore.Pages(func(after string) (page []driver.Record, last string, err error) {
		where, any := spanOf(prefix, after)
		if !any {
			return nil, "", nil
		}
		err = s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
			page, last = nil, ""
			n := 0
			_, err = s.inOne(ctx, statement{
				words("SELECT ", micros, ",k,", listedColumns, ",IF(state='failed',result,NULL) FROM baton_record WHERE ", where, " ORDER BY k LIMIT ", integer(listPage)),
				func(rows *sql.Rows) error {
					var now int64
					var state string
					var st record.State
					err := rows.Scan(&now, &last, &state, &st.Token, &st.Owner, &st.Attempts, &st.Began, &st.Finished, &st.Until, &st.Result)
					st.SetWord(state)
					if n++; err == nil && st.Exists(now) {
						page = append(page, st.Listed(last, now))
					}
					return err
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

// inOne runs statements in a transaction of their own, on a Store from Open in one
// round trip. unsure says that it may have been committed in spite of the error.
func (s *Store) inOne(ctx context.Context, all ...statement) (unsure bool, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return false, err
	}
	defer ses.close() // which undoes what was not committed
	return ses.commit(ctx, append(ses.beginning(), all...)...)
}

// changeRecord runs one step of the state machine in a transaction that locks the
// row by a statement of its own, before the clock is read.
func (s *Store) changeRecord(ctx context.Context, key string, lock statement, step func(*record.State, int64) (changed bool, err error)) (driver.Record, error) {
	var r driver.Record
	err := s.call(ctx, func(ctx context.Context) (unsure bool, err error) {
		ses, err := s.session(ctx)
		if err != nil {
			return false, err
		}
		defer ses.close() // which undoes what was not committed
		var t recordTx
		err = ses.run(ctx, append(ses.beginning(), lock, statement{
			words("SELECT ", micros, ",", recordColumns, " FROM baton_record WHERE k=", literal(key)),
			func(rows *sql.Rows) error { return t.scan(rows) },
		}, statement{"SELECT " + micros, func(rows *sql.Rows) error { return rows.Scan(&t.now) }})...)
		if err != nil {
			return false, err
		}
		changed, err := step(&t.state, t.now)
		if err != nil {
			return false, err
		}
		if changed {
			if unsure, err := t.commit(ctx, ses, key); err != nil {
				return unsure, err
			}
			s.recorded.Store(true)
		}
		r = t.state.Record(key, t.now)
		return false, nil
	})
	return r, err
}

// A recordTx is a record as it is in a transaction, and its clock.
type recordTx struct {
	now   int64
	state record.State
}

func (t *recordTx) scan(row scanner) error {
	var state string
	st := &t.state
	err := row.Scan(&t.now, &state, &st.Token, &st.Owner, &st.Attempts, &st.Began, &st.Finished, &st.Until, &st.Result)
	st.SetWord(state)
	return err
}

// commit writes the record, which has a row, and commits, mostly in one round trip.
// unsure says that it may have been committed in spite of the error.
func (t *recordTx) commit(ctx context.Context, ses *session, key string) (unsure bool, err error) {
	st := t.state
	finished, result := "NULL", "NULL"
	if st.Finished != 0 {
		finished, result = stamp(st.Finished), literal(string(st.Result))
	}
	return ses.commit(ctx, exec(words("UPDATE baton_record SET state='", st.Word(), "',token=", integer(st.Token), ",owner=", literal(st.Owner),
		",attempts=", integer(st.Attempts), ",began=", stamp(st.Began), ",finished=", finished, ",until=", stamp(st.Until),
		",result=", result, " WHERE k=", literal(key))))
}

// sweepRecords removes expired records. It skips those that a transaction
// has locked.
func (s *Store) sweepRecords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for more := true; more; {
		old, err := s.sweepSomeRecords(ctx)
		more = err == nil && old == sweepList // what fails is tried again later
	}
}

func (s *Store) sweepSomeRecords(ctx context.Context) (n int, err error) {
	ses, err := s.session(ctx)
	if err != nil {
		return 0, err
	}
	defer ses.close()
	var old list
	err = ses.run(ctx, append(ses.beginning(), statement{
		words("SELECT k FROM baton_record WHERE until<=UTC_TIMESTAMP(6) ORDER BY until LIMIT ", integer(sweepList), " FOR UPDATE SKIP LOCKED"),
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
	// index, and this condition, the server reads a small table as a whole, and waits
	// for rows that other transactions have locked.
	remove := exec("DELETE r FROM baton_record r FORCE INDEX (PRIMARY) WHERE k IN (" + old.String() + ") AND until<=UTC_TIMESTAMP(6)")
	if err := ses.run(ctx, remove, exec(toCommit), exec(restore)); err != nil {
		return 0, err
	}
	ses.done()
	return n, nil
}

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
