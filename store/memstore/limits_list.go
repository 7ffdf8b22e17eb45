package memstore

import (
	"context"
	"hash/maphash"
	"iter"
	"slices"
	"strings"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

var _ limits.Lister = (*Store)(nil)

// ListStates implements limits.Lister without pages: it walks all keys of a shard at
// once, and holds the states to show in memory.
func (s *Store) ListStates(ctx context.Context, prefix, after string) iter.Seq2[limits.State, error] {
	return func(yield func(limits.State, error) bool) {
		var keys []string
		for i := range s.limits {
			keys = s.limits[i].keys(keys, func(key string) bool { return key > after && strings.HasPrefix(key, prefix) })
		}
		slices.Sort(keys)
		if err := s.check(ctx); err != nil {
			yield(limits.State{}, err)
			return
		}
		for _, key := range keys {
			if err := s.check(ctx); err != nil {
				yield(limits.State{}, err)
				return
			}
			if st, ok := s.describe(key); ok && !yield(st, nil) {
				return
			}
		}
	}
}

// keys appends the keys of the shard that want accepts.
func (sh *limitShard) keys(all []string, want func(string) bool) []string {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for key := range sh.states {
		if want(key) {
			all = append(all, key)
		}
	}
	if t := sh.buckets.Load(); t != nil {
		for i := range t.slots {
			if e := t.slots[i].Load(); e != nil && e != removed && want(e.key) {
				all = append(all, e.key)
			}
		}
	}
	return all
}

// describe describes the state of a key, if there is one.
func (s *Store) describe(key string) (limits.State, bool) {
	hash := maphash.String(s.seed, key)
	sh := &s.limits[hash%numShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	if e := sh.buckets.Load().find(hash, key); e != nil {
		full, l := e.full.Load(), e.limit // not gone while the mutex is held
		return rate.Describe(key, l.rate.FullAt(s.base+full/l.tokens, full%l.tokens), now.Microseconds(), 0)
	}
	state := sh.state(key, now)
	if len(state) == 0 {
		return limits.State{}, false
	}
	return rate.Describe(key, state, now.Microseconds(), 0)
}
