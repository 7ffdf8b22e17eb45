// Package contended remembers which keys others wanted, too, when they were used last,
// so that the next use can take the way that is best then. Keys may share a place, which
// costs a little speed and nothing else.
package contended

import (
	"hash/maphash"
	"sync/atomic"
)

// Keys remembers. The zero value has met nobody. Its methods may be called by several
// goroutines at the same time.
type Keys struct{ places [1024]atomic.Bool }

var seed = maphash.MakeSeed()

func (k *Keys) place(key string) *atomic.Bool {
	return &k.places[maphash.String(seed, key)%uint64(len(k.places))]
}

// Has reports whether others wanted the key.
func (k *Keys) Has(key string) bool { return k.place(key).Load() }

// Set remembers whether they did.
func (k *Keys) Set(key string, contended bool) {
	if p := k.place(key); p.Load() != contended { // else it would be taken from other processors' caches
		p.Store(contended)
	}
}
