package pgstore

import (
	"context"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

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
	recordColumns = ` how, (r).token, (r).owner, (r).attempts, (r).state, (r).began, (r).finished, (r).result, rest FROM `

	beginRecordSQL  = `SELECT` + recordColumns + `baton_record_begin_1($1::bytea, $2::bigint, $3::text, $4::bigint)`
	finishRecordSQL = `SELECT` + recordColumns + `baton_record_finish_1($1::bytea, $2::bigint, $3::text, $4::bytea, $5::bigint)`
	findRecordSQL   = `SELECT` + recordColumns + `baton_record_find_1($1::bytea)`
	forgetRecordSQL = `SELECT` + recordColumns + `baton_record_forget_1($1::bytea)`

	// Expired records are included: without them a page could read any number of rows.
	listRecordsSQL = `SELECT key, state, token, owner, attempts, began, finished, (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint,
		CASE state WHEN 'failed' THEN result END FROM baton_record WHERE key >= $1::bytea AND key < $2::bytea ORDER BY key LIMIT $3::int`
)

// BeginAttempt implements driver.Records, in one round trip, by one function on
// the server and its clock. What was recorded is on the disk before it is
// answered, whatever synchronous_commit says. A fail-over to a standby that is not
// synchronous may forget it: then the operation can happen again.
func (s *Store) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	if err := check.Begin(a, keep); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, a, beginRecordSQL, []byte(a.Key), a.Token, a.Owner, ceilMicros(keep))
}

// FinishAttempt implements driver.Records.
func (s *Store) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	if err := check.Finish(a, o, keep); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, a, finishRecordSQL, []byte(a.Key), a.Token, record.Word(true, o), o.Result, ceilMicros(keep))
}

// FindRecord implements driver.Records.
func (s *Store) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	if err := check.Key(key); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, driver.Attempt{Key: key}, findRecordSQL, []byte(key))
}

// ForgetRecord implements driver.Records.
func (s *Store) ForgetRecord(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	_, err := s.record(ctx, driver.Attempt{Key: key}, forgetRecordSQL, []byte(key))
	return err
}

// record asks one of the functions. Calls about keys, not attempts, have no token.
func (s *Store) record(ctx context.Context, a driver.Attempt, sql string, args ...any) (driver.Record, error) {
	// What is not there is NULL.
	var how int
	var token, attempts, rest *int64
	var owner, state *string
	var began, finished *time.Time
	var result []byte
	err := s.row(ctx, sql, args, &how, &token, &owner, &attempts, &state, &began, &finished, &result, &rest)
	if err != nil {
		return driver.Record{}, err
	}
	done, o := record.Read(orZero(state))
	o.Result = result
	switch {
	case how == 0 && a.Token == 0:
		return driver.Record{}, driver.ErrNoRecord
	case how == 0:
		return driver.Record{}, &driver.SupersededError{Key: a.Key, Token: a.Token, Last: orZero(token), Done: done}
	}
	return driver.Record{
		Key: a.Key, Token: orZero(token), Owner: orZero(owner), Attempts: orZero(attempts),
		Done: done, Outcome: o,
		Began: orZero(began), Finished: orZero(finished),
		Left: max(micros(orZero(rest)), 0),
	}, nil
}

// ListRecords implements driver.RecordLister.
func (s *Store) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return sqlstore.Pages(func(after string) (page []driver.Record, last string, err error) {
		from, end := sqlstore.Span(prefix, after)
		err = s.ask(ctx, listRecordsSQL, []any{from, end, int32(listPage)}, func(rows pgx.Rows) error {
			page, last = nil, ""
			n := 0
			var key []byte
			for rows.Next() {
				var r driver.Record
				var state string
				var finished *time.Time
				var rest int64
				var result []byte
				if err := rows.Scan(&key, &state, &r.Token, &r.Owner, &r.Attempts, &r.Began, &finished, &rest, &result); err != nil {
					return err
				}
				if n++; rest <= 0 {
					continue
				}
				r.Done, r.Outcome = record.Read(state)
				r.Key, r.Result = string(key), result
				r.Finished, r.Left = orZero(finished), micros(rest)
				page = append(page, r)
			}
			if n == listPage {
				last = string(key)
			}
			return rows.Err()
		})
		return page, last, err
	})
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func ceilMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

var _ limits.Overrider = (*Store)(nil)

const (
	setOverrideSQL   = `SELECT baton_override_set_1($1::bytea, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::int)`
	listOverridesSQL = `SELECT key, n, period, burst, (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint
		FROM baton_override WHERE until > clock_timestamp()`
)

// SetOverride implements limits.Overrider, by one function on the server and its clock.
// What was set is on the disk before it is answered.
func (s *Store) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil {
		return err
	}
	var done int
	err := s.row(ctx, setOverrideSQL, []any{[]byte(o.Key), o.N, o.Period.Microseconds(), o.Burst, ceilMicros(keep), int32(limits.MaxOverrides)}, &done)
	if err == nil && done == 0 {
		err = &limits.OverridesFullError{Key: o.Key, Store: traits.Store}
	}
	return err
}

// Overrides implements limits.Overrider.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	err = s.ask(ctx, listOverridesSQL, nil, func(rows pgx.Rows) error {
		all = nil
		for rows.Next() {
			var key []byte
			var o limits.Override
			var period, left int64
			if err := rows.Scan(&key, &o.N, &period, &o.Burst, &left); err != nil {
				return err
			}
			if o.Key, o.Period, o.Left = string(key), micros(period), micros(left); left > 0 {
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
