package memstore

import (
	"context"
	"slices"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// AcquireAll implements driver.Together, for locks of any kind.
func (s *Store) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	if err := check.Together(r, traits); err != nil {
		return nil, err
	}
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	// Lock the shards in the same order in every call.
	var shards []uint64
	for _, q := range r {
		shards = append(shards, s.shardOf(q.Key))
	}
	slices.Sort(shards)
	shards = slices.Compact(shards)
	for _, i := range shards {
		s.shards[i].mu.Lock()
	}
	var wake wakes
	defer func() { wake.all() }()
	defer func() {
		for _, i := range shards {
			s.shards[i].mu.Unlock()
		}
	}()

	now := s.now()
	grants := make([]driver.Grant, len(r))
	var err error
	done := 0
	for ; done < len(r) && err == nil; done++ {
		sh := s.shard(r[done].Key)
		st := sh.keys[r[done].Key]
		if st == nil {
			st = sh.create(r[done].Key, now)
		}
		if grants[done], err = st.Acquire(now, r[done]); err == nil && grants[done].Waiting {
			err = &driver.HeldError{Key: r[done].Key} // its position is older than this call
		}
		wake = append(wake, sh.settle(r[done].Key, st, now)...)
	}
	if err == nil {
		return grants, nil
	}
	for _, q := range r { // also the grants of an earlier attempt with these IDs
		sh := s.shard(q.Key)
		if st := sh.keys[q.Key]; st != nil && st.Renew(now, q.Claim, q.TTL).State == driver.Held {
			_ = st.Release(now, q.Claim)
			wake = append(wake, sh.settle(q.Key, st, now)...)
		}
	}
	return nil, err
}
