// Package contended remembers which keys were contended when they were used last: another
// claim wanted them, too. So the next use can begin with the request that is best for
// that. Several keys may share a flag, which costs a little speed and nothing else.
package contended

import (
	"hash/maphash"
	"sync/atomic"
)

// Keys is a set of contended keys, empty at first. Its methods may be called by several
// goroutines at the same time.
type Keys struct{ flags [1024]atomic.Bool }

var seed = maphash.MakeSeed()

func (k *Keys) flag(key string) *atomic.Bool {
	return &k.flags[maphash.String(seed, key)%uint64(len(k.flags))]
}

// Has reports whether the key was contended.
func (k *Keys) Has(key string) bool { return k.flag(key).Load() }

// Set remembers whether the key was contended.
func (k *Keys) Set(key string, contended bool) {
	if p := k.flag(key); p.Load() != contended { // a store would take it from other processors' caches
		p.Store(contended)
	}
}
