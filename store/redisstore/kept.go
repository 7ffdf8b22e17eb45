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
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/kept"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

var (
	_ driver.Records      = (*Store)(nil)
	_ driver.RecordLister = (*Store)(nil)
	_ limits.Overrider    = (*Store)(nil)
)

// records and overrides implement driver.Records, driver.RecordLister and
// limits.Overrider, by the clock of the server. If the name of a record has a value of
// another program, the error is a *driver.KeyError; for that of the overrides, a
// *limits.Error.
//
// Redis may forget an answer: a failover loses what the new primary does not know, a
// crash what is not on the disk, FLUSHALL everything. An operation whose outcome is
// forgotten can run again. One whose beginning is forgotten cannot finish, and no longer
// blocks attempts with lower tokens. A server that has become a replica still answers
// FindRecord, with what it knew last.
//
// A record is a string with an expiry of its own. All overrides are in one hash, in
// Cluster on one slot, so that a list of them is one script.
type (
	records   = kept.Records
	overrides = kept.Overrides
)

// swapText is one script.
func (s *Store) swapText(ctx context.Context, f kept.Folder, key, old, next string, keep time.Duration) (is kept.Text, swapped bool, err error) {
	name, field := s.names.beside(key).record(), ""
	if f == kept.OverridesFolder {
		name, field = s.names.overrides(), key
	}
	answer, err := s.run(ctx, swapScript, []string{name}, []string{
		"swap", old, next, strconv.FormatInt((keep + time.Microsecond - 1).Microseconds(), 10), field,
	})
	if err != nil {
		return is, false, err
	}
	v := list(answer)
	switch {
	case len(v) == 2 && number(v[0]) == 2:
		return is, false, foreign(f, key, name, text(v[1]))
	case len(v) != 3:
		return is, false, strange(swapScript, answer)
	case number(v[0]) == 0:
		return kept.Text{Text: text(v[1]), Left: leftOf(v[2])}, false, nil
	case next == "":
		return is, true, nil
	}
	return kept.Text{Text: next, Left: keep}, true, nil
}

// foreign is the error about another program's value in place of a text.
func foreign(f kept.Folder, key, name, kind string) error {
	if f == kept.OverridesFolder {
		return &limits.Error{Key: key, Reason: fmt.Sprintf("redis has a %s under the name %q, where overrides of limits are kept: remove it", kind, name)}
	}
	return &driver.KeyError{Key: key, Reason: fmt.Sprintf("redis has a %s that is no record under the name %q: remove it, or choose another key", kind, name)}
}

func leftOf(ms any) time.Duration { return max(time.Duration(number(ms))*time.Millisecond, 0) }

// lookAtOnce is the number of texts that are read in one round trip.
const lookAtOnce = 100

// listTexts walks all names of the database by SCAN for records.
func (s *Store) listTexts(ctx context.Context, f kept.Folder, prefix string) iter.Seq2[kept.Text, error] {
	return func(yield func(kept.Text, error) bool) {
		var err error
		if f == kept.OverridesFolder {
			err = s.listOverrides(ctx, yield)
		} else {
			seen := map[string]bool{} // SCAN may repeat names
			err = s.scanBeside(ctx, "o:", "string", prefix, func(names []string) error {
				names = slices.DeleteFunc(names, func(name string) bool {
					again := seen[name]
					seen[name] = true
					return again
				})
				for some := range slices.Chunk(names, lookAtOnce) {
					if err := s.look(ctx, some, yield); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err != nil && err != errStop {
			yield(kept.Text{}, err)
		}
	}
}

// look yields the records with these names.
func (s *Store) look(ctx context.Context, names []string, yield func(kept.Text, error) bool) error {
	calls := make([]wire.Call, len(names))
	for i, name := range names {
		calls[i] = wire.Call{Script: swapScript, Keys: []string{name}, Args: []string{"look", "", "", "0", "", strconv.Itoa(kept.Cut)}}
	}
	for i, r := range s.runAll(ctx, calls) {
		if r.Err != nil {
			return r.Err
		}
		key, _ := s.names.keyOf("o:", names[i])
		if v := list(r.Value); len(v) == 3 && text(v[1]) != "" && !yield(kept.Text{Key: key, Text: text(v[1]), Left: leftOf(v[2])}, nil) {
			return errStop
		}
	}
	return nil
}

func (s *Store) listOverrides(ctx context.Context, yield func(kept.Text, error) bool) error {
	name := s.names.overrides()
	answer, err := s.run(ctx, swapScript, []string{name}, []string{"list", "", "", "0", ""})
	if err != nil {
		return err
	}
	v := list(answer)
	switch {
	case len(v) == 2:
		return foreign(kept.OverridesFolder, "", name, text(v[1]))
	case len(v) == 0:
		return strange(swapScript, answer)
	}
	now := number(v[0])
	for i := 1; i+1 < len(v); i += 2 {
		end, rest, _ := strings.Cut(text(v[i+1]), " ")
		left := time.Duration(number(end)-now) * time.Microsecond
		if left > 0 && !yield(kept.Text{Key: text(v[i]), Text: rest, Left: left}, nil) {
			return errStop
		}
	}
	return nil
}
