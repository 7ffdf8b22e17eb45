package top

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// A sketch finds the keys with the most among any number of keys. It has counters for
// some of them. A key without a counter gets a new one, which begins with floor: the most
// that the key may have had when it lost its last counter. When there are twice as many
// counters as size, those with the least are removed, and the highest of these is the new
// floor.
//
// So no count is below the truth. Whenever floor rises, more than size keys had at least
// the difference beyond the earlier floor: floor times size is never above the total.
// the total.
type sketch struct {
	size     int
	total    int64
	floor    int64
	counters []counter
	index    []int32 // by hash: 1 plus the index of a counter; 0: none
	scratch  []int64
}

type counter struct {
	key   string
	hash  uint64
	count int64
	over  int64 // the floor at its beginning
}

func newSketch(size int) *sketch { return &sketch{size: size} }

// add counts n for a key with this hash, and returns the stored copy of the key.
func (s *sketch) add(key string, hash uint64, n int64) (kept string) {
	s.total = plus(s.total, n)
	c := s.find(key, hash)
	if c == nil {
		if len(s.counters) == 2*s.size {
			s.purge()
		}
		// The caller's key may be part of a long text.
		s.counters = append(s.counters, counter{strings.Clone(key), hash, s.floor, s.floor})
		s.enter(len(s.counters) - 1)
		c = &s.counters[len(s.counters)-1]
	}
	c.count = plus(c.count, n)
	return c.key
}

// purge keeps the size counters with the most.
func (s *sketch) purge() {
	s.scratch = s.scratch[:0]
	for i := range s.counters {
		s.scratch = append(s.scratch, s.counters[i].count)
	}
	slices.Sort(s.scratch)
	s.floor = s.scratch[len(s.scratch)-s.size-1]
	least := s.scratch[len(s.scratch)-s.size]
	ties := 0 // how many of those equal to the least stay
	for _, count := range s.scratch[len(s.scratch)-s.size:] {
		if count > least {
			break
		}
		ties++
	}
	kept := s.counters[:0]
	for _, c := range s.counters {
		if c.count == least {
			ties--
		}
		if c.count > least || c.count == least && ties >= 0 {
			kept = append(kept, c)
		}
	}
	clear(s.counters[len(kept):])
	s.counters = kept
	clear(s.index)
	for i := range s.counters {
		s.enter(i)
	}
}

func (s *sketch) clear() {
	s.total, s.floor = 0, 0
	clear(s.index)
	clear(s.counters)
	s.counters = s.counters[:0]
}

// copy is a copy for ranking.
func (s *sketch) copy() sketch {
	return sketch{size: s.size, total: s.total, floor: s.floor, counters: slices.Clone(s.counters)}
}

// ranking returns the n keys with the most, at most size, of a copy.
func (s *sketch) ranking(n int) Ranking {
	all := make([]Count, len(s.counters))
	for i, c := range s.counters {
		all[i] = Count{c.key, c.count, c.over}
	}
	slices.SortFunc(all, func(a, b Count) int { return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Key, b.Key)) })
	r := Ranking{Total: s.total, Rest: s.floor}
	if n < len(all) {
		r.Rest = max(r.Rest, all[n].Count)
		all = all[:n]
	}
	r.Keys = all
	return r
}

// The index is a table with open addressing, at least half free. A map would hash the key
// again for each of the three sketches, and all keys with each purge.

func (s *sketch) find(key string, hash uint64) *counter {
	if len(s.index) == 0 {
		return nil
	}
	mask := uint64(len(s.index) - 1)
	for i := hash & mask; s.index[i] != 0; i = (i + 1) & mask {
		if c := &s.counters[s.index[i]-1]; c.hash == hash && c.key == key {
			return c
		}
	}
	return nil
}

func (s *sketch) enter(i int) {
	if 2*len(s.counters) > len(s.index) {
		s.index = make([]int32, max(64, 2*len(s.index)))
		for i := range len(s.counters) - 1 {
			s.enter(i)
		}
	}
	mask := uint64(len(s.index) - 1)
	at := s.counters[i].hash & mask
	for s.index[at] != 0 {
		at = (at + 1) & mask
	}
	s.index[at] = int32(i + 1)
}

// plus is a sum of non-negative numbers that does not overflow.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
