package redisstore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/record"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

var (
	_ driver.Records      = (*Store)(nil)
	_ driver.RecordLister = (*Store)(nil)
	_ limits.Overrider    = (*Store)(nil)
)

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
	return s.record(ctx, a, "finish", keep, record.Word(true, o), string(o.Result))
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
		return recordOf(a.Key, v), nil
	case len(v) == 3 && number(v[0]) == 0 && a.Token == 0:
		return driver.Record{}, driver.ErrNoRecord
	case len(v) == 3 && number(v[0]) == 0:
		done, _ := record.Read(text(v[2]))
		return driver.Record{}, &driver.SupersededError{Key: a.Key, Token: a.Token, Last: number(v[1]), Done: done}
	case len(v) == 2 && number(v[0]) == 2:
		return driver.Record{}, &driver.KeyError{Key: a.Key, Reason: fmt.Sprintf(
			"redis has a %s that is no record under the name %q: remove it, or choose another key", text(v[1]), name)}
	}
	return driver.Record{}, strange(recordScript, answer)
}

// recordOf reads what the script record answers.
func recordOf(key string, v []any) driver.Record {
	done, o := record.Read(text(v[5]))
	if result := text(v[8]); result != "" {
		o.Result = []byte(result)
	}
	return driver.Record{
		Key: key, Token: number(v[2]), Owner: text(v[3]), Attempts: number(v[4]),
		Done: done, Outcome: o,
		Began: momentOf(v[6]), Finished: momentOf(v[7]),
		Left: max(time.Duration(number(v[1]))*time.Millisecond, 0),
	}
}

// lookAtOnce is how many records ListRecords looks at in one round trip.
const lookAtOnce = 100

// ListRecords implements driver.RecordLister. It walks all names of the database by
// SCAN, and leaves out what is no record.
func (s *Store) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		seen := map[string]bool{} // SCAN may repeat itself
		err := s.scanBeside(ctx, "o:", "hash", prefix, func(names []string) error {
			names = slices.DeleteFunc(names, func(name string) bool {
				key, _ := s.names.keyOf("o:", name)
				again := seen[key]
				seen[key] = true
				return again
			})
			for some := range slices.Chunk(names, lookAtOnce) {
				if err := s.look(ctx, some, yield); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && err != errStop {
			yield(driver.Record{}, err)
		}
	}
}

// look shows the records with these names.
func (s *Store) look(ctx context.Context, names []string, yield func(driver.Record, error) bool) error {
	calls := make([]wire.Call, len(names))
	for i, name := range names {
		calls[i] = wire.Call{Script: recordScript, Keys: []string{name}, Args: []string{"look", "0", "0", "", ""}}
	}
	for i, r := range s.runAll(ctx, calls) {
		if r.Err != nil {
			return r.Err
		}
		key, _ := s.names.keyOf("o:", names[i])
		if v := list(r.Value); len(v) == 9 && number(v[0]) == 1 && !yield(recordOf(key, v), nil) {
			return errStop
		}
	}
	return nil
}

// momentOf reads microseconds since 1970, or "".
func momentOf(v any) time.Time {
	if us := number(v); us != 0 {
		return time.UnixMicro(us)
	}
	return time.Time{}
}

// SetOverride implements limits.Overrider: one script, by the clock of the server. In
// Cluster all overrides lie on one slot. Redis may forget an override, as it may forget
// what was taken: see Take. If the server keeps something else under the name of the
// overrides, the error is a *limits.Error.
func (s *Store) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil {
		return err
	}
	kept := rate.NewOverride(o, 0, keep)
	end := strconv.FormatInt(kept.Until, 10)
	v, err := s.overrides(ctx, o.Key, strings.TrimSuffix(kept.Text(), end), end)
	if err == nil && number(v[0]) == 0 {
		err = &limits.OverridesFullError{Key: o.Key, Store: traits.Store}
	}
	return err
}

// Overrides implements limits.Overrider: one script.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	v, err := s.overrides(ctx, "", "", "0")
	if err != nil {
		return nil, err
	}
	if len(v)%2 != 0 {
		return nil, strange(overrideScript, v)
	}
	now := number(v[1])
	for i := 2; i < len(v); i += 2 {
		// What other programs have put there is left out.
		if kept, ok := rate.ParseOverride(text(v[i+1])); ok {
			if o, lasts := kept.At(text(v[i]), now); lasts {
				all = append(all, o)
			}
		}
	}
	return all, nil
}

// overrides runs the script override, and returns an answer that begins with 0 or 1.
func (s *Store) overrides(ctx context.Context, key, numbers, keep string) ([]any, error) {
	name := s.names.overrides()
	answer, err := s.run(ctx, overrideScript, []string{name}, []string{key, numbers, keep, strconv.Itoa(limits.MaxOverrides)})
	if err != nil {
		return nil, err
	}
	v := list(answer)
	switch {
	case len(v) == 2 && number(v[0]) == 2:
		return nil, &limits.Error{Key: key, Reason: fmt.Sprintf(
			"redis has a %s under the name %q, where overrides of limits are kept: remove it", text(v[1]), name)}
	case len(v) == 0 || key == "" && len(v) < 2:
		return nil, strange(overrideScript, answer)
	}
	return v, nil
}
