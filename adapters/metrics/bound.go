package metrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// bound keeps the series for combinations K of values, of which there are few. A look-up
// reads a map that never changes.
type bound[K comparable, S any] struct {
	mu  sync.Mutex
	all atomic.Pointer[map[K]S]
}

// get returns the series of k, which make makes at the first call.
func (b *bound[K, S]) get(k K, make func(K) S) S {
	if all := b.all.Load(); all != nil {
		if s, ok := (*all)[k]; ok {
			return s
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[K]S{}
	if old := b.all.Load(); old != nil {
		all = maps.Clone(*old)
	}
	s, ok := all[k]
	if !ok {
		s = make(k)
		all[k] = s
		b.all.Store(&all)
	}
	return s
}

// names admits the first MaxClasses values of a label.
type names struct {
	mu  sync.Mutex
	all atomic.Pointer[map[string]string]
}

// admit returns name, or "other" if there are too many already. The returned string does
// not keep a key in memory.
func (n *names) admit(name string) string {
	if all := n.all.Load(); all != nil {
		if s, ok := (*all)[name]; ok {
			return s
		}
		if len(*all) >= MaxClasses {
			return other
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]string{}
	if old := n.all.Load(); old != nil {
		all = maps.Clone(*old)
	}
	if s, ok := all[name]; ok {
		return s
	}
	if len(all) >= MaxClasses {
		return other
	}
	s := strings.Clone(strings.ToValidUTF8(name, "�"))
	all[strings.Clone(name)] = s
	n.all.Store(&all)
	return s
}
