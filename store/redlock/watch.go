package redlock

import (
	"slices"

	"github.com/batonhq/baton/driver"
)

// Watch implements driver.Watcher. It calls f when a node says that it has granted or
// revoked c. The hint never says that the lock is granted: one node cannot know.
func (s *Store) Watch(c driver.Claim, f func(driver.Hint)) (stop func()) {
	if s.closed.Load() {
		return func() {}
	}
	st := s.claim(c.Key, c.ID, true)
	w := &wake{f}
	st.mu.Lock()
	st.wakes = append(st.wakes, w)
	st.mu.Unlock()
	if seq := s.sequencer(c.Key, 0); seq >= 0 {
		s.watch(st, seq)
	}
	s.put(st)
	return func() {
		st.mu.Lock()
		st.wakes = slices.DeleteFunc(slices.Clone(st.wakes), func(x *wake) bool { return x == w })
		var stops []func()
		if len(st.wakes) == 0 {
			stops, st.stops, st.watch = st.stops, nil, 0
		}
		idle := st.idleLocked()
		st.mu.Unlock()
		for _, stop := range stops {
			stop()
		}
		if idle {
			s.forget(st)
		}
	}
}

// watch watches a claim on a node.
func (s *Store) watch(st *claim, i int) {
	in := s.nodes[i].inner.Load()
	if in == nil {
		return
	}
	w, ok := in.Member.(driver.Watcher)
	if !ok {
		return
	}
	st.mu.Lock()
	if st.watch.has(i) || len(st.wakes) == 0 {
		st.mu.Unlock()
		return
	}
	st.watch |= 1 << i
	st.mu.Unlock()
	stop := w.Watch(driver.Claim{Key: st.key, ID: st.id}, func(h driver.Hint) {
		st.mu.Lock()
		if h.Granted && i == st.seq && !st.held && h.Grant.Token > st.ticket {
			st.called = true
		}
		wakes := st.wakes
		st.mu.Unlock()
		for _, w := range wakes {
			w.f(driver.Hint{})
		}
	})
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.wakes) == 0 { // the last watch ended meanwhile
		st.watch &^= 1 << i
		go stop()
		return
	}
	st.stops = append(st.stops, stop)
}
