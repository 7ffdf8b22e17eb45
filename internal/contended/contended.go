// Package contended remembers which keys another claim wanted at their last use, so that
// the next use can begin with the best request. Several keys may share a flag, which only
// costs a little speed.
package contended

import (
	"hash/maphash"
	"sync/atomic"
)

// Keys is a set of contended keys, empty at first. Its methods are safe for concurrent
// use.
type Keys struct{ flags [1024]atomic.Bool }

var seed = maphash.MakeSeed()

func (k *Keys) flag(key string) *atomic.Bool {
	return &k.flags[maphash.String(seed, key)%uint64(len(k.flags))]
}

func (k *Keys) Has(key string) bool { return k.flag(key).Load() }

func (k *Keys) Set(key string, contended bool) {
	if p := k.flag(key); p.Load() != contended { // a store invalidates other processors' caches
		p.Store(contended)
	}
}
