package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/record"
)

var _ driver.Records = (*Store)(nil)

// BeginAttempt implements driver.Records: one script, by the clock of the server. If
// the server keeps something else under the name of a record, the error is a
// *driver.KeyError.
//
// Redis may forget what it has answered: at a fail-over what the new primary has
// not heard of, at a crash what is not on the disk, by FLUSHALL everything. An
// operation whose outcome is forgotten can happen again. One whose beginning is
// forgotten cannot finish, and does not hold up attempts with lower tokens any
// more.
func (s *Store) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	if err := check.Begin(a, keep); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, a, "begin", keep, a.Owner, "")
}

// FinishAttempt implements driver.Records.
func (s *Store) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	if err := check.Finish(a, o, keep); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, a, "finish", keep, record.Word(true, o.Failed), string(o.Result))
}

// FindRecord implements driver.Records. A server that has become a replica still
// answers, with what it last heard.
func (s *Store) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	if err := check.Key(key); err != nil {
		return driver.Record{}, err
	}
	return s.record(ctx, driver.Attempt{Key: key}, "find", 0, "", "")
}

// ForgetRecord implements driver.Records.
func (s *Store) ForgetRecord(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	_, err := s.record(ctx, driver.Attempt{Key: key}, "forget", 0, "", "")
	return err
}

// record runs the script record. Calls about keys, not attempts, have no token.
func (s *Store) record(ctx context.Context, a driver.Attempt, act string, keep time.Duration, ownerOrState, result string) (driver.Record, error) {
	name := s.names.beside(a.Key).record()
	answer, err := s.run(ctx, recordScript, []string{name}, []string{
		act, strconv.FormatInt(a.Token, 10), strconv.FormatInt(ceilMillis(keep), 10), ownerOrState, result,
	})
	if err != nil {
		return driver.Record{}, err
	}
	v := list(answer)
	switch {
	case len(v) == 9 && number(v[0]) == 1:
		state := text(v[5])
		r := driver.Record{
			Key: a.Key, Token: number(v[2]), Owner: text(v[3]), Attempts: number(v[4]),
			Done:    state != record.Begun,
			Outcome: driver.Outcome{Failed: state == record.Failed, Result: []byte(text(v[8]))},
			Began:   momentOf(v[6]), Finished: momentOf(v[7]),
			Left: max(time.Duration(number(v[1]))*time.Millisecond, 0),
		}
		return r, nil
	case len(v) == 3 && number(v[0]) == 0 && a.Token == 0:
		return driver.Record{}, driver.ErrNoRecord
	case len(v) == 3 && number(v[0]) == 0:
		state := text(v[2])
		return driver.Record{}, &driver.SupersededError{
			Key: a.Key, Token: a.Token, Last: number(v[1]), Done: state != record.Begun && state != "",
		}
	case len(v) == 2 && number(v[0]) == 2:
		return driver.Record{}, &driver.KeyError{Key: a.Key, Reason: fmt.Sprintf(
			"redis has a %s that is no record under the name %q: remove it, or choose another key", text(v[1]), name)}
	}
	return driver.Record{}, strange(recordScript, answer)
}

// momentOf reads microseconds since 1970, or "".
func momentOf(v any) time.Time {
	if us := number(v); us != 0 {
		return time.UnixMicro(us)
	}
	return time.Time{}
}
