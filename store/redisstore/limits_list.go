package redisstore

import (
	"context"
	"iter"
	"slices"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

var _ limits.Lister = (*Store)(nil)

// mostKeys bounds the keys that ListStates has in memory, times two.
const mostKeys = 1_000_000

// ListStates implements limits.Lister. Redis has no order of names, and an index would
// cost a write with each decision. So ListStates first walks all names of the database by
// SCAN, once for each million limits. Then it reads the states in the order of their
// keys, a hundred in a round trip. No call occupies the server for long. In Cluster it
// walks all primaries.
func (s *Store) ListStates(ctx context.Context, prefix, after string) iter.Seq2[limits.State, error] {
	return s.listStates(ctx, prefix, after, mostKeys)
}

func (s *Store) listStates(ctx context.Context, prefix, after string, most int) iter.Seq2[limits.State, error] {
	return func(yield func(limits.State, error) bool) {
		for more := true; more; {
			var keys []string
			var err error
			if keys, more, err = s.firstKeys(ctx, prefix, after, most); err != nil {
				yield(limits.State{}, err)
				return
			}
			for some := range slices.Chunk(keys, lookAtOnce) {
				if err := s.lookAtLimits(ctx, some, yield); err != nil {
					if err != errStop {
						yield(limits.State{}, err)
					}
					return
				}
				after = some[len(some)-1]
			}
		}
	}
}

// firstKeys returns the first keys of limits that begin with prefix and come after after.
// more says that there are more than most of them.
func (s *Store) firstKeys(ctx context.Context, prefix, after string, most int) (keys []string, more bool, err error) {
	cut := func() {
		slices.Sort(keys)
		keys = slices.Compact(keys) // SCAN may repeat names
		if len(keys) > most {
			clear(keys[most:])
			keys, more = keys[:most], true
		}
	}
	err = s.scanBeside(ctx, "r:", "string", prefix, func(names []string) error {
		for _, name := range names {
			if key, _ := s.names.keyOf("r:", name); key > after {
				keys = append(keys, key)
			}
		}
		if len(keys) >= 2*most {
			cut()
		}
		return nil
	})
	cut()
	return keys, more, err
}

// lookAtLimits yields the states of these keys.
func (s *Store) lookAtLimits(ctx context.Context, keys []string, yield func(limits.State, error) bool) error {
	calls := make([]wire.Call, len(keys))
	for i, key := range keys {
		calls[i] = wire.Call{Script: keptScript, Keys: []string{s.names.beside(key).limit()}}
	}
	for i, r := range s.runAll(ctx, calls) {
		if r.Err != nil {
			return r.Err
		}
		a := list(r.Value)
		if len(a) != 4 {
			continue
		}
		now, ends := number(a[0])*1_000_000+number(a[1]), int64(0)
		if left := number(a[2]); left >= 0 {
			ends = now + 1000*(left+1) // the server cuts off parts of a millisecond
		}
		if st, ok := rate.Describe(keys[i], rate.Parse(text(a[3])), now, ends); ok && !yield(st, nil) {
			return errStop
		}
	}
	return nil
}
