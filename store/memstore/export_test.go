package memstore

import "github.com/batonhq/baton/internal/kept"

// Forget removes all that the store keeps of key, except for the watches.
func (s *Store) Forget(key string) {
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.keys, key)
}

// Keys counts the keys that the store remembers, and the keys that its maps
// have had room for since they were made.
func (s *Store) Keys() (keys, room int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		keys += len(sh.keys)
		room += sh.peak
		sh.mu.Unlock()
	}
	return keys, room
}

// Watches counts the watches.
func (s *Store) Watches() (n int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += len(sh.watches)
		sh.mu.Unlock()
	}
	return n
}

// Limits counts what the store remembers of limits: states and IDs.
func (s *Store) Limits() (n int) {
	for i := range s.limits {
		sh := &s.limits[i]
		sh.mu.Lock()
		n += len(sh.states) + len(sh.ids)
		sh.mu.Unlock()
	}
	return n
}

// Buckets counts the token buckets that are in the tables.
func (s *Store) Buckets() (n int) {
	for i := range s.limits {
		sh := &s.limits[i]
		sh.mu.Lock()
		if t := sh.buckets.Load(); t != nil {
			for j := range t.slots {
				if e := t.slots[j].Load(); e != nil && e != removed {
					n++
				}
			}
		}
		sh.mu.Unlock()
	}
	return n
}

// Records counts what the store remembers of operations.
func (s *Store) Records() int {
	s.texts.mu.Lock()
	defer s.texts.mu.Unlock()
	return len(s.texts.all[kept.RecordsFolder])
}

// Divide divides as the limits do.
func Divide(n, by int64) int64 { return divideBy(by).of(n) }
